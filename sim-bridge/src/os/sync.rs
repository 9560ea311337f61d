// SPDX-License-Identifier: GPL-2.0-or-later
//! clone and futex.

use super::numbers::*;
use super::unknown::{no_processes, unknown};
use crate::errno::{EAGAIN, EDEADLK, EINVAL, EPERM, ESRCH};
use crate::processes::{Kind, calls as processes};
use crate::state::{State, Uc};
use crate::threads::{Later, MOST, Thread, Wait};
use crate::user_memory::{read_bytes, word, write_bytes};
use unicorn_engine::RegisterX86 as R;

const VM: u64 = libc::CLONE_VM as u64;
const VFORK: u64 = libc::CLONE_VFORK as u64;
const THREAD: u64 = libc::CLONE_THREAD as u64;

/// clone and clone3: a thread, or a process.
pub fn clone(uc: &mut Uc, s: &mut State, number: u64, a: &[u64; 6]) -> Result<i64, i64> {
    let (flags, stack, parent, child, tls) = match number {
        SYS_clone => (a[0], a[1], a[2], a[3], a[4]),
        _ => {
            // struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls
            let c = read_bytes(uc, s, a[0], a[1].clamp(64, 88))?;
            let w = |n: usize| word(&c, 8 * n);
            (w(0), w(5) + w(6), w(3), w(2), w(7))
        }
    };
    if flags & THREAD != 0 {
        if s.threads.len() >= MOST {
            return Err(EAGAIN);
        }
        return s.later(Later::Clone([flags, stack, parent, child, tls]));
    }
    if flags & VM != 0 && flags & VFORK == 0 {
        unknown(s, number, " of a process that shares memory");
        return Err(EINVAL);
    }
    if s.threads.len() > 1 && !s.processes {
        return Err(EPERM);
    }
    let kind = match flags & (VM | VFORK) {
        0 => Kind::Copies,
        VFORK => Kind::Waits,
        _ => Kind::Shares,
    };
    let pid = processes::fork(uc, s, kind).map_err(|e| no_processes(s, number, e))?;
    if pid == 0 {
        if stack != 0 {
            let _ = uc.reg_write(R::RSP, stack);
        }
        if flags & libc::CLONE_CHILD_SETTID as u64 != 0 {
            let own = s.thread_id();
            let _ = uc.mem_write(child, &own.to_le_bytes());
        }
        if flags & libc::CLONE_CHILD_CLEARTID as u64 != 0 {
            s.thread().clear_id = child;
        }
    } else if flags & libc::CLONE_PARENT_SETTID as u64 != 0 {
        let _ = uc.mem_write(parent, &(pid as u32).to_le_bytes());
    }
    Ok(pid)
}

