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
pub static PATIENCE: AtomicU32 = AtomicU32::new(1 << 12);
/// Nanoseconds that it takes a thread to take a patch out and to put it back, about.
const SWITCH: u64 = 6_000;
/// The same of leaving a body, and coming back by a fault.
const VISIT: u64 = 2_500;
/// An access to a page without guard, in a body.
const MISS: u64 = 2;
/// A reading that is longer has waited for something else.
const LONGEST_REST: u64 = 4_000_000;

/// Nanoseconds of all threads that a rest takes, on the average: written by the stub's task.
static REST: AtomicU64 = AtomicU64::new(0);

/// All threads have rested for this long; so many were on their way before, the one that asked with them.
pub fn rest_took(nanos: u64, threads: u64) {
    let took = nanos.min(LONGEST_REST) * threads;
    let before = REST.load(Relaxed);
    REST.store(
        if before == 0 {
            took
        } else {
            before - before / 8 + took / 8
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
    /// Of so many of a thousand nanoseconds its misses took one, before it went.
    share: AtomicU32,
    /// When the row began (TSC); of whichever thread was last.
    since: AtomicU64,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            times: AtomicU32::new(PATIENCE.load(Relaxed)),
            share: AtomicU32::new(1000),
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
            By::Task => misses * SWITCH >= times * by.nanos(),
            By::Thread | By::Visit => misses >= times,
        }
    }

    /// It goes after so many misses in so many nanoseconds.
    pub fn has_ended(&self, misses: u64, nanos: u64) {
        // A single round says nothing of the time between its misses.
        if misses > IDLE_ROUND.into() {
            let share = misses * MISS * 1000 / nanos.max(1);
            self.share.store(share.clamp(1, 1000) as u32, Relaxed);
        }
    }

    /// Somebody needs the body again, so many nanoseconds later. Had it gone too soon, given what that costs, it stays
    /// for longer; had it been worth it, it goes sooner.
    pub fn learn(&self, away: u64, by: By) {
        let saved = away.saturating_mul(self.share.load(Relaxed).into()) / 1000;
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

    #[test]
    fn who_must_wait_for_others_has_more_patience() {
        let p = Patience::default();
        assert!(p.ends(4096, By::Thread) && !p.ends(4095, By::Thread));
        rest_took(100_000, 3);
        // 606 µs are worth 101 times as many misses as 6 µs.
        assert!(!p.ends(101 * 4096 - 1, By::Task) && p.ends(101 * 4096, By::Task));
        assert!(p.ends(4096, By::Visit));
        for _ in 0..100 {
            rest_took(1_000, 2);
        }
        assert!(p.ends(2 * 4096, By::Task));
    }

    #[test]
    fn what_goes_too_soon_stays_for_longer() {
        let p = Patience::default();
        // Each access is a miss: what it is away is saved.
        p.has_ended(4096, 4096 * MISS);
        p.learn(SWITCH / 3, By::Thread);
        assert!(!p.ends(8191, By::Thread) && p.ends(8192, By::Thread));
        p.learn(2 * SWITCH, By::Thread);
        assert!(!p.ends(4095, By::Thread) && p.ends(4096, By::Thread));
        // A miss in a microsecond: the same time saves little.
        p.has_ended(4096, 4096 * 1000);
        p.learn(2 * SWITCH, By::Thread);
        assert!(!p.ends(8191, By::Thread) && p.ends(8192, By::Thread));
        for _ in 0..20 {
            p.learn(0, By::Thread);
        }
        assert!(p.ends(MOST.into(), By::Thread));
    }
}
