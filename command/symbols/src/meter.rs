//! Limits for reading files of other origin: work, time and depth.
//!
//! Debug information can be crafted so that its readers never end, or nest until the stack overflows. All readers
//! (gimli, addr2line, ours) use [`Slice`](crate::slice::Slice), which applies the limits. When a limit is reached, or a
//! signal tells `ulpf` to end, every further read fails. The reader then returns its results so far.

use std::cell::Cell;
use std::time::Duration;
use ulpf_host::rights::thread_time;
use ulpf_host::signals::{Reading, asked_to_end};

/// Work between two readings of the clock.
const PAUSE: u64 = 1 << 16;

/// Limit of stack use in bytes of recursive readers. Functions that are inlined in each other take a few hundred bytes
/// each; the runtime's threads have two megabytes.
const MOST_STACK: usize = 512 << 10;

/// Base number of steps of any work; one step is about the reading of one number.
const SOME_STEPS: u64 = 20_000_000;

thread_local! {
    /// Steps left.
    static STEPS: Cell<u64> = const { Cell::new(u64::MAX) };
    /// Processor time of the thread at which the work ends.
    static UNTIL: Cell<Duration> = const { Cell::new(Duration::MAX) };
    /// Stack address at the start of the outermost work, or 0 if no work has begun.
    static STACK: Cell<usize> = const { Cell::new(0) };
}

/// A piece of work with limits of its own, which end when it is dropped. Nested work has its own limits.
pub struct Work {
    outer: (u64, Duration, usize),
    _reading: Reading,
}

impl Work {
    /// Work over all of `bytes` of debug information, each read several times at most.
    pub fn through(bytes: u64) -> Work {
        Work::begin(16, bytes, Duration::from_secs(60))
    }

    /// Work for one look-up among `bytes` of debug information.
    pub fn look_up(bytes: u64) -> Work {
        Work::begin(2, bytes, Duration::from_secs(10))
    }

    fn begin(steps_a_byte: u64, bytes: u64, time: Duration) -> Work {
        let outer = (STEPS.get(), UNTIL.get(), STACK.get());
        STEPS.set(SOME_STEPS.saturating_add(bytes.saturating_mul(steps_a_byte)));
        UNTIL.set(thread_time() + time);
        if outer.2 == 0 {
            STACK.set(stack_now());
        }
        Work {
            outer,
            _reading: Reading::begin(),
        }
    }

    /// Whether a limit was reached.
    pub fn is_over(&self) -> bool {
        STEPS.get() == 0
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        STEPS.set(self.outer.0);
        UNTIL.set(self.outer.1);
        STACK.set(self.outer.2);
    }
}

/// Counts work. Returns `false` once the limit is exceeded.
#[inline]
pub fn step(work: u64) -> bool {
    let before = STEPS.get();
    let left = before.saturating_sub(work);
    STEPS.set(left);
    // The clock is read only once in each pause.
    if before / PAUSE != left / PAUSE {
        look_at_the_clock();
    }
    left > 0
}

#[cold]
fn look_at_the_clock() {
    if asked_to_end() || thread_time() > UNTIL.get() {
        STEPS.set(0);
    }
}

/// An address in the caller's frame, or near it.
#[inline(always)]
fn stack_now() -> usize {
    let here = 0u8;
    std::ptr::from_ref(&here).addr()
}

/// Whether there is stack left for recursive readers.
#[inline]
pub fn is_shallow() -> bool {
    let stack = STACK.get();
    stack == 0 || stack.abs_diff(stack_now()) < MOST_STACK
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::Slice;
    use gimli::Reader;

    static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

    fn reads(work: &Work) -> u64 {
        let mut count = 0;
        while Slice::new(&ZEROS).read_u8().is_ok() {
            count += 1;
        }
        assert!(work.is_over());
        count
    }

    #[test]
    fn work_ends() {
        let outer = Work::through(1 << 20);
        let inner = Work::look_up(0);
        assert_eq!(reads(&inner), SOME_STEPS - 1);
        drop(inner);
        assert!(!outer.is_over());
        // The cost of a string is its length.
        let work = Work::look_up(0);
        let mut count = 0;
        while Slice::new(&ZEROS).to_string_lossy().is_ok() {
            count += 1;
        }
        assert!(count < SOME_STEPS / 1000, "{count}");
        drop((work, outer));
        assert!(Slice::new(&ZEROS).read_u8().is_ok());
    }

    #[test]
    fn depth_ends() {
        fn deeper(depth: u64) -> u64 {
            let frame = std::hint::black_box([depth; 16]);
            match Slice::new(&ZEROS).read_u8() {
                Ok(_) => deeper(depth + 1).max(frame[3]),
                Err(_) => depth,
            }
        }
        let _work = Work::look_up(0);
        let depth = deeper(0);
        assert!((100..10_000).contains(&depth), "{depth}");
    }
}
