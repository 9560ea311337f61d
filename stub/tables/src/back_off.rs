//! How long a patch may meet no guard before it is removed.
//!
//! It is removed when its misses have cost as much as its removal and return will. So it loses at most twice as much as
//! an optimal decision with knowledge of the future. That cost depends on the program. The only thread of a program
//! writes the jump itself; several threads all have to stop, which takes many times longer ([`stop_took`]).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use ulpf_engine::patch::IDLE_ROUND;

/// Upper bound of [`BackOff::times`]; the lower bound is [`IDLE_ROUND`].
const MOST: u32 = 1 << 16;
/// Initial [`BackOff::times`] of a patch.
pub static MISSES: AtomicU32 = AtomicU32::new(WORTH as u32);
/// Default of [`MISSES`]: this many misses are worth the cost of removing a patch and putting it back.
const WORTH: u64 = 1 << 12;
/// Approximate nanoseconds for a thread to remove a patch and put it back.
const SWITCH: u64 = 6_000;
/// Approximate nanoseconds to leave a trampoline and come back by a fault.
const VISIT: u64 = 2_500;
/// Nanoseconds of an access to an unguarded page in a trampoline, including its share of the test for idleness.
const MISS: u64 = 3;
/// Upper bound of the misses' share, in nanoseconds of a thousand, whatever was measured.
const MOST_SHARE: u64 = 750;
/// Assumed nanoseconds that a stop costs each thread, before one was measured.
const STOP_OF_ONE: u64 = 30_000;

/// Typical nanoseconds of a stop, summed over all threads; written by the stub's task. 0: not measured yet.
static STOP: AtomicU64 = AtomicU64::new(0);

/// Notes that all threads were stopped for `nanos`; `threads` of them were running before, the requesting one included.
/// A thread that waits for a busy processor waits longer, which says little about the cost. So larger values weigh
/// less.
pub fn stop_took(nanos: u64, threads: u64) {
    let took = nanos * threads;
    let before = match STOP.load(Relaxed) {
        0 => STOP_OF_ONE * threads,
        before => before,
    };
    STOP.store(
        match took < before {
            true => before - (before - took) / 4,
            false => before + (took - before).min(before) / 16,
        },
        Relaxed,
    );
}

/// How a patch is taken out and put back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The only thread of the program does it.
    Thread,
    /// The stub's task does it, while all threads are stopped.
    Task,
    /// The jump stays out: a thread leaves the trampoline and comes back by a fault.
    Visit,
}

impl By {
    /// Its cost.
    fn nanos(self) -> u64 {
        match self {
            By::Thread => SWITCH,
            By::Task => SWITCH + 2 * STOP.load(Relaxed),
            By::Visit => VISIT,
        }
    }
}

/// Back-off of one patch.
pub struct BackOff {
    /// Accesses to pages without guard, in a row, that are worth [`SWITCH`].
    times: AtomicU32,
    /// The misses' share before the patch was removed, in nanoseconds of a thousand.
    share: AtomicU32,
    /// When the row of misses began (TSC), for the thread that was last.
    since: AtomicU64,
}

impl Default for BackOff {
    fn default() -> BackOff {
        BackOff {
            times: AtomicU32::new(MISSES.load(Relaxed)),
            share: AtomicU32::new(500),
            since: AtomicU64::new(0),
        }
    }
}

impl BackOff {
    /// Notes that a row of misses begins.
    pub fn begins(&self, tsc: u64) {
        self.since.store(tsc, Relaxed);
    }
    pub fn since(&self) -> u64 {
        self.since.load(Relaxed)
    }

    /// Returns whether this many misses in a row are enough.
    pub fn ends(&self, misses: u64, by: By) -> bool {
        let times = u64::from(self.times.load(Relaxed));
        match by {
            By::Task => misses * MISS * WORTH >= times * by.nanos(),
            By::Thread | By::Visit => misses >= times,
        }
    }

    /// Notes that the patch is removed after `misses` in `nanos`.
    pub fn has_ended(&self, misses: u64, nanos: u64) {
        // A single round says nothing of the time between its misses.
        if misses > IDLE_ROUND.into() {
            let share = misses * MISS * 1000 / nanos.max(1);
            self.share.store(share.clamp(1, MOST_SHARE) as u32, Relaxed);
        }
    }

    /// Notes that the trampoline is needed again, after `away` nanoseconds. If it was removed too soon for that cost,
    /// it stays longer next time; if the removal paid off, it is removed sooner.
    pub fn learn(&self, away: u64, by: By) {
        // Code that takes a nanosecond without the misses took this much longer with them.
        let share = u64::from(self.share.load(Relaxed));
        let saved = away.saturating_mul(share) / (1000 - share);
        let (cost, times) = (by.nanos(), self.times.load(Relaxed));
        let times = if saved < cost / 2 {
            times * 2
        } else if saved > cost {
            times / 2
        } else {
            times
        };
        self.times.store(times.clamp(IDLE_ROUND, MOST), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This many misses in a row are enough, and one less is not.
    fn assert_ends(p: &BackOff, misses: u64, by: By) {
        assert!(p.ends(misses, by) && !p.ends(misses - 1, by));
    }

    #[test]
    fn a_patch_that_needs_a_stop_is_kept_longer() {
        let p = BackOff::default();
        assert_ends(&p, WORTH, By::Thread);
        for _ in 0..100 {
            stop_took(100_000, 3);
        }
        // 606 µs, at 3 ns.
        assert!(p.ends(202_000, By::Task) && !p.ends(195_000, By::Task));
        // A stop that took a millisecond longer hardly changes the estimate.
        stop_took(1_000_000, 3);
        assert!(p.ends(220_000, By::Task));
        assert_ends(&p, WORTH, By::Visit);
        for _ in 0..100 {
            stop_took(1_000, 2);
        }
        assert!(p.ends(2 * WORTH, By::Task));
    }

    #[test]
    fn what_goes_too_soon_stays_for_longer() {
        let p = BackOff::default();
        // Half of the time are misses: as much is saved as it is away.
        p.has_ended(WORTH, WORTH * 2 * MISS);
        p.learn(SWITCH / 3, By::Thread);
        assert_ends(&p, 2 * WORTH, By::Thread);
        p.learn(2 * SWITCH, By::Thread);
        assert_ends(&p, WORTH, By::Thread);
        // Nearly all of it: more is saved than that.
        p.has_ended(WORTH, WORTH * MISS);
        p.learn(SWITCH / 3, By::Thread);
        assert_ends(&p, WORTH, By::Thread);
        // A miss in a microsecond: nearly nothing.
        p.has_ended(WORTH, WORTH * 1000);
        p.learn(2 * SWITCH, By::Thread);
        assert_ends(&p, 2 * WORTH, By::Thread);
        for _ in 0..20 {
            p.learn(0, By::Thread);
        }
        assert_ends(&p, MOST.into(), By::Thread);
    }
}
