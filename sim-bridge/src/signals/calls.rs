// SPDX-License-Identifier: GPL-2.0-or-later
//! System calls that are about signals.

use super::deliver::{collect, mirror, mirror_mask, on};
use super::*;
use crate::errno::{EFAULT, EINVAL, ENOMEM, EPERM};
use crate::state::{State, Uc};
use crate::threads::{Later, Wait};
use crate::user_memory::{read_bytes, write_bytes};
use unicorn_engine::RegisterX86 as R;

/// rt_sigaction.
pub fn action(uc: &mut Uc, s: &mut State, a: &[u64; 6]) -> Result<i64, i64> {
    let (signal, new, old) = (a[0] as u32, a[1], a[2]);
    if !(1..=64).contains(&signal) || a[3] != 8 || (new != 0 && matches!(signal, SIGKILL | SIGSTOP))
    {
        return Err(EINVAL);
    }
    let was = s.signals.actions[signal as usize];
    if old != 0 {
        let bytes = [was.handler, was.flags, was.restorer, was.mask].map(u64::to_le_bytes);
        write_bytes(uc, s, old, &bytes.concat())?;
    }
    if new != 0 {
        let bytes = read_bytes(uc, s, new, 32)?;
        let word =
            |n: usize| u64::from_le_bytes(bytes[8 * n..8 * n + 8].try_into().unwrap_or_default());
        s.signals.actions[signal as usize] = Action {
            handler: word(0),
            flags: word(1),
            restorer: word(2),
            mask: word(3) & !(bit(SIGKILL) | bit(SIGSTOP)),
        };
        mirror(s, signal);
        // A handler of faults has to find the state before the instruction.
        s.want_hooks |= word(0) > 1 && is_synchronous(signal);
    }
    Ok(0)
}

/// rt_sigprocmask.
pub fn mask(uc: &mut Uc, s: &mut State, a: &[u64; 6]) -> Result<i64, i64> {
    if a[3] != 8 {
        return Err(EINVAL);
    }
    let was = s.thread().mask;
    if a[1] != 0 {
        let set = set_at(uc, s, a[1])?;
        s.thread().mask = match a[0] as i32 {
            libc::SIG_BLOCK => was | set,
            libc::SIG_UNBLOCK => was & !set,
            libc::SIG_SETMASK => set,
            _ => return Err(EINVAL),
        };
        mirror_mask(s);
        s.attention = 0;
    }
    if a[2] != 0 {
        write_bytes(uc, s, a[2], &was.to_le_bytes())?;
    }
    Ok(0)
}

fn set_at(uc: &Uc, s: &mut State, at: u64) -> Result<u64, i64> {
    let bytes = read_bytes(uc, s, at, 8)?;
    let set = u64::from_le_bytes(bytes.try_into().map_err(|_| EFAULT)?);
    Ok(set & !(bit(SIGKILL) | bit(SIGSTOP)))
}

/// rt_sigsuspend, and pause (which keeps the mask).
pub fn suspend(uc: &Uc, s: &mut State, at: Option<u64>) -> Result<Later, i64> {
    if let Some(at) = at {
        let set = set_at(uc, s, at)?;
        let was = s.thread().mask;
        s.thread().suspended.get_or_insert(was);
        s.thread().mask = set;
        mirror_mask(s);
    }
    Ok(Later::Again(Wait::Outside))
}

/// rt_sigpending.
pub fn pending(uc: &mut Uc, s: &mut State, to: u64) -> Result<i64, i64> {
    collect(s);
    let set = (s.signals.pending | s.thread().pending) & s.thread().mask;
    write_bytes(uc, s, to, &set.to_le_bytes())?;
    Ok(0)
}

/// sigaltstack.
pub fn alternate(uc: &mut Uc, s: &mut State, new: u64, old: u64) -> Result<i64, i64> {
    let was = s.thread().alternate;
    let on_it = on(was, uc.reg_read(R::RSP).unwrap_or(0));
    if old != 0 {
        let flags = match was.1 {
            0 => 2u64,
            _ => u64::from(on_it),
        };
        let bytes = [was.0, flags, was.1].map(u64::to_le_bytes).concat();
        write_bytes(uc, s, old, &bytes)?;
    }
    if new != 0 {
        let bytes = read_bytes(uc, s, new, 24)?;
        let word =
            |n: usize| u64::from_le_bytes(bytes[8 * n..8 * n + 8].try_into().unwrap_or_default());
        if on_it {
            return Err(EPERM);
        }
        s.thread().alternate = match word(1) as u32 & 3 {
            2 => (0, 0),
            _ if word(2) < 2048 => return Err(ENOMEM),
            _ => (word(0), word(2)),
        };
    }
    Ok(0)
}
