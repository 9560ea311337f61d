//! For how long a patch may meet no guard before it goes.
//!
//! It goes when its misses have cost what its way out and back will, so that at most twice as much is lost as by
//! whoever knows the future. What that is depends: the only thread of a program writes the jump itself, while of
//! several all have to rest, for many times longer ([`rest_took`]).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use ulpf_engine::patch::IDLE_ROUND;

/// Bounds of [`Patience::times`] are [`IDLE_ROUND`] and this.
const MOST: u32 = 1 << 16;
/// What it begins with.
pub static PATIENCE: AtomicU32 = AtomicU32::new(WORTH as u32);
/// [`Patience::times`] at first: so many are worth what a patch costs that goes and comes back.
const WORTH: u64 = 1 << 12;
/// Nanoseconds that it takes a thread to take a patch out and to put it back, about.
const SWITCH: u64 = 6_000;
/// The same of leaving a body, and coming back by a fault.
const VISIT: u64 = 2_500;
/// An access to a page without guard, in a body, with its part of what asks whether it is enough.
const MISS: u64 = 3;
/// Of a thousand nanoseconds misses take no more than this, for all that can be said.
const MOST_SHARE: u64 = 750;
/// What a rest is taken to cost each thread before one was measured.
const REST_OF_ONE: u64 = 30_000;

/// Nanoseconds of all threads that a rest takes, as a rule: written by the stub's task. 0: nobody knows.
static REST: AtomicU64 = AtomicU64::new(0);

/// All threads have rested for this long; so many were on their way before, the one that asked with them. Who waits for
/// a processor that others have waits longer, and that says little: it is more that counts for little.
pub fn rest_took(nanos: u64, threads: u64) {
    let took = nanos * threads;
    let before = match REST.load(Relaxed) {
        0 => REST_OF_ONE * threads,
        before => before,
    };
    REST.store(
        match took < before {
            true => before - (before - took) / 4,
            false => before + (took - before).min(before) / 16,
        },
        Relaxed,
    );
}

/// Who takes a patch out, and puts it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The only thread that there is.
    Thread,
    /// The stub's task, while all rest.
    Task,
    /// Nobody: a thread leaves the body and comes back by a fault.
    Visit,
}

impl By {
    /// What it costs.
    fn nanos(self) -> u64 {
        match self {
            By::Thread => SWITCH,
            By::Task => SWITCH + 2 * REST.load(Relaxed),
            By::Visit => VISIT,
        }
    }
}

/// A patch's.
pub struct Patience {
    /// Accesses to pages without guard, in a row, that are worth [`SWITCH`].
    times: AtomicU32,
    /// So many of a thousand nanoseconds its misses took, before it went.
    share: AtomicU32,
    /// When the row began (TSC); of whichever thread was last.
    since: AtomicU64,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            times: AtomicU32::new(PATIENCE.load(Relaxed)),
            share: AtomicU32::new(500),
            since: AtomicU64::new(0),
        }
    }
}

impl Patience {
    /// A row of misses begins.
    pub fn begins(&self, tsc: u64) {
        self.since.store(tsc, Relaxed);
    }
    pub fn since(&self) -> u64 {
        self.since.load(Relaxed)
    }

    /// Are so many misses in a row enough?
    pub fn ends(&self, misses: u64, by: By) -> bool {
        let times = u64::from(self.times.load(Relaxed));
        match by {
            By::Task => misses * MISS * WORTH >= times * by.nanos(),
            By::Thread | By::Visit => misses >= times,
        }
    }

    /// It goes after so many misses in so many nanoseconds.
    pub fn has_ended(&self, misses: u64, nanos: u64) {
        // A single round says nothing of the time between its misses.
        if misses > IDLE_ROUND.into() {
            let share = misses * MISS * 1000 / nanos.max(1);
            self.share.store(share.clamp(1, MOST_SHARE) as u32, Relaxed);
        }
    }

    /// Somebody needs the body again, so many nanoseconds later. Had it gone too soon, given what that costs, it stays
    /// for longer; had it been worth it, it goes sooner.
    pub fn learn(&self, away: u64, by: By) {
        // What takes a nanosecond without them took so much longer with them.
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

    /// So many misses in a row are enough, and no less.
    fn assert_ends(p: &Patience, misses: u64, by: By) {
        assert!(p.ends(misses, by) && !p.ends(misses - 1, by));
    }

    #[test]
    fn who_must_wait_for_others_has_more_patience() {
        let p = Patience::default();
        assert_ends(&p, WORTH, By::Thread);
        for _ in 0..100 {
            rest_took(100_000, 3);
        }
        // 606 µs, at 3 ns.
        assert!(p.ends(202_000, By::Task) && !p.ends(195_000, By::Task));
        // One that took a millisecond longer is no rule.
        rest_took(1_000_000, 3);
        assert!(p.ends(220_000, By::Task));
        assert_ends(&p, WORTH, By::Visit);
        for _ in 0..100 {
            rest_took(1_000, 2);
        }
        assert!(p.ends(2 * WORTH, By::Task));
    }

    #[test]
    fn what_goes_too_soon_stays_for_longer() {
        let p = Patience::default();
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
