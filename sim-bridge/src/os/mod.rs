// SPDX-License-Identifier: GPL-2.0-or-later
//! System calls: what a static C program needs, done by this process or made up. What is not known
//! ends the run, with its name where it has one; nothing is silently wrong.

mod exec;
mod files;
mod memory;
mod stack;
mod sync;
mod time;

pub use exec::Resume;
pub use files::wait_for_events;
pub use stack::first_stack;

use crate::device;
use crate::machine::{End, State, Uc};
use crate::processes::{self, Kind};
use crate::signals;
use crate::threads::Later;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use unicorn_engine::RegisterX86 as R;

/// The thesis's system calls (Listing 3.3), where Linux has none.
pub const REGISTER_ULI: u64 = 0x1000;
pub const SET_RO: u64 = 0x1001;
/// A cache line is to be watched, or not any more: for a model that observes the machine.
pub const WATCH_LINE: u64 = 0x1002;
pub const OPEN_LINE: u64 = 0x1003;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum File {
    Host(i32),
    /// A space of the device.
    Ulpf(u32),
    /// Written text is kept; nothing is there to be read.
    Kept,
}

/// The program's descriptors.
pub struct Os {
    pub files: HashMap<u64, File>,
    /// Those that end at an exec.
    pub closing: HashSet<u64>,
    pub kept: Vec<u8>,
    /// The file that it runs.
    pub program: String,
    random: u64,
}

impl Default for Os {
    fn default() -> Os {
        Os {
            files: (0..3).map(|n| (n, File::Host(n as i32))).collect(),
            closing: HashSet::new(),
            kept: vec![],
            program: String::new(),
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }
}

pub const EPERM: i64 = -1;
pub const ENOENT: i64 = -2;
pub const ESRCH: i64 = -3;
pub const EINTR: i64 = -4;
pub const EBADF: i64 = -9;
pub const ECHILD: i64 = -10;
pub const EAGAIN: i64 = -11;
pub const ENOMEM: i64 = -12;
pub const EACCES: i64 = -13;
pub const EFAULT: i64 = -14;
pub const EBUSY: i64 = -16;
pub const EINVAL: i64 = -22;
pub const ENOTTY: i64 = -25;
pub const EDEADLK: i64 = -35;
pub const ENOSYS: i64 = -38;

/// Names of calls that programs make and that the machine does not know.
const UNKNOWN: [(u64, &str); 19] = [
    (29, "shmget"),
    (41, "socket"),
    (42, "connect"),
    (49, "bind"),
    (53, "socketpair"),
    (56, "clone"),
    (101, "ptrace"),
    (117, "setresuid"),
    (176, "delete_module"),
    (213, "epoll_create"),
    (232, "epoll_wait"),
    (282, "signalfd"),
    (291, "epoll_create1"),
    (298, "perf_event_open"),
    (310, "process_vm_readv of another process"),
    (311, "process_vm_writev of another process"),
    (322, "execveat"),
    (425, "io_uring_setup"),
    (435, "clone3"),
];

impl Os {
    /// The same bytes in every run.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    pub fn add(&mut self, file: File) -> u64 {
        self.add_from(file, 0)
    }

    /// With the lowest number that is free, from this one on.
    pub fn add_from(&mut self, file: File, first: u64) -> u64 {
        let n = (first..)
            .find(|n| !self.files.contains_key(n))
            .unwrap_or(u64::MAX);
        self.files.insert(n, file);
        self.closing.remove(&n);
        n
    }
}

/// What a system call reads: EFAULT where the program itself could not.
pub fn read_bytes(uc: &Uc, s: &mut State, at: u64, len: u64) -> Result<Vec<u8>, i64> {
    if len > 0 && !s.space.permits(at, len, 1) {
        return Err(EFAULT);
    }
    s.kernel_touches(uc, at, len, false)?;
    uc.mem_read_as_vec(at, len as usize).map_err(|_| EFAULT)
}

