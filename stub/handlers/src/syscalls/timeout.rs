//! Relative time-outs of calls that we interrupt ourselves. The second attempt waits only for the rest, so that a stop
//! of the world or a new watch never lengthens a sleep. The kernel writes the rest to our memory first: the program
//! must not see it if the interruption was ours.

use ulpf_lib::syscalls;
use ulpf_lib::syscalls::row::{self, Left, Unit};

use super::call::{Args, EINTR};
use crate::runtime::clock::now;
use crate::runtime::memory;

pub struct Timeout {
    /// The time-out in the call's row.
    known: row::Timeout,
    total_ns: u64,
    pub begun: u64,
    rest: [u64; 2],
    /// Argument for the rest of a sleep that a signal ends, and the kernel's result for it.
    unslept_at: Option<usize>,
    unslept: [u64; 2],
}

impl Timeout {
    /// The time-out of a call, if it has a relative one.
    pub fn of(nr: u64, a: &Args) -> Option<Timeout> {
        let known = syscalls::row(nr)?.timeout.filter(|t| t.is_relative(a))?;
        let v = *a.get(known.arg as usize)?;
        let total_ns = match known.unit {
            Unit::Millis => (v as i32 > 0).then(|| v as u32 as u64 * 1_000_000)?,
            Unit::Timespec | Unit::Timeval => {
                let [s, f] = memory::get::<[u64; 2]>(v)?;
                let scale = if known.unit == Unit::Timespec {
                    1
                } else {
                    1000
                };
                s.saturating_mul(1_000_000_000)
                    .saturating_add(f.saturating_mul(scale))
            }
        };
        Some(Timeout {
            known,
            total_ns,
            begun: now(),
            rest: [0; 2],
            unslept_at: known
                .remainder
                .map(usize::from)
                .filter(|&n| a.get(n).is_some_and(|p| *p != 0)),
            unslept: [0; 2],
        })
    }

    /// Copies the rest from our memory to the program's. `again`: the time-out was ours, too. Returns `false` if the
    /// program has no such memory.
    pub fn give_back(&self, a: &Args, again: bool, result: i64) -> bool {
        if again
            && self.known.left != Left::Unchanged
            && let Some(&at) = a.get(self.known.arg as usize)
        {
            memory::put(at, &self.rest);
        }
        match self.unslept_at.and_then(|n| a.get(n)) {
            Some(&at) if result == EINTR => {
                // SAFETY: the kernel has written it through the pointer that `prepare` gave it.
                let unslept = unsafe { core::ptr::read_volatile(&self.unslept) };
                memory::put(at, &unslept)
            }
            _ => true,
        }
    }

    /// Rewrites arguments for an attempt, the first or another. Returns which of them are ours now.
    pub fn prepare(&mut self, a: &mut Args, again: bool) -> u32 {
        let mut ours = if again { self.shorten(a) } else { 0 };
        if let Some(n) = self.unslept_at
            && let Some(p) = a.get_mut(n)
        {
            *p = self.unslept.as_mut_ptr() as u64;
            ours |= 1 << n;
        }
        ours
    }

    fn shorten(&mut self, a: &mut Args) -> u32 {
        let left = self
            .total_ns
            .saturating_sub(now().saturating_sub(self.begun));
        let Some(v) = a.get_mut(self.known.arg as usize) else {
            return 0;
        };
        match self.known.unit {
            Unit::Millis => {
                *v = left.div_ceil(1_000_000);
                return 0;
            }
            Unit::Timespec => self.rest = [left / 1_000_000_000, left % 1_000_000_000],
            Unit::Timeval => self.rest = [left / 1_000_000_000, left % 1_000_000_000 / 1000],
        }
        *v = self.rest.as_ptr() as u64;
        1 << self.known.arg
    }
}
