// SPDX-License-Identifier: GPL-2.0-or-later
//! Clocks, sleep, timers, limits.

use super::numbers::*;
use crate::errno::EINVAL;
use crate::host::host;
use crate::state::{State, Uc};
use crate::threads::{Later, Wait};
use crate::user_memory::{read_bytes, word, write_bytes};

/// A timespec as nanoseconds.
pub fn span(uc: &Uc, s: &mut State, at: u64) -> Result<u64, i64> {
    let t = read_bytes(uc, s, at, 16)?;
    let (seconds, rest) = (word(&t, 0), word(&t, 8));
    match rest < 1_000_000_000 && seconds < 1 << 33 {
        true => Ok(seconds * 1_000_000_000 + rest),
        false => Err(EINVAL),
    }
}

/// nanosleep, clock_nanosleep: of the machine's time; real time only where other processes are.
pub fn sleep(uc: &Uc, s: &mut State, number: u64, a: &[u64; 6]) -> Result<i64, i64> {
    let (at, absolute) = match number {
        SYS_nanosleep => (a[0], false),
        _ => (a[2], a[1] as i32 & libc::TIMER_ABSTIME != 0),
    };
    let deadline = match (absolute, span(uc, s, at)?) {
        (true, ns) => ns.saturating_sub(EPOCH),
        (false, ns) => s.now() + ns,
    };
    s.later(Later::Wait(Wait::Sleep { deadline }))
}

/// The clock's start: a second, so that it is never zero.
pub const EPOCH: u64 = 1_000_000_000;

/// getitimer, alarm, setitimer: this process's own, in real time.
pub fn timer(uc: &mut Uc, s: &mut State, number: u64, a: &[u64; 6]) -> Result<i64, i64> {
    if !s.processes {
        s.fail("timers (alarm, setitimer): this machine has one process".into());
        return Err(EINVAL);
    }
    s.timers |= number != SYS_getitimer;
    if number == SYS_alarm {
        // SAFETY: no memory is involved.
        return Ok(unsafe { libc::alarm(a[0] as u32) }.into());
    }
    let new = match number {
        SYS_setitimer => read_bytes(uc, s, a[1], 32)?,
        _ => vec![0; 32],
    };
    let (mut old, to) = ([0u8; 32], if number == SYS_setitimer { a[2] } else { a[1] });
    // SAFETY: two structures of 32 bytes.
    let result = host(unsafe {
        match number {
            SYS_setitimer => {
                libc::syscall(libc::SYS_setitimer, a[0], new.as_ptr(), old.as_mut_ptr())
            }
            _ => libc::syscall(libc::SYS_getitimer, a[0], old.as_mut_ptr()),
        }
    });
    if result == 0 && to != 0 {
        write_bytes(uc, s, to, &old)?;
    }
    Ok(result)
}

/// getrlimit, prlimit64: a stack of 8 MiB, else nothing is limited; nothing can be changed.
pub fn limits(uc: &mut Uc, s: &mut State, number: u64, a: &[u64; 6]) -> Result<i64, i64> {
    let (which, to) = match number {
        SYS_getrlimit => (a[0], a[1]),
        _ => (a[1], a[3]),
    };
    if to != 0 {
        let soft = match which as u32 {
            libc::RLIMIT_STACK => crate::memory::STACK,
            libc::RLIMIT_NOFILE => 1024,
            _ => u64::MAX,
        };
        let bytes = [soft, u64::MAX].map(u64::to_le_bytes).concat();
        write_bytes(uc, s, to, &bytes)?;
    }
    Ok(0)
}

/// Time is the model's: a cycle is a nanosecond. In functional mode, where cycles are not counted, calls are.
pub fn clock(uc: &mut Uc, s: &mut State, number: u64, a: &[u64; 6]) -> Result<i64, i64> {
    let ns = s.now() + EPOCH;
    // The day's time begins in 2001, that of CLOCK_MONOTONIC at the machine's start.
    let day = match number == SYS_clock_gettime && a[0] as i32 != libc::CLOCK_REALTIME {
        true => 0,
        false => 1_000_000_000,
    };
    let (seconds, rest) = (day + ns / 1_000_000_000, ns % 1_000_000_000);
    let (to, part) = match number {
        SYS_clock_getres => (a[1], 1),
        SYS_gettimeofday => (a[0], rest / 1000),
        SYS_clock_gettime => (a[1], rest),
        _ => {
            if a[0] != 0 {
                write_bytes(uc, s, a[0], &seconds.to_le_bytes())?;
            }
            return Ok(seconds as i64);
        }
    };
    if to != 0 {
        write_bytes(
            uc,
            s,
            to,
            &[seconds.to_le_bytes(), part.to_le_bytes()].concat(),
        )?;
    }
    Ok(0)
}
