// SPDX-License-Identifier: GPL-2.0-or-later
//! The call that the program makes, by its number.

use super::numbers::*;
use super::unknown::{no_processes, unknown};
use super::{OPEN_LINE, REGISTER_ULI, SET_RO, WATCH_LINE};
use super::{exec, files, memory, sync, time};
use crate::device::ops;
use crate::errno::{EBUSY, EFAULT, EINTR, EINVAL, ENOSYS, EPERM};
use crate::host::host;
use crate::processes::{FIRST, Kind, calls as processes};
use crate::signals::calls as signals;
use crate::state::{End, State, Uc};
use crate::threads::Later;
use crate::user_memory::write_bytes;
use ulpf_lib::sys::uapi::arch::{ARCH_SET_FS, ARCH_SET_GS};
use unicorn_engine::RegisterX86 as R;

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

fn dispatch(uc: &mut Uc, s: &mut State, number: u64, a: &[u64; 6]) -> Result<i64, i64> {
    if let Some(result) = files::call(uc, s, number, a) {
        return result;
    }
    if let Some(result) = memory::call(uc, s, number, a) {
        return result;
    }
    Ok(match number {
        SYS_rt_sigaction => signals::action(uc, s, a)?,
        SYS_rt_sigprocmask => signals::mask(uc, s, a)?,
        SYS_rt_sigreturn => return s.later(Later::SignalReturn),
        SYS_sched_yield => return s.later(Later::Yield),
        SYS_pause | SYS_rt_sigsuspend => {
            if processes::interrupted(s) {
                return Err(EINTR);
            }
            let wait = signals::suspend(uc, s, (number == SYS_rt_sigsuspend).then_some(a[0]))?;
            return s.later(wait);
        }
        SYS_nanosleep | SYS_clock_nanosleep => return time::sleep(uc, s, number, a),
        SYS_getitimer | SYS_alarm | SYS_setitimer => time::timer(uc, s, number, a)?,
        SYS_getpid => processes::id(s),
        SYS_clone | SYS_clone3 => return sync::clone(uc, s, number, a),
        SYS_fork | SYS_vfork => {
            let kind = if number == SYS_vfork {
                Kind::Shares
            } else {
                Kind::Copies
            };
            processes::fork(uc, s, kind).map_err(|e| no_processes(s, number, e))?
        }
        SYS_execve => exec::call(uc, s, a)?,
        SYS_exit if s.threads.len() > 1 => return s.later(Later::ExitThread),
        SYS_exit | SYS_exit_group => {
            s.end = Some(End::Exit(a[0] as i32 & 0xff));
            0
        }
        SYS_wait4 | SYS_waitid => match match number {
            SYS_wait4 => processes::wait(uc, s, a)?,
            _ => processes::wait_id(uc, s, a)?,
        } {
            Ok(result) => result,
            Err(_) if processes::interrupted(s) => return Err(EINTR),
            Err(wait) => return s.later(wait),
        },
        SYS_kill | SYS_tkill | SYS_tgkill => processes::kill(s, number, a)?,
        SYS_uname => {
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
        SYS_gettimeofday | SYS_time | SYS_clock_gettime | SYS_clock_getres => {
            time::clock(uc, s, number, a)?
        }
        SYS_getrlimit | SYS_prlimit64 => time::limits(uc, s, number, a)?,
        SYS_getuid | SYS_getgid | SYS_geteuid | SYS_getegid => 0,
        SYS_setpgid if s.forked => {
            let pid = if a[0] == u64::from(FIRST) {
                0
            } else {
                a[0] as i32
            };
            // SAFETY: no memory is involved.
            host(unsafe { libc::setpgid(pid, a[1] as i32) }.into())
        }
        SYS_setpgid | SYS_setsid => 0,
        SYS_getppid => processes::parent(s),
        SYS_getpgrp | SYS_getpgid | SYS_getsid => processes::id(s),
        SYS_rt_sigpending => signals::pending(uc, s, a[0])?,
        SYS_sigaltstack => signals::alternate(uc, s, a[0], a[1])?,
        SYS_prctl => EINVAL,
        SYS_arch_prctl => match a[0] {
            ARCH_SET_GS | ARCH_SET_FS => {
                let base = if a[0] == ARCH_SET_GS {
                    R::GS_BASE
                } else {
                    R::FS_BASE
                };
                uc.reg_write(base, a[1]).map_or(EPERM, |()| 0)
            }
            _ => EINVAL,
        },
        SYS_gettid => s.thread_id().into(),
        SYS_process_vm_readv | SYS_process_vm_writev if a[0] as i64 == processes::id(s) => {
            files::own_memory(uc, s, number, a)?
        }
        SYS_futex => return sync::futex(uc, s, a),
        SYS_sched_setaffinity | SYS_set_robust_list => 0,
        SYS_sched_getaffinity => {
            write_bytes(uc, s, a[2], &1u64.to_le_bytes())?;
            8
        }
        SYS_set_tid_address => {
            s.thread().clear_id = a[0];
            s.thread_id().into()
        }
        SYS_getcpu => {
            for at in [a[0], a[1]].into_iter().filter(|&at| at != 0) {
                write_bytes(uc, s, at, &[0; 4])?;
            }
            0
        }
        SYS_getrandom => {
            let bytes: Vec<u8> = (0..a[1].min(256)).map(|_| s.os.random() as u8).collect();
            write_bytes(uc, s, a[0], &bytes)?;
            bytes.len() as i64
        }
        // statx, rseq, membarrier, set_mempolicy: programs do without.
        SYS_membarrier | SYS_statx | SYS_rseq => ENOSYS,
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
        SET_RO => ops::bind(s, a[0], a[1]),
        _ => {
            unknown(s, number, "");
            ENOSYS
        }
    })
}
