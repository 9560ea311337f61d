//! Takes hits out of the shared ring as fast as they come, so that a pause of the log (symbols being
//! read, a slow terminal) costs memory first and hits only when that is used up.
//!
//! ```text
//!   program threads ──tickets──▶ ring (65,536 records) ──▶ Reader::read ──Batch──▶ Log
//! ```

use crate::inject::{HitRead, SharedArea};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use ulpf_lib::ring::{HitRecord, RING_RECORDS};

/// Hits in the order of their tickets.
pub struct Batch {
    /// Overwritten in the ring before they could be read, just before these.
    pub lost: u64,
    pub hits: Vec<HitRecord>,
    _held: Held,
}

/// Where hits are read from.
pub trait Source {
    /// Tickets handed out so far.
    fn tickets(&self) -> u64;
    fn hit(&self, ticket: u64) -> HitRead;
    /// Until there are more than `seen` tickets, at most for `limit`.
    fn wait(&self, seen: u64, limit: Duration);
}

impl Source for SharedArea {
    fn tickets(&self) -> u64 {
        self.header().tickets()
    }
    fn hit(&self, ticket: u64) -> HitRead {
        SharedArea::hit(self, ticket)
    }
    fn wait(&self, seen: u64, limit: Duration) {
        self.wait_for_hit(seen, limit);
    }
}

/// Shared by the reader's thread and the log.
#[derive(Clone, Default)]
pub struct Flow {
    /// The program has ended: read what is there and finish.
    pub finish: Arc<AtomicBool>,
    /// Hits on their way to the log.
    held: Arc<AtomicUsize>,
}

/// Gives its hits back to the budget when dropped.
struct Held(Arc<AtomicUsize>, usize);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

const BATCH: usize = 1024;
/// At most so many hits wait for the log (320 bytes each); then the ring has to hold them.
const MOST_HELD: usize = 1 << 19;
/// How far a reader that was lapped stays ahead of the writers.
const HEADROOM: u64 = RING_RECORDS / 16;
const PAUSE: Duration = Duration::from_millis(10);
/// Between two looks at a record whose writer has not finished.
const SHORT: Duration = Duration::from_millis(1);

