//! Times of hits: converts the time-stamp counter to time since the start.

use std::time::{Duration, Instant};
use ulpf_host::sys;

/// Two readings of both clocks this far apart give the counter's rate to better than 0.1 per mille.
const BASELINE: Duration = Duration::from_millis(10);

/// The first reading.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    at: Instant,
    tsc: u64,
}

/// The clock with a known rate; from here on times never decrease.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    tsc: u64,
    /// Nanoseconds per count, times 2^32.
    rate: u64,
}

impl Start {
    pub fn now() -> Start {
        Start {
            at: Instant::now(),
            tsc: sys::tsc(),
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }

    /// Takes the second reading, after at least [`BASELINE`].
    pub fn clock(&self) -> Clock {
        std::thread::sleep(BASELINE.saturating_sub(self.elapsed()));
        let (nanos, counts) = (self.elapsed().as_nanos(), sys::tsc().wrapping_sub(self.tsc));
        Clock {
            tsc: self.tsc,
            rate: ((nanos << 32) / u128::from(counts.max(1))) as u64,
        }
    }
}

impl Clock {
    /// The counter at the start, and nanoseconds per count, times 2^32.
    pub fn of_log(&self) -> (u64, u64) {
        (self.tsc, self.rate)
    }

    /// Nanoseconds from the start to a reading of the counter.
    pub fn nanos(&self, tsc: u64) -> u64 {
        // Readings before the start do not happen, except on a slightly skewed core.
        let counts = tsc.wrapping_sub(self.tsc) as i64;
        ((counts.max(0) as u128 * u128::from(self.rate)) >> 32) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_system() {
        let start = Start::now();
        let clock = start.clock();
        std::thread::sleep(Duration::from_millis(30));
        // The thread may lose the processor between two readings, so the counter's is only between two of the system's.
        let before = start.elapsed().as_nanos() as u64;
        let counter = clock.nanos(sys::tsc());
        let after = start.elapsed().as_nanos() as u64;
        let agree = before - before / 100..=after + after / 100;
        assert!(agree.contains(&counter), "{counter} is not in {agree:?}");
        assert_eq!(clock.nanos(start.tsc - 5), 0);
    }
}
