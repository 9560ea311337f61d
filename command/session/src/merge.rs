//! Takes hits out of the threads' rings as they come. A pause of the log (reading of symbols, a slow terminal) first
//! costs memory, and costs hits only when the limit is reached.
//!
//! ```text
//!     a thread ──▶ its ring ──┐
//!     a thread ──▶ its ring ──┼─ each as far as it goes ─▶ in order of time, up to the horizon ─Batch─▶ Log
//!     a thread ──▶ its ring ──┘                            (the rest waits for the next look)
//! ```
//! The **horizon** is the moment at which a look began. A writer first takes room in its ring and then reads the clock.
//! So a writer that has taken no room by then will write a younger record, and all older ones have been seen. Only an
//! incomplete record, or a ring that one look does not exhaust, moves the horizon back. Within one thread the order is
//! that of the ring, whatever the clock says.
//!
//! A program can write anything to its rings. One ring must not keep the others' hits back for ever, nor make us
//! collect them without bound:
//!
//! - a time in the future is replaced ([`Batch::damaged`]);
//! - the horizon advances after a while, whatever holds it back;
//! - a look ends when enough hits are waiting.

pub use crate::source::Source;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use ulpf_lib::ring::{Hit, Progress, Reader, Start};

/// Hits in the order of their times; each gives the number of its thread's hits that were lost before it.
pub struct Batch {
    /// Oldest first.
    pub hits: Vec<Hit>,
    /// Hits lost after the last one.
    pub lost: u64,
    /// Hits whose time was still to come when they were read: the program has overwritten its ring. `hits` contains
    /// them, with the time at which they were read.
    pub damaged: u64,
    _held: Charged,
}

/// Shared by the reader's thread and the log.
#[derive(Clone, Default)]
pub struct Flow {
    /// The program has ended: read the remaining hits and finish.
    pub finish: Arc<AtomicBool>,
    /// Hits that have been sent and not yet dropped.
    held: Arc<AtomicUsize>,
}

/// Returns its hits to the budget when dropped.
struct Charged(Arc<AtomicUsize>, usize);

