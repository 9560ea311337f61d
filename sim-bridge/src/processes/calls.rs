// SPDX-License-Identifier: GPL-2.0-or-later
//! fork, wait, kill: what one simulator does to another.

use super::{FIRST, Kind, Loan};
use crate::errno::{ECHILD, EINVAL, ENOMEM, EPERM, ESRCH};
use crate::host::host;
use crate::memory::{Backing, PAGE, USER_END};
use crate::os::numbers;
use crate::signals::{Info, deliver as signals};
use crate::state::{End, State, Uc};
use crate::threads::{Later, Wait};
use crate::user_memory::write_bytes;
use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{Read, Write};
use std::os::fd::FromRawFd;

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

fn digest(page: &[u8]) -> u64 {
    let mut h = DefaultHasher::new();
    h.write(page);
    h.finish()
}

fn private_pages(uc: &Uc, s: &State) -> HashMap<u64, u64> {
    let parts = s.space.parts(0, USER_END).into_iter();
    let own = parts.filter(|p| p.2 == Backing::Private);
    own.flat_map(|(from, to, _)| (from..to).step_by(PAGE as usize))
        .filter_map(|at| Some((at, digest(&uc.mem_read_as_vec(at, PAGE as usize).ok()?))))
        .collect()
}

/// The child's part of a vfork is over: its parent goes on, with what it has changed.
pub fn settle(uc: &Uc, s: &mut State) {
    let Some(Loan { mut to, pages }) = s.family.loan.take() else {
        return;
    };
    for (at, held) in pages {
        let Ok(page) = uc.mem_read_as_vec(at, PAGE as usize) else {
            continue;
        };
        // If the parent is gone, writing fails, and there is nothing left to report.
        if digest(&page) != held
            && to
                .write_all(&[&at.to_le_bytes()[..], &page].concat())
                .is_err()
        {
            return;
        }
    }
}

/// The parent's: all other threads of its wait, too.
fn borrow(uc: &mut Uc, s: &mut State, mut from: File) -> Result<(), i64> {
    let mut record = [0; 8 + PAGE as usize];
    while from.read_exact(&mut record).is_ok() {
        let (at, page) = record.split_at(8);
        let at = u64::from_le_bytes(at.try_into().unwrap_or_default());
        s.space.stale_code |= s.space.may_hold_code(at, PAGE);
        uc.mem_write(at, page).map_err(|_| ENOMEM)?;
    }
    Ok(())
}

pub fn fork(uc: &mut Uc, s: &mut State, kind: Kind) -> Result<i64, i64> {
    if !s.processes {
        return Err(EPERM);
    }
    if s.family.root == 0 {
        s.family.root = own();
    }
    let mut ends = [0; 2];
    let mut pages = HashMap::new();
    if kind != Kind::Copies {
        // SAFETY: room for two descriptors.
        let made = host(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }.into());
        if made < 0 {
            return Err(made);
        }
        if kind == Kind::Shares {
            pages = private_pages(uc, s);
        }
    }
    // SAFETY: new descriptors, each with one owner.
    let ends = (kind != Kind::Copies).then(|| ends.map(|fd| unsafe { File::from_raw_fd(fd) }));
    // SAFETY: this process has one thread, so the child has all that it had.
    let pid = host(unsafe { libc::fork() }.into());
    if pid < 0 {
        return Err(pid);
    }
    if pid > 0 {
        s.family.children.push(pid as i32);
        s.forked = true;
        if let Some([from, to]) = ends {
            drop(to);
            borrow(uc, s, from)?;
        }
        return Ok(pid);
    }
    s.forked = true;
    s.child = true;
    // A child of a child that shares: the loan is not its own.
    s.family.loan = ends.map(|[_, to]| Loan { to, pages });
    s.family.children.clear();
    s.signals.pending = 0;
    let mut me = s.threads.swap_remove(s.current);
    me.id = own() as u32;
    me.pending = 0;
    if kind != Kind::Shares {
        me.exceptions = (0, 0);
    }
    s.threads = vec![me];
    s.current = 0;
    s.last_id = own() as u32;
    if kind != Kind::Shares {
        s.device.forked();
        s.forget_user_tables();
    }
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
                // A core file of the simulator would be useless.
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
            crate::message!("ulpf-sim: process {}: {why}", own());
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
        ..0 => return Err(if pid == ECHILD { ECHILD } else { pid }),
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

/// waitid, the same.
pub fn wait_id(uc: &mut Uc, s: &mut State, a: &[u64; 6]) -> Result<Result<i64, Later>, i64> {
    const PID: usize = 12;
    let options = a[3] as i32;
    let (mut info, mut usage) = ([0u8; 128], [0u8; 144]);
    // SAFETY: the two are what the call fills in.
    let result = host(unsafe {
        libc::syscall(
            libc::SYS_waitid,
            a[0] as i32,
            a[1] as i32,
            info.as_mut_ptr(),
            options | libc::WNOHANG,
            usage.as_mut_ptr(),
        )
    });
    if result < 0 {
        return Err(result);
    }
    let pid = i32::from_ne_bytes([info[PID], info[PID + 1], info[PID + 2], info[PID + 3]]);
    if pid == 0 && options & libc::WNOHANG == 0 {
        return Ok(Err(Later::Again(Wait::Outside)));
    }
    let code = i32::from_ne_bytes([info[8], info[9], info[10], info[11]]);
    let gone = matches!(code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED);
    if gone && options & libc::WNOWAIT == 0 {
        s.family.children.retain(|&c| c != pid);
    }
    if pid != 0 {
        info[PID..PID + 4].copy_from_slice(&s.family.outside(pid).to_ne_bytes()[..4]);
    }
    if a[2] != 0 {
        write_bytes(uc, s, a[2], &info)?;
    }
    if a[4] != 0 {
        write_bytes(uc, s, a[4], &usage)?;
    }
    Ok(Ok(0))
}

/// kill, tkill and tgkill. Only the program's own processes are in reach.
pub fn kill(s: &mut State, number: u64, a: &[u64; 6]) -> Result<i64, i64> {
    let (who, signal) = match number {
        numbers::SYS_tgkill => (a[1] as i32, a[2]),
        _ => (a[0] as i32, a[1]),
    };
    if signal > 64 {
        return Err(EINVAL);
    }
    let info = Info {
        code: if number == numbers::SYS_kill {
            libc::SI_USER
        } else {
            libc::SI_TKILL
        },
        value: id(s) as u64,
        ..Info::default()
    };
    let thread = s.threads.iter().position(|t| t.id == who as u32);
    if number != numbers::SYS_kill && thread.is_some() {
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
