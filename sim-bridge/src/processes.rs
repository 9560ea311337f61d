// SPDX-License-Identifier: GPL-2.0-or-later
//! Processes: a forked program is a forked simulator. Each has a machine of its own, whose memory the
//! kernel below copies when it is written to, and what the program shares with its child (shared
//! mappings, descriptors, the device's store) the two simulators share. So process numbers, exit
//! statuses, process groups and signals are this kernel's. Only `ulpf-sim` does that (`Config::processes`):
//! a program that has more threads than the machine's cannot fork.

use crate::machine::{End, State, Uc};
use crate::os::{ECHILD, EINTR, EINVAL, EPERM, ESRCH, host, write_bytes};
use crate::signals::{self, Info};
use crate::threads::{Later, Thread, Wait};

/// The first process, as the program knows it: the same in every run.
pub const FIRST: u32 = 1000;

/// Number of this process for the program, and the simulator's own.
#[derive(Default)]
pub struct Family {
    /// The simulator that was started.
    root: i32,
    /// Children that have not been waited for.
    children: Vec<i32>,
}

impl Family {
    /// What the program calls a process.
    fn outside(&self, pid: i32) -> i64 {
        match pid {
            p if p == self.root => FIRST.into(),
            p => p.into(),
        }
    }
}

fn own() -> i32 {
    std::process::id() as i32
}

pub fn id(s: &State) -> i64 {
    match s.processes {
        true if s.forked => s.family.outside(own()),
        _ => FIRST.into(),
    }
}

pub fn parent(s: &State) -> i64 {
    match s.forked {
        // SAFETY: no memory is involved.
        true => s.family.outside(unsafe { libc::getppid() }),
        false => 1,
    }
}

pub fn fork(s: &mut State) -> Result<i64, i64> {
    if !s.processes {
        return Err(EPERM);
    }
    if s.family.root == 0 {
        s.family.root = own();
    }
    // SAFETY: this process has one thread, so the child has all that it had.
    let pid = host(unsafe { libc::fork() }.into());
    if pid != 0 {
        if pid > 0 {
            s.family.children.push(pid as i32);
            s.forked = true;
        }
        return if pid > 0 { Ok(pid) } else { Err(pid) };
    }
    s.forked = true;
    s.child = true;
    s.family.children.clear();
    s.signals.pending = 0;
    let mut me = s.threads.swap_remove(s.current);
    me.id = own() as u32;
    me.pending = 0;
    me.exceptions = (0, 0);
    s.threads = vec![me];
    s.current = 0;
    s.last_id = own() as u32;
    s.device.forked();
    s.forget_user_tables();
    Ok(0)
}

/// How a forked child's simulator ends: as its program has.
pub fn end(end: &End) -> ! {
    let status = match end {
        End::Exit(status) => *status,
        End::Signal(signal, _) => {
            // SAFETY: the default action ends this process, as the program's would have ended.
            unsafe {
                libc::signal(*signal, libc::SIG_DFL);
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigemptyset(&raw mut set);
                libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
                // A core of the simulator is nobody's.
                let none = libc::rlimit {
                    rlim_cur: 0,
                    rlim_max: 0,
                };
                libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
                libc::raise(*signal);
            }
            128 + signal
        }
        End::Failed(why) => {
            eprintln!("ulpf-sim: process {}: {why}", own());
            125
        }
        End::Paused(_) => 125,
    };
    // SAFETY: nothing of ours is left to be done.
    unsafe { libc::_exit(status) }
}

/// wait4, for children that are simulators.
pub fn wait(uc: &mut Uc, s: &mut State, a: &[u64; 6]) -> Result<Result<i64, Later>, i64> {
    let which = a[0] as i32;
    let (mut status, mut usage) = (0, [0u8; 144]);
    // SAFETY: the two are what the call fills in.
    let pid = host(unsafe {
        libc::syscall(
            libc::SYS_wait4,
            which,
            &raw mut status,
            a[2] as i32 | libc::WNOHANG,
            usage.as_mut_ptr(),
        )
    });
    match pid {
        0 if a[2] as i32 & libc::WNOHANG == 0 => return Ok(Err(Later::Again(Wait::Outside))),
        0 => return Ok(Ok(0)),
        ..0 => return Err(if pid == -10 { ECHILD } else { pid }),
        _ => {}
    }
    s.family
        .children
        .retain(|&c| i64::from(c) != pid || libc::WIFSTOPPED(status));
    if a[1] != 0 {
        write_bytes(uc, s, a[1], &status.to_le_bytes())?;
    }
    if a[3] != 0 {
        write_bytes(uc, s, a[3], &usage)?;
    }
    Ok(Ok(s.family.outside(pid as i32)))
}

/// kill, tkill and tgkill. Only the program's own processes are in reach.
pub fn kill(s: &mut State, number: u64, a: &[u64; 6]) -> Result<i64, i64> {
    let (who, signal) = match number {
        234 => (a[1] as i32, a[2]),
        _ => (a[0] as i32, a[1]),
    };
    if signal > 64 {
        return Err(EINVAL);
    }
    let info = Info {
        code: if number == 62 { 0 } else { -6 },
        value: id(s) as u64,
        trap: 0,
    };
    let thread = s.threads.iter().position(|t| t.id == who as u32);
    if number != 62 && thread.is_some() {
        if signal != 0 {
            signals::send(s, thread, signal as u32, info);
        }
        return Ok(0);
    }
    if i64::from(who) == id(s) || (who == 0 && !s.forked) {
        if signal != 0 {
            signals::send(s, None, signal as u32, info);
        }
        return Ok(0);
    }
    if !s.forked {
        return Err(ESRCH);
    }
    let known = |p: i32| {
        // SAFETY: no memory is involved.
        p == s.family.root || p == unsafe { libc::getppid() } || s.family.children.contains(&p)
    };
    let real = match who {
        p if p == FIRST as i32 => s.family.root,
        p if p > 1 && known(p) => p,
        // The group of a child.
        p if p < -1 && known(-p) => p,
        _ => return Err(ESRCH),
    };
    // SAFETY: one of ours.
    Ok(host(unsafe { libc::kill(real, signal as i32) }.into()))
}

/// Calls that wait are made once more when a signal has come, unless they are over.
pub fn interrupted(s: &mut State) -> bool {
    std::mem::take(&mut s.interrupted)
}

pub const INTERRUPTED: i64 = EINTR;

pub fn first_thread() -> Thread {
    Thread::new(FIRST)
}