impl Drop for Charged {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

const BATCH: usize = 1024;
/// Limit of the hits that wait for the log (some 150 bytes each); further hits stay in the rings.
const MOST_HELD: usize = 1 << 19;
/// Records that one look takes, of all threads together, but at least `LEAST` of each.
const LOOK: usize = 1 << 17;
const LEAST: usize = 64;
/// Pause between two looks while hits come.
pub(crate) const SHORT: Duration = Duration::from_millis(1);
/// After this time without a hit, the reader sleeps until it is woken.
pub(crate) const IDLE: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_millis(250);
/// An incomplete record holds all rings up for at most this long, if they have room. (Its thread may have lost the
/// processor, or been stopped.)
pub(crate) const UNFINISHED: Duration = Duration::from_secs(2);
/// The same limit for any other cause, after this many looks: more than are needed to read a ring from beginning to
/// end.
const LOOKS: u32 = 1024;
/// Allowance for stores that other processors do not see yet and for clocks that differ a little, in TSC counts.
const MARGIN: u64 = 30_000;
/// A time this far ahead of our own clock (some tens of milliseconds) is no difference between clocks.
pub(crate) const FUTURE: u64 = 100_000_000;

/// Hits that have been read and not yet sent.
#[derive(Default)]
struct Waiting {
    /// Each with the time by which it is ordered.
    hits: Vec<(u64, Hit)>,
    /// By ring: the latest of those times.
    latest: Vec<u64>,
    /// Rings at an incomplete record, and since when.
    stuck: BTreeMap<usize, Instant>,
    horizon: u64,
    /// Lower bound of the horizon, whatever a ring holds.
    floor: Floor,
    /// First ring of the next look: a ring that always has more must not keep us from the others.
    first: usize,
    damaged: u64,
    /// The last look has found hits.
    progress: bool,
}

/// The horizon as it was some looks ago, if no ring had held it back.
#[derive(Default)]
struct Floor {
    at: u64,
    next: u64,
    looks: u32,
    since: Option<Instant>,
}

impl Floor {
    /// A look begins at `now`.
    fn look(&mut self, now: u64) {
        self.looks += 1;
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.looks > LOOKS && since.elapsed() > UNFINISHED {
            *self = Floor {
                at: self.next,
                next: now,
                looks: 0,
                since: None,
            };
        }
    }
}

/// Reads until told to finish; `send` returns `false` when the receiver is gone.
pub fn read(source: &impl Source, flow: &Flow, mut send: impl FnMut(Batch) -> bool) {
    let mut reader = Reader::new(Start::First);
    let mut waiting = Waiting::default();
    let mut last_hit = Instant::now();
    loop {
        let finish = flow.finish.load(Ordering::Acquire);
        source.alive();
        if finish {
            // The program may go on writing to the shared memory for ever.
            reader.finish(source);
        }
        let before = waiting.hits.len();
        let whole = waiting.look(&mut reader, source, finish);
        let done = finish && whole;
        let lost = match done {
            true => (0..source.rings())
                .map(|n| reader.lost_at_end(source, n))
                .fold(0, u64::saturating_add),
            false => 0,
        };
        if waiting.hits.len() != before {
            last_hit = Instant::now();
        }
        if !waiting.hand_on(flow, done, lost, &mut send) || done {
            return;
        }
        while flow.held.load(Ordering::Relaxed) > MOST_HELD {
            source.alive();
            std::thread::sleep(SHORT);
        }
        if finish || !whole && waiting.stuck.is_empty() && waiting.progress {
            continue;
        }
        if waiting.hits.is_empty() && waiting.stuck.is_empty() && last_hit.elapsed() > IDLE {
            let any = || reader.any(source) || flow.finish.load(Ordering::Acquire);
            source.wait(any, PAUSE);
            last_hit = Instant::now();
        } else {
            std::thread::sleep(SHORT);
        }
    }
}

impl Waiting {
    /// Reads the available hits; `true` if all were read.
    fn look(&mut self, reader: &mut Reader, source: &impl Source, finish: bool) -> bool {
        let horizon = match finish {
            true => u64::MAX,
            false => source.now().saturating_sub(MARGIN),
        };
        let rings = source.rings();
        if self.latest.len() < rings {
            self.latest.resize(rings, 0);
        }
        let most = (LOOK / rings.max(1)).max(LEAST);
        // After this time there may be hits that this look has not seen.
        let mut safe = horizon;
        let mut whole = true;
        let mut now = source.now();
        let (before, first) = (self.hits.len(), self.first);
        self.first = self.first.wrapping_add(1);
        for n in 0..rings {
            let ring = (first % rings + n) % rings;
            let full = self.hits.len() >= MOST_HELD;
            let (hits, latest) = (&mut self.hits, Cell::from_mut(&mut self.latest[ring]));
            if full {
                (safe, whole) = (safe.min(latest.get()), false);
                continue;
            }
            let damaged = &mut self.damaged;
            let mut take = |mut hit: Hit| {
                if hit.time > now {
                    // The hit may be younger than `now`.
                    now = source.now();
                    if hit.time > now.saturating_add(FUTURE) {
                        (hit.time, *damaged) = (now, *damaged + 1);
                    }
                }
                let time = hit.time.min(now.saturating_add(MARGIN));
                latest.set(latest.get().max(time));
                hits.push((latest.get(), hit));
            };
            let mut progress = reader.read(source, ring, most, &mut take);
            for _ in 0..most {
                if progress != Progress::Unfinished {
                    break;
                }
                let since = self.stuck.entry(ring).or_insert_with(Instant::now);
                let room = reader.room(source, ring) >= source.slots(ring) / 16;
                // After the end of the program no thread completes the record.
                if !finish && room && since.elapsed() < UNFINISHED {
                    break;
                }
                reader.skip(ring);
                progress = reader.read(source, ring, most, &mut take);
            }
            match progress {
                Progress::Unfinished => safe = safe.min(self.horizon),
                Progress::More => safe = safe.min(latest.get()),
                Progress::All => {}
            }
            if progress != Progress::Unfinished && !self.stuck.is_empty() {
                self.stuck.remove(&ring);
            }
            whole &= progress == Progress::All;
            source.has_read(ring, reader.position(ring));
        }
        self.floor.look(horizon);
        if self.hits.len() >= MOST_HELD {
            // So the hits are sent in the order in which they came.
            safe = horizon;
        }
        self.horizon = safe.max(self.floor.at).max(self.horizon);
        self.progress = self.hits.len() != before;
        whole
    }

