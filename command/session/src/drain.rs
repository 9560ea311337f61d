//! Takes hits out of the threads' rings ring by ring, for readers that need only each thread's own order
//! ([`crate::merge`] brings all hits into one order). It sorts and keeps nothing and hands nothing to another thread,
//! so that the reader is as fast as the writers.

use crate::merge::{FUTURE, Flow, IDLE, SHORT, UNFINISHED};
use crate::source::Source;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use ulpf_lib::ring::{Hit, Progress, Reader, Start};

/// Receiver of hits.
pub trait Sink {
    /// The following hits are of that ring.
    fn ring(&mut self, ring: usize);
    /// The next hit, in the ring's order.
    fn hit(&mut self, hit: Hit);
    /// `lost` hits of the ring were lost after its last hit.
    fn lost(&mut self, ring: usize, lost: u64);
    /// All rings have been read once more; `false` ends the reading.
    fn looked(&mut self) -> bool;
    /// No more hits follow.
    fn end(&mut self);
}

/// Counts of [`drain`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    pub hits: u64,
    pub lost: u64,
    /// As [`crate::merge::Batch::damaged`].
    pub damaged: u64,
}

/// Records that are read from a ring before its writer learns of the room and the next ring is read.
const TURN: usize = 8192;
const PAUSE: Duration = Duration::from_millis(100);

/// Reads until `flow` or the sink ends it.
pub fn drain(source: &impl Source, flow: &Flow, sink: &mut impl Sink) -> Drained {
    let mut reader = Reader::new(Start::First);
    let mut stuck: BTreeMap<usize, Instant> = BTreeMap::new();
    let mut drained = Drained::default();
    let mut last_hit = Instant::now();
    loop {
        let finish = flow.finish.load(Ordering::Acquire);
        source.alive();
        if finish {
            // The program may go on writing to the shared memory for ever.
            reader.finish(source);
        }
        let before = drained.hits;
        let (mut whole, mut room) = (true, true);
        let mut now = source.now();
        for ring in 0..source.rings() {
            if source.head(ring).0 == reader.position(ring) {
                continue;
            }
            sink.ring(ring);
            let mut take = |mut hit: Hit| {
                if hit.time > now {
                    // The hit may be younger than `now`.
                    now = source.now();
                    if hit.time > now.saturating_add(FUTURE) {
                        (hit.time, drained.damaged) = (now, drained.damaged + 1);
                    }
                }
                drained.hits += 1;
                drained.lost = drained.lost.saturating_add(hit.lost);
                sink.hit(hit);
            };
            let mut progress = reader.read(source, ring, TURN, &mut take);
            for _ in 0..TURN {
                if progress != Progress::Unfinished {
                    break;
                }
                let since = stuck.entry(ring).or_insert_with(Instant::now);
                let room = reader.room(source, ring) >= source.slots(ring) / 16;
                if !finish && room && since.elapsed() < UNFINISHED {
                    break;
                }
                reader.skip(ring);
                progress = reader.read(source, ring, TURN, &mut take);
            }
            if progress != Progress::Unfinished && !stuck.is_empty() {
                stuck.remove(&ring);
            }
            whole &= progress == Progress::All;
            room &=
                progress != Progress::More && reader.room(source, ring) >= source.slots(ring) / 2;
            source.has_read(ring, reader.position(ring));
        }
        if finish && whole {
            for ring in 0..source.rings() {
                let lost = reader.lost_at_end(source, ring);
                drained.lost = drained.lost.saturating_add(lost);
                sink.lost(ring, lost);
            }
            sink.looked();
            sink.end();
            return drained;
        }
        if !sink.looked() {
            return drained;
        }
        if drained.hits != before {
            last_hit = Instant::now();
        }
        if finish || !room && drained.hits != before {
            continue;
        }
        if stuck.is_empty() && last_hit.elapsed() > IDLE {
            let any = || reader.any(source) || flow.finish.load(Ordering::Acquire);
            source.wait(any, PAUSE);
        } else {
            std::thread::sleep(SHORT);
        }
    }
}