/// What a system call writes.
pub fn write_bytes(uc: &mut Uc, s: &mut State, at: u64, bytes: &[u8]) -> Result<(), i64> {
    let len = bytes.len() as u64;
    if len > 0 && !s.space.permits(at, len, 2) {
        return Err(EFAULT);
    }
    s.kernel_touches(uc, at, len, true)?;
    s.space.stale_code |= len > 0 && s.space.may_hold_code(at, len);
    uc.mem_write(at, bytes).map_err(|_| EFAULT)
}

fn string(uc: &Uc, at: u64) -> Result<CString, i64> {
    let mut bytes = vec![];
    for n in 0..4096 {
        let mut b = [0];
        uc.mem_read(at.wrapping_add(n), &mut b)
            .map_err(|_| EFAULT)?;
        if b[0] == 0 {
            return CString::new(bytes).map_err(|_| EINVAL);
        }
        bytes.push(b[0]);
    }
    Err(-36)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default())
}

/// The host's result, or its errno.
pub fn host(result: i64) -> i64 {
    match result {
        -1 => -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(5)),
        n => n,
    }
}

/// A memory file of ours, which nobody can execute as a program: so it is to be had whatever sysctl
/// vm.memfd_noexec says. -1: see errno.
pub fn memory_file(name: &CStr, flags: u32) -> i32 {
    // SAFETY: a C string.
    let create = |flags| unsafe { libc::memfd_create(name.as_ptr(), flags) };
    match create(flags | libc::MFD_NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag, and have no such setting.
        -1 if host(-1) == -i64::from(libc::EINVAL) => create(flags),
        fd => fd,
    }
}

pub fn call(uc: &mut Uc, s: &mut State) {
    let get = |uc: &Uc, r| uc.reg_read(r).unwrap_or(0);
    let number = get(uc, R::RAX);
    let a = [R::RDI, R::RSI, R::RDX, R::R10, R::R8, R::R9].map(|r| get(uc, r));
    s.calling = Some(number);
    s.call_begins();
    let result = dispatch(uc, s, number, &a).unwrap_or_else(|e| e);
    s.calling = None;
    // A call that waits has its result later, or is made again with the registers that it has.
    match s.later {
        Some(Later::Again(_) | Later::Wait(_) | Later::SignalReturn) => {}
        _ => {
            s.interrupted = false;
            s.since = None;
            s.thread().again = false;
            let _ = uc.reg_write(R::RAX, result as u64);
        }
    }
}

/// The rest of the call comes between two instructions.
fn later(s: &mut State, what: Later) -> Result<i64, i64> {
    s.later = Some(what);
    Ok(0)
}

