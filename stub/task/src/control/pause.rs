//! Waits of the stub's task.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::sync::futex;
use ulpf_lib::sys;
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::runtime::park::{AWAKE_ON, processor};

use super::placer::now;

/// Sleeps until an event comes, unless one has come since `seen`, but at most `ns` nanoseconds. Returns whether they are
/// over.
pub fn wait(seen: u32, ns: Option<i64>) -> bool {
    AWAKE_ON.store(-1, Relaxed);
    let over = match ns {
        Some(ns) => futex::wait_for(&g().event, seen, ns),
        None => {
            futex::wait(&g().event, seen);
            false
        }
    };
    AWAKE_ON.store(processor(), Relaxed);
    over
}

/// Waits for an event, if none has come since `seen`, but at most 10 ms.
pub fn wait_a_little(seen: u32) {
    wait(seen, Some(10_000_000));
}

/// After the answer to a request the task stays awake for a while, if the next request comes soon. To wake an idle
/// processor takes tens of microseconds, longer than most requests need.
#[derive(Default)]
pub struct Looks {
    answered: bool,
    /// Looks in a row that have ended without an event, or late.
    failures: u32,
    /// Answers after which the task still sleeps at once.
    skips: u32,
}

impl Looks {
    /// Processor clocks, 0.1 to 0.2 ms: a thread that sleeps is to be woken first.
    const LONGEST: u64 = 400_000;
    const SOON: u64 = 120_000;
    const MOST_FAILURES: u32 = 8;

    /// A request has been answered.
    pub fn answered(&mut self) {
        self.answered = true;
    }

    /// After an answer, stays awake for a while. Returns whether an event has come since `seen`.
    pub fn look(&mut self, seen: u32) -> bool {
        if !core::mem::take(&mut self.answered) {
            return false;
        }
        let has_come = || g().event.load(SeqCst) != seen;
        if has_come() {
            // (The thread may have run on this processor meanwhile.)
            return true;
        }
        if self.skips > 0 {
            self.skips -= 1;
            return false;
        }
        let begun = now();
        while !has_come() && now().wrapping_sub(begun) < Self::LONGEST {
            core::hint::spin_loop();
        }
        AWAKE_ON.store(processor(), Relaxed);
        self.took(now().wrapping_sub(begun));
        has_come()
    }

    /// The first late event in a row is forgiven: its thread had slept.
    fn took(&mut self, clocks: u64) {
        if clocks < Self::SOON {
            self.failures = 0;
        } else {
            self.failures = Self::MOST_FAILURES.min(self.failures + 1);
            self.skips = (1 << self.failures) - 2;
        }
    }
}

/// Sleeps a millisecond.
pub fn sleep() {
    let tick = [0u64, 1_000_000];
    // SAFETY: only sleeps.
    let _ = unsafe { sys!(k::__NR_nanosleep, tick.as_ptr(), 0) };
}

/// Milliseconds that the system has run.
pub fn clock() -> u64 {
    let mut time = [0u64; 2];
    // SAFETY: fills two numbers.
    let _ = unsafe { sys!(k::__NR_clock_gettime, k::CLOCK_MONOTONIC, &raw mut time) };
    time[0] * 1000 + time[1] / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_looks_in_vain_looks_rarely() {
        let mut looks = Looks::default();
        let mut skipped = Vec::new();
        for _ in 0..10 {
            looks.took(Looks::LONGEST);
            skipped.push(looks.skips);
        }
        assert_eq!(skipped, [0, 2, 6, 14, 30, 62, 126, 254, 254, 254]);
        looks.took(Looks::SOON - 1);
        looks.took(Looks::SOON);
        assert_eq!(looks.skips, 0);
    }
}