/// Reads until told to finish; `send` returns `false` when nobody listens any more.
pub fn read(source: &impl Source, flow: &Flow, mut send: impl FnMut(Batch) -> bool) {
    let (mut next, mut lost) = (0, 0);
    let mut hits = Vec::new();
    loop {
        let finish = flow.finish.load(Ordering::Acquire);
        let head = source.tickets();
        let mut unfinished = false;
        while next < head && hits.len() < BATCH {
            match source.hit(next) {
                HitRead::Hit(hit) => {
                    hits.push(*hit);
                    next += 1;
                }
                HitRead::Lost if !hits.is_empty() => break,
                HitRead::Lost => {
                    // Lapped: go to where there is some room before the writers again.
                    let oldest = (source.tickets() + HEADROOM).saturating_sub(RING_RECORDS);
                    let skipped = oldest.min(head).saturating_sub(next).max(1);
                    next += skipped;
                    lost += skipped;
                }
                // Its writer may have lost the processor, or been stopped by a signal: it is waited for
                // as long as the ring has room for the others. After the end nobody writes any more.
                HitRead::NotYet => {
                    unfinished = !finish && head - next < RING_RECORDS - HEADROOM;
                    if unfinished || !hits.is_empty() {
                        break;
                    }
                    next += 1;
                    lost += 1;
                }
            }
        }
        let done = finish && next >= head;
        if !hits.is_empty() || done && lost > 0 {
            flow.held.fetch_add(hits.len(), Ordering::Relaxed);
            let _held = Held(flow.held.clone(), hits.len());
            let batch = Batch {
                lost: std::mem::take(&mut lost),
                hits: std::mem::take(&mut hits),
                _held,
            };
            if !send(batch) {
                return;
            }
        }
        if done {
            return;
        }
        while flow.held.load(Ordering::Relaxed) > MOST_HELD {
            std::thread::sleep(Duration::from_millis(1));
        }
        if next >= head {
            source.wait(next, PAUSE);
        } else if unfinished {
            std::thread::sleep(SHORT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::time::Instant;

    /// Tickets below `lost` are overwritten; those in `missing` do not come, or not before then.
    struct Fake {
        tickets: u64,
        lost: u64,
        missing: Vec<u64>,
        then: Then,
        flow: Flow,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Then {
        /// The program ends when one of them is looked for.
        Ends,
        GoesOn,
        /// They come at last.
        Come(Instant),
    }

    impl Source for Fake {
        fn tickets(&self) -> u64 {
            self.tickets
        }
        fn hit(&self, ticket: u64) -> HitRead {
            match ticket {
                t if t < self.lost => HitRead::Lost,
                t if self.missing.contains(&t)
                    && !matches!(self.then, Then::Come(when) if Instant::now() >= when) =>
                {
                    let ends = self.then == Then::Ends;
                    self.flow.finish.fetch_or(ends, Ordering::Release);
                    HitRead::NotYet
                }
                t => HitRead::Hit(Box::new(HitRecord {
                    seq: AtomicU64::new(t + 1),
                    watch: t as u32,
                    tid: 0,
                    time: 0,
                    pc: 0,
                    addr: 0,
                    len: 0,
                    kind: 2,
                    flags: 0,
                    frames_len: 0,
                    value_len: 0,
                    syscall: 0,
                    reserved: 0,
                    reserved2: 0,
                    old: [0; 32],
                    new: [0; 32],
                    frames: [0; 16],
                    args: [0; 6],
                    result: 0,
                    reserved3: 0,
                })),
            }
        }
        fn wait(&self, _: u64, _: Duration) {
            self.flow.finish.store(true, Ordering::Release);
        }
    }

    fn run(tickets: u64, lost: u64, missing: Vec<u64>) -> (Vec<u32>, u64) {
        run_on(tickets, lost, missing, Then::Ends)
    }

    fn run_on(tickets: u64, lost: u64, missing: Vec<u64>, then: Then) -> (Vec<u32>, u64) {
        let flow = Flow::default();
        let source = Fake {
            tickets,
            lost,
            missing,
            then,
            flow: flow.clone(),
        };
        let (mut seen, mut lost) = (Vec::new(), 0);
        read(&source, &flow, |batch| {
            seen.extend(batch.hits.iter().map(|h| h.watch));
            lost += batch.lost;
            true
        });
        assert_eq!(flow.held.load(Ordering::Relaxed), 0);
        (seen, lost)
    }

    #[test]
    fn everything_in_order() {
        assert_eq!(run(3000, 0, vec![]), ((0..3000).collect(), 0));
        assert_eq!(run(0, 0, vec![]), (vec![], 0));
    }

    #[test]
    fn losses_are_counted_exactly() {
        for (tickets, gone) in [(100, 3), (200_000, 140_000), (5, 5)] {
            let (seen, lost) = run(tickets, gone, vec![]);
            assert_eq!(seen.len() as u64 + lost, tickets);
            assert!(lost >= gone);
        }
    }

    #[test]
    fn a_writer_that_died_holds_nobody_up() {
        assert_eq!(run(6, 0, vec![2, 5]), (vec![0, 1, 3, 4], 2));
    }

    #[test]
    fn a_writer_that_was_stopped_is_waited_for() {
        let late = Then::Come(Instant::now() + Duration::from_millis(100));
        assert_eq!(run_on(6, 0, vec![2, 5], late), ((0..6).collect(), 0));
    }

    #[test]
    fn but_not_until_the_ring_is_full() {
        let (seen, lost) = run_on(RING_RECORDS, 0, vec![0], Then::GoesOn);
        assert_eq!((seen.len() as u64, lost), (RING_RECORDS - 1, 1));
    }
}