    /// Sends the hits older than the horizon; `false` if the receiver is gone.
    fn hand_on(
        &mut self,
        flow: &Flow,
        done: bool,
        mut lost: u64,
        send: &mut impl FnMut(Batch) -> bool,
    ) -> bool {
        self.hits.sort_by_key(|(time, _)| *time);
        let ready = match done {
            true => self.hits.len(),
            false => self.hits.partition_point(|(time, _)| *time <= self.horizon),
        };
        let mut ready = self.hits.drain(..ready).map(|(_, hit)| hit);
        loop {
            let hits: Vec<Hit> = ready.by_ref().take(BATCH).collect();
            let end = ready.len() == 0;
            let lost = if end { std::mem::take(&mut lost) } else { 0 };
            if !hits.is_empty() || lost > 0 {
                flow.held.fetch_add(hits.len(), Ordering::Relaxed);
                let _held = Charged(flow.held.clone(), hits.len());
                let damaged = std::mem::take(&mut self.damaged);
                let batch = Batch {
                    hits,
                    lost,
                    damaged,
                    _held,
                };
                if !send(batch) {
                    return false;
                }
            }
            if end {
                return true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use ulpf_lib::ring::{Entry, Ring, RingHead, Rings, SLOT_WORDS};

    const SLOTS: usize = 1 << 12;

    /// Rings in our own memory. When the reader waits for more, it has read everything, and the program ends.
    struct Fake {
        heads: Vec<RingHead>,
        words: Vec<Vec<AtomicU64>>,
        now: AtomicU64,
        flow: Flow,
        ends: bool,
        waited: AtomicBool,
    }

    impl Fake {
        fn new(rings: usize, ends: bool) -> Fake {
            let words = || (0..SLOTS * SLOT_WORDS).map(|_| AtomicU64::new(0)).collect();
            Fake {
                heads: (0..rings).map(|_| RingHead::default()).collect(),
                words: (0..rings).map(|_| words()).collect(),
                now: AtomicU64::new(1 << 40),
                flow: Flow::default(),
                ends,
                waited: AtomicBool::new(false),
            }
        }
        fn write(&self, ring: usize, time: u64, watch: u32) {
            let entry = Entry {
                pc: 0,
                addr: 0,
                len: 4,
                watch,
                tid: ring as u32,
                kind: 2,
                flags: 0,
                old: &[0; 4],
                new: &[0; 4],
                inside: 0,
                call: None,
                frames: &[],
            };
            Ring::new(&self.heads[ring], &self.words[ring]).write(&entry, || time);
        }
        /// A writer that has taken room and does not write.
        fn begin(&self, ring: usize) {
            self.heads[ring].taken.fetch_add(1, Ordering::Relaxed);
            self.heads[ring].records.fetch_add(1, Ordering::Relaxed);
        }
        fn end(&self) {
            self.flow.finish.store(true, Ordering::Release);
        }
        /// The watches of the hits in order, and the number of lost hits.
        fn read(&self) -> (Vec<u32>, u64) {
            let (mut seen, mut lost) = (Vec::new(), 0);
            read(self, &self.flow, |batch| {
                lost += batch.lost;
                for hit in &batch.hits {
                    lost += hit.lost;
                    seen.push(hit.watch);
                }
                true
            });
            assert_eq!(self.flow.held.load(Ordering::Relaxed), 0);
            (seen, lost)
        }
    }

    impl Rings for Fake {
        fn rings(&self) -> usize {
            self.heads.len()
        }
        fn slots(&self, _: usize) -> u64 {
            SLOTS as u64
        }
        fn head(&self, ring: usize) -> (u64, u64) {
            let h = &self.heads[ring];
            let taken = h.taken.load(Ordering::Acquire);
            (taken, h.records.load(Ordering::Relaxed))
        }
        fn copy(&self, ring: usize, slot: u64, to: &mut [u64]) -> bool {
            let from = &self.words[ring][slot as usize * SLOT_WORDS..];
            for (to, from) in to.iter_mut().zip(from) {
                *to = from.load(Ordering::Acquire);
            }
            true
        }
    }

    impl Source for Fake {
        fn now(&self) -> u64 {
            self.now.load(Ordering::Relaxed)
        }
        fn wait(&self, any: impl Fn() -> bool, _: Duration) {
            self.waited.store(true, Ordering::Relaxed);
            if self.ends && !any() {
                self.end();
            }
        }
    }

    #[test]
    fn everything_in_order() {
        let fake = Fake::new(3, true);
        assert_eq!(fake.read(), (vec![], 0));
        let fake = Fake::new(3, true);
        for n in 0..3000 {
            fake.write(n as usize * 7 % 3, 1000 + n, n as u32);
        }
        assert_eq!(fake.read(), ((0..3000).collect(), 0));
        assert!(fake.waited.into_inner());
    }

    #[test]
    fn a_thread_is_in_its_own_order_even_if_its_clock_steps_back() {
        let fake = Fake::new(2, true);
        for (time, watch) in [(100, 0), (300, 2), (200, 3), (400, 5)] {
            fake.write(0, time, watch);
        }
        fake.write(1, 150, 1);
        fake.write(1, 350, 4);
        assert_eq!(fake.read(), ((0..6).collect(), 0));
    }

    #[test]
    fn what_is_younger_than_the_look_waits_for_the_next() {
        let fake = Fake::new(2, true);
        let now = fake.now();
        fake.write(0, now + 5, 2);
        fake.write(1, now - 2 * MARGIN, 0);
        let (mut waiting, mut reader) = (Waiting::default(), Reader::new(Start::First));
        let mut seen = Vec::new();
        let mut send = |batch: Batch| {
            seen.extend(batch.hits.iter().map(|h| h.watch));
            true
        };
        assert!(waiting.look(&mut reader, &fake, false));
        assert!(waiting.hand_on(&fake.flow, false, 0, &mut send));
        // This hit has an earlier time than the other, and is seen later.
        fake.write(1, now + 1, 1);
        fake.now.store(now + 10 * MARGIN, Ordering::Relaxed);
        assert!(waiting.look(&mut reader, &fake, false));
        assert!(waiting.hand_on(&fake.flow, false, 0, &mut send));
        assert_eq!(seen, [0, 1, 2]);
    }

    #[test]
    fn losses_are_counted_exactly() {
        let fake = Fake::new(2, true);
        for n in 0..SLOTS as u32 * 3 {
            fake.write(0, n.into(), n);
        }
        fake.write(1, 5, 5);
        let (seen, lost) = fake.read();
        assert_eq!(seen.len() as u64 + lost, SLOTS as u64 * 3 + 1);
        assert!(lost as usize >= SLOTS * 2 && seen.len() > SLOTS / 2);
    }

    #[test]
    fn more_than_one_look_can_hold() {
        let rings = LOOK / LEAST * 2;
        let fake = Fake::new(2, true);
        let fake = Fake {
            words: (0..rings)
                .map(|_| {
                    (0..SLOTS * SLOT_WORDS / 16)
                        .map(|_| AtomicU64::new(0))
                        .collect()
                })
                .collect(),
            heads: (0..rings).map(|_| RingHead::default()).collect(),
            ..fake
        };
        for n in 0..200 {
            fake.write(n % 2, n as u64, n as u32);
        }
        assert_eq!(fake.read(), ((0..200).collect(), 0));
    }

    #[test]
    fn a_writer_that_died_holds_nobody_up() {
        let fake = Fake::new(2, false);
        fake.write(0, 1, 0);
        fake.begin(0);
        fake.write(0, 3, 2);
        fake.write(1, 2, 1);
        fake.begin(1);
        fake.end();
        assert_eq!(fake.read(), ((0..3).collect(), 2));
    }

    #[test]
    fn a_writer_that_was_stopped_is_waited_for() {
        let fake = Fake::new(1, true);
        fake.begin(0);
        fake.write(0, 2, 1);
        std::thread::scope(|s| {
            s.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                // A second write at the same place completes the missing record.
                let (taken, records) = fake.head(0);
                fake.heads[0].taken.store(0, Ordering::Relaxed);
                fake.heads[0].records.store(0, Ordering::Relaxed);
                fake.write(0, 1, 0);
                fake.heads[0].records.store(records, Ordering::Relaxed);
                fake.heads[0].taken.store(taken, Ordering::Release);
            });
            assert_eq!(fake.read(), (vec![0, 1], 0));
        });
    }

    #[test]
    fn but_not_until_the_ring_is_full() {
        let fake = Fake::new(1, true);
        fake.begin(0);
        for n in 1..SLOTS as u32 {
            fake.write(0, n.into(), n);
        }
        // The first look skips it.
        let (mut waiting, mut reader) = (Waiting::default(), Reader::new(Start::First));
        waiting.look(&mut reader, &fake, false);
        assert_eq!(waiting.hits.len(), SLOTS - 1);
        assert_eq!(fake.read(), ((1..SLOTS as u32).collect(), 1));
    }

    /// Looks once, long enough after the last look; returns the watches of the hits that are sent.
    fn look(fake: &Fake, waiting: &mut Waiting, reader: &mut Reader) -> Vec<u32> {
        fake.now.fetch_add(10 * MARGIN, Ordering::Relaxed);
        waiting.look(reader, fake, false);
        let mut seen = Vec::new();
        waiting.hand_on(&fake.flow, false, 0, &mut |batch: Batch| {
            seen.extend(batch.hits.iter().map(|h| h.watch));
            true
        });
        seen
    }

    #[test]
    fn a_time_that_has_not_come_withholds_nothing() {
        let fake = Fake::new(2, false);
        let (mut waiting, mut reader) = (Waiting::default(), Reader::new(Start::First));
        fake.write(0, u64::MAX, 0);
        let mut seen = Vec::new();
        for n in 1..100 {
            fake.write(n as usize % 2, fake.now(), n);
            seen.extend(look(&fake, &mut waiting, &mut reader));
        }
        seen.extend(look(&fake, &mut waiting, &mut reader));
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        assert!(waiting.hits.is_empty());
        // The hit is reported, with the time of the look.
        let fake = Fake::new(1, false);
        fake.write(0, u64::MAX - 1, 7);
        fake.end();
        let (mut damaged, mut time) = (0, 0);
        read(&fake, &fake.flow, |batch| {
            damaged += batch.damaged;
            time = batch.hits[0].time;
            true
        });
        assert_eq!((damaged, time), (1, fake.now()));
    }

    #[test]
    fn a_ring_without_end_withholds_nothing_for_ever() {
        let fake = Fake::new(2, false);
        let (mut waiting, mut reader) = (Waiting::default(), Reader::new(Start::First));
        let mut seen = Vec::new();
        fake.write(1, fake.now(), 7);
        // The ring always has more, and none of it is a record.
        while !seen.contains(&7) {
            fake.heads[0].taken.fetch_add(1 << 40, Ordering::Relaxed);
            seen.extend(look(&fake, &mut waiting, &mut reader));
        }
        assert!(waiting.hits.is_empty());
        // The reader ends, although the head moves on.
        reader.finish(&fake);
        let mut looks = 0;
        while !waiting.look(&mut reader, &fake, true) {
            fake.heads[0]
                .taken
                .fetch_add(SLOTS as u64 / 2, Ordering::Relaxed);
            looks += 1;
            assert!(looks < 100);
        }
    }

    #[test]
    fn what_waits_is_bounded() {
        let fake = Fake::new(3, false);
        let (mut waiting, mut reader) = (Waiting::default(), Reader::new(Start::First));
        // Its writer never finishes, and all other rings wait for it for a while.
        fake.begin(0);
        for n in 0.. {
            for _ in 0..SLOTS / 2 {
                fake.write(1 + n % 2, fake.now(), 1);
            }
            if !look(&fake, &mut waiting, &mut reader).is_empty() {
                break;
            }
            assert!(waiting.hits.len() <= MOST_HELD + LOOK);
        }
    }
}