fn dispatch(uc: &mut Uc, s: &mut State, number: u64, a: &[u64; 6]) -> Result<i64, i64> {
    if let Some(result) = files::call(uc, s, number, a) {
        return result;
    }
    if let Some(result) = memory::call(uc, s, number, a) {
        return result;
    }
    Ok(match number {
        13 => signals::action(uc, s, a)?,
        14 => signals::mask(uc, s, a)?,
        15 => return later(s, Later::SignalReturn),
        24 => return later(s, Later::Yield),
        34 | 130 => {
            if processes::interrupted(s) {
                return Err(EINTR);
            }
            let wait = signals::suspend(uc, s, (number == 130).then_some(a[0]))?;
            return later(s, wait);
        }
        35 | 230 => return time::sleep(uc, s, number, a),
        36..=38 => time::timer(uc, s, number, a)?,
        39 => processes::id(s),
        56 | 435 => return sync::clone(uc, s, number, a),
        57 | 58 => {
            let kind = if number == 58 {
                Kind::Shares
            } else {
                Kind::Copies
            };
            processes::fork(uc, s, kind).map_err(|e| no_processes(s, number, e))?
        }
        59 => exec::call(uc, s, a)?,
        60 if s.threads.len() > 1 => return later(s, Later::ExitThread),
        60 | 231 => {
            s.end = Some(End::Exit(a[0] as i32 & 0xff));
            0
        }
        61 => match processes::wait(uc, s, a)? {
            Ok(pid) => pid,
            Err(_) if processes::interrupted(s) => return Err(EINTR),
            Err(wait) => return later(s, wait),
        },
        62 | 200 | 234 => processes::kill(s, number, a)?,
        63 => {
            let mut names = vec![0u8; 65 * 6];
            for (n, text) in ["Linux", "ulpf", "5.10.0", "#1", "x86_64"]
                .iter()
                .enumerate()
            {
                names[n * 65..n * 65 + text.len()].copy_from_slice(text.as_bytes());
            }
            write_bytes(uc, s, a[0], &names)?;
            0
        }
        96 | 201 | 228 | 229 => time::clock(uc, s, number, a)?,
        97 | 302 => time::limits(uc, s, number, a)?,
        102 | 104 | 107 | 108 => 0,
        109 if s.forked => {
            let pid = if a[0] == u64::from(processes::FIRST) {
                0
            } else {
                a[0] as i32
            };
            // SAFETY: no memory is involved.
            host(unsafe { libc::setpgid(pid, a[1] as i32) }.into())
        }
        109 | 112 => 0,
        110 => processes::parent(s),
        111 | 121 | 124 => processes::id(s),
        127 => signals::pending(uc, s, a[0])?,
        131 => signals::alternate(uc, s, a[0], a[1])?,
        157 => EINVAL,
        158 => match a[0] {
            0x1001 | 0x1002 => {
                let base = if a[0] == 0x1001 {
                    R::GS_BASE
                } else {
                    R::FS_BASE
                };
                uc.reg_write(base, a[1]).map_or(EPERM, |()| 0)
            }
            _ => EINVAL,
        },
        186 => s.thread_id().into(),
        310 | 311 if a[0] as i64 == processes::id(s) => files::own_memory(uc, s, number, a)?,
        202 => return sync::futex(uc, s, a),
        203 | 273 => 0,
        204 => {
            write_bytes(uc, s, a[2], &1u64.to_le_bytes())?;
            8
        }
        218 => {
            s.thread().clear_id = a[0];
            s.thread_id().into()
        }
        309 => {
            for at in [a[0], a[1]].into_iter().filter(|&at| at != 0) {
                write_bytes(uc, s, at, &[0; 4])?;
            }
            0
        }
        318 => {
            let bytes: Vec<u8> = (0..a[1].min(256)).map(|_| s.os.random() as u8).collect();
            write_bytes(uc, s, a[0], &bytes)?;
            bytes.len() as i64
        }
        // statx, rseq, membarrier, set_mempolicy: programs do without.
        324 | 332 | 334 => ENOSYS,
        REGISTER_ULI => {
            if !s.space.is_mapped(a[0], 1) {
                return Err(EFAULT);
            }
            if s.debug.has_watches() || !s.watches.is_empty() {
                return Err(EBUSY);
            }
            s.mmu.cr18 = a[0];
            s.mmu.write_once = true;
            if s.mmu.cr16 == 0 {
                s.mmu.cr16 = s.mmu.tables.frame();
            }
            0
        }
        WATCH_LINE | OPEN_LINE => {
            if let Some(o) = &mut s.observer {
                (o.line)(a[0], number == WATCH_LINE);
            }
            0
        }
        SET_RO => device::bind(s, a[0], a[1]),
        _ => {
            unknown(s, number, "");
            ENOSYS
        }
    })
}

/// Ends the run: the machine does not know what the program asks for.
fn unknown(s: &mut State, number: u64, more: &str) {
    let name = UNKNOWN.iter().find(|u| u.0 == number).map_or("", |u| u.1);
    let comma = if name.is_empty() { "" } else { ", " };
    fail(s, format!("system call {number}{comma}{name}{more}"));
}

fn no_processes(s: &mut State, number: u64, error: i64) -> i64 {
    if error == EPERM {
        unknown(s, number, " (fork): this machine has one process");
    }
    error
}

fn fail(s: &mut State, what: String) {
    s.end = Some(End::Failed(format!("the machine does not know {what}")));
}
