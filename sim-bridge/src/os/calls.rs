// SPDX-License-Identifier: GPL-2.0-or-later
//! The call that the program makes, by its number.

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
        13 => signals::action(uc, s, a)?,
        14 => signals::mask(uc, s, a)?,
        15 => return s.later(Later::SignalReturn),
        24 => return s.later(Later::Yield),
        34 | 130 => {
            if processes::interrupted(s) {
                return Err(EINTR);
            }
            let wait = signals::suspend(uc, s, (number == 130).then_some(a[0]))?;
            return s.later(wait);
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
        60 if s.threads.len() > 1 => return s.later(Later::ExitThread),
        60 | 231 => {
            s.end = Some(End::Exit(a[0] as i32 & 0xff));
            0
        }
        61 => match processes::wait(uc, s, a)? {
            Ok(pid) => pid,
            Err(_) if processes::interrupted(s) => return Err(EINTR),
            Err(wait) => return s.later(wait),
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
            let pid = if a[0] == u64::from(FIRST) {
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
        SET_RO => ops::bind(s, a[0], a[1]),
        _ => {
            unknown(s, number, "");
            ENOSYS
        }
    })
}