/// The futex operations that programs and their libraries use. There are no priorities, so none is inherited.
pub fn futex(uc: &mut Uc, s: &mut State, a: &[u64; 6]) -> Result<i64, i64> {
    let (at, op, value) = (a[0], a[1] as i32 & libc::FUTEX_CMD_MASK, a[2] as u32);
    if at % 4 != 0 {
        return Err(EINVAL);
    }
    match op {
        libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => {
            let now = s.now();
            let word = read_bytes(uc, s, at, 4)?;
            if word != value.to_le_bytes() {
                return Err(EAGAIN);
            }
            let deadline = match (a[3], op) {
                (0, _) => None,
                (t, libc::FUTEX_WAIT) => Some(now + super::time::span(uc, s, t)?),
                // Absolute, on the one clock or the other.
                (t, _) => {
                    let day = if a[1] as i32 & libc::FUTEX_CLOCK_REALTIME != 0 {
                        1_000_000_000_000_000_000
                    } else {
                        0
                    };
                    Some(super::time::span(uc, s, t)?.saturating_sub(super::time::EPOCH + day))
                }
            };
            let bits = if op == libc::FUTEX_WAIT_BITSET {
                a[5] as u32
            } else {
                u32::MAX
            };
            // Another process may wake us, by a wake that we do not hear: the word is looked at again.
            let shared = s.forked && a[1] as i32 & libc::FUTEX_PRIVATE_FLAG == 0;
            let wait = match shared {
                true => Wait::Sleep {
                    deadline: deadline.unwrap_or(u64::MAX).min(now + 1_000_000),
                },
                false => Wait::Futex {
                    addr: at,
                    bits,
                    deadline,
                },
            };
            s.later(Later::Wait(wait))
        }
        libc::FUTEX_LOCK_PI | libc::FUTEX_TRYLOCK_PI => {
            lock_pi(uc, s, at, op == libc::FUTEX_TRYLOCK_PI, a[3])
        }
        libc::FUTEX_UNLOCK_PI => unlock_pi(uc, s, at),
        libc::FUTEX_WAKE => Ok(s.wake(at, value.into(), u32::MAX) as i64),
        libc::FUTEX_WAKE_BITSET => Ok(s.wake(at, value.into(), a[5] as u32) as i64),
        libc::FUTEX_REQUEUE | libc::FUTEX_CMP_REQUEUE => {
            if op == libc::FUTEX_CMP_REQUEUE
                && read_bytes(uc, s, at, 4)? != (a[5] as u32).to_le_bytes()
            {
                return Err(EAGAIN);
            }
            let woken = s.wake(at, value.into(), u32::MAX);
            Ok((woken + s.requeue(at, a[4], a[3])) as i64)
        }
        _ => {
            s.fail(format!("futex operation {op}"));
            Err(EINVAL)
        }
    }
}

const OWNER: u32 = 0x3fff_ffff;
const WAITERS: u32 = 0x8000_0000;

fn word_at(uc: &Uc, s: &mut State, at: u64) -> Result<u32, i64> {
    let bytes = read_bytes(uc, s, at, 4)?;
    Ok(u32::from_le_bytes(bytes.try_into().unwrap_or_default()))
}

/// FUTEX_LOCK_PI, FUTEX_TRYLOCK_PI: the word is the owner's number. The owner hands the lock to a waiting
/// thread.
fn lock_pi(uc: &mut Uc, s: &mut State, at: u64, only_try: bool, timeout: u64) -> Result<i64, i64> {
    let (word, me) = (word_at(uc, s, at)?, s.thread_id());
    if word & OWNER == me {
        return Err(EDEADLK);
    }
    let owner = s.threads.iter().any(|t| t.id == word & OWNER);
    if word & OWNER == 0 {
        write_bytes(uc, s, at, &(word & WAITERS | me).to_le_bytes())?;
        return Ok(0);
    }
    if only_try {
        return Err(EAGAIN);
    }
    if !owner {
        return Err(ESRCH);
    }
    // Absolute, of the day's time.
    let deadline = match timeout {
        0 => None,
        t => Some(
            super::time::span(uc, s, t)?
                .saturating_sub(super::time::EPOCH + 1_000_000_000_000_000_000),
        ),
    };
    write_bytes(uc, s, at, &(word | WAITERS).to_le_bytes())?;
    let wait = Wait::Futex {
        addr: at,
        bits: u32::MAX,
        deadline,
    };
    s.later(Later::Wait(wait))
}

fn unlock_pi(uc: &mut Uc, s: &mut State, at: u64) -> Result<i64, i64> {
    if word_at(uc, s, at)? & OWNER != s.thread_id() {
        return Err(EPERM);
    }
    let waits = |t: &Thread| matches!(t.wait, Wait::Futex { addr, .. } if addr == at);
    let mut waiting = s.threads.iter().filter(|t| waits(t));
    let word = match (waiting.next(), waiting.next()) {
        (None, _) => 0,
        (Some(next), None) => next.id,
        (Some(next), Some(_)) => next.id | WAITERS,
    };
    write_bytes(uc, s, at, &word.to_le_bytes())?;
    s.wake(at, 1, u32::MAX);
    Ok(0)
}
