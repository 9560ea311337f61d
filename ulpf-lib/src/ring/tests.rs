use super::record::{Entry, VALUE_WORDS};
use super::*;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::vec::Vec;

/// Rings in our own memory.
struct Memory {
    heads: Vec<RingHead>,
    words: Vec<Vec<AtomicU64>>,
}

impl Memory {
    fn new(rings: usize, slots: usize) -> Memory {
        let words = || (0..slots * SLOT_WORDS).map(|_| AtomicU64::new(0)).collect();
        Memory {
            heads: (0..rings).map(|_| RingHead::default()).collect(),
            words: (0..rings).map(|_| words()).collect(),
        }
    }
    fn ring(&self, n: usize) -> Ring<'_> {
        Ring::new(&self.heads[n], &self.words[n])
    }
}

impl Rings for Memory {
    fn rings(&self) -> usize {
        self.heads.len()
    }
    fn slots(&self, ring: usize) -> u64 {
        (self.words[ring].len() / SLOT_WORDS) as u64
    }
    fn head(&self, ring: usize) -> (u64, u64) {
        let h = &self.heads[ring];
        let taken = h.taken.load(Ordering::Acquire);
        (taken, h.records.load(Ordering::Relaxed))
    }
    fn copy(&self, ring: usize, slot: u64, to: &mut [u64]) -> bool {
        let from = &self.words[ring][slot as usize * SLOT_WORDS..][..to.len()];
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.load(Ordering::Acquire);
        }
        true
    }
}

/// The `n`-th hit of a thread, with content and sizes derived from the two numbers.
fn sample(tid: u32, n: u64) -> Hit {
    let mut hit = Hit {
        time: n + 1000,
        pc: n,
        addr: n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        len: [1, 4, 8, 9, 16, 24, 32, 100][n as usize % 8],
        watch: n as u32 ^ 0x55,
        tid,
        kind: 1 + (n % 3) as u8,
        ..Hit::default()
    };
    if n % 7 == 3 {
        hit.flags |= hit_flags::KERNEL;
        hit.call = Some(Box::new(SystemCall {
            nr: n,
            args: [n, 1, 2, 3, 4, !n],
            result: -(n as i64),
        }));
    }
    if n % 11 == 4 {
        hit.flags |= hit_flags::INSIDE;
        hit.inside = n;
    }
    if hit.len as usize > MAX_VALUE {
        hit.flags |= hit_flags::TRUNCATED;
    }
    let used = hit.used();
    for i in 0..used {
        hit.old[i] = (n as u8).wrapping_add(i as u8);
        hit.new[i] = !hit.old[i];
    }
    let frames = if n.is_multiple_of(5) { n % 17 } else { 0 };
    hit.frames = (0..frames).map(|f| n << 8 | f).collect();
    hit
}

fn words(bytes: &[u8; MAX_VALUE]) -> [u64; VALUE_WORDS] {
    std::array::from_fn(|i| u64::from_le_bytes(bytes[i * 8..][..8].try_into().unwrap()))
}

fn write(ring: &Ring, hit: &Hit) {
    let entry = Entry {
        pc: hit.pc,
        addr: hit.addr,
        len: hit.len,
        watch: hit.watch,
        tid: hit.tid,
        kind: hit.kind,
        flags: hit.flags,
        old: &words(&hit.old),
        new: &words(&hit.new),
        inside: hit.inside,
        call: hit.call.as_deref(),
        frames: &hit.frames,
    };
    ring.write(&entry, || hit.time);
}

/// Reads all records, and counts those lost before and behind them.
fn read(reader: &mut Reader, memory: &Memory, ring: usize) -> (Vec<Hit>, u64, u64) {
    let mut hits = Vec::new();
    let progress = reader.read(memory, ring, usize::MAX, |h| hits.push(h));
    assert_eq!(progress, Progress::All);
    let lost = hits.iter_mut().map(|h| std::mem::take(&mut h.lost)).sum();
    (hits, lost, reader.lost_at_end(memory, ring))
}

fn samples(tid: u32, from: u64, to: u64) -> Vec<Hit> {
    (from..to).map(|n| sample(tid, n)).collect()
}

#[test]
fn what_is_written_is_read() {
    let memory = Memory::new(2, 1 << 12);
    let mut reader = Reader::new(Start::First);
    assert!(!reader.any(&memory));
    for n in 0..1000 {
        write(&memory.ring(1), &sample(7, n));
    }
    assert!(reader.any(&memory));
    assert_eq!(read(&mut reader, &memory, 0), (vec![], 0, 0));
    assert_eq!(read(&mut reader, &memory, 1), (samples(7, 0, 1000), 0, 0));
    assert!(!reader.any(&memory));
    assert_eq!(read(&mut reader, &memory, 1), (vec![], 0, 0));
}

#[test]
fn a_plain_hit_is_one_cache_line() {
    let memory = Memory::new(1, 64);
    for (n, slots) in [(1, 1), (2, 1), (3, 3), (4, 2), (6, 2)] {
        let before = memory.head(0).0;
        write(&memory.ring(0), &sample(1, n));
        assert_eq!(memory.head(0).0 - before, slots, "hit {n}");
    }
}

#[test]
fn a_ring_goes_round_for_a_reader_that_keeps_up() {
    let memory = Memory::new(1, 64);
    let mut reader = Reader::new(Start::First);
    for n in 0..10_000 {
        write(&memory.ring(0), &sample(1, n));
        assert_eq!(read(&mut reader, &memory, 0), (vec![sample(1, n)], 0, 0));
    }
}

#[test]
fn what_was_overwritten_is_counted() {
    for total in [20u64, 100, 5000] {
        let memory = Memory::new(1, 64);
        for n in 0..total {
            write(&memory.ring(0), &sample(1, n));
        }
        let mut reader = Reader::new(Start::First);
        let (hits, lost, after) = read(&mut reader, &memory, 0);
        assert_eq!((hits.len() as u64 + lost, after), (total, 0));
        assert!(hits.len() > 8, "{} of {total}", hits.len());
        assert_eq!(hits, samples(1, total - hits.len() as u64, total));
    }
}

#[test]
fn who_looks_back_sees_the_last_ones_and_misses_nothing() {
    let memory = Memory::new(1, 64);
    for n in 0..5000 {
        write(&memory.ring(0), &sample(1, n));
    }
    let (hits, lost, after) = read(&mut Reader::new(Start::Oldest), &memory, 0);
    assert_eq!((lost, after), (0, 0));
    assert_eq!(hits, samples(1, 5000 - hits.len() as u64, 5000));
    // Reading has removed nothing.
    let again = read(&mut Reader::new(Start::Oldest), &memory, 0);
    assert_eq!(again.0, hits);
}

#[test]
fn a_ring_is_handed_on() {
    let memory = Memory::new(1, 256);
    let mut reader = Reader::new(Start::First);
    write(&memory.ring(0), &sample(1, 1));
    write(&memory.ring(0), &sample(2, 2));
    let (hits, lost, after) = read(&mut reader, &memory, 0);
    assert_eq!(
        (hits, lost, after),
        (vec![sample(1, 1), sample(2, 2)], 0, 0)
    );
}

#[test]
fn little_by_little() {
    let memory = Memory::new(1, 1 << 12);
    for n in 0..500 {
        write(&memory.ring(0), &sample(1, n));
    }
    let mut reader = Reader::new(Start::First);
    let mut hits = Vec::new();
    while reader.read(&memory, 0, 7, |h| hits.push(h)) == Progress::More {}
    assert_eq!(hits, samples(1, 0, 500));
}

/// Takes room for a record of one slot and does not write it.
fn begin(memory: &Memory) {
    memory.heads[0].taken.fetch_add(1, Ordering::Relaxed);
    memory.heads[0].records.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_record_that_is_not_complete_is_waited_for_or_skipped() {
    let memory = Memory::new(1, 64);
    let mut reader = Reader::new(Start::First);
    write(&memory.ring(0), &sample(1, 1));
    begin(&memory);
    write(&memory.ring(0), &sample(1, 3));
    let mut hits = Vec::new();
    for _ in 0..3 {
        let progress = reader.read(&memory, 0, 100, |h| hits.push(h));
        assert_eq!((progress, hits.len()), (Progress::Unfinished, 1));
    }
    reader.skip(0);
    let (hits, lost, after) = read(&mut reader, &memory, 0);
    assert_eq!((hits, lost, after), (vec![sample(1, 3)], 1, 0));
    begin(&memory);
    let progress = reader.read(&memory, 0, 100, |_| panic!());
    assert_eq!(progress, Progress::Unfinished);
    reader.skip(0);
    assert_eq!(read(&mut reader, &memory, 0), (vec![], 0, 1));
}

#[test]
fn many_writers_and_a_reader() {
    const WRITERS: usize = 4;
    const EACH: u64 = if cfg!(miri) { 300 } else { 100_000 };
    for slots in [64, 1 << 12] {
        let memory = Memory::new(WRITERS, slots);
        let done = AtomicBool::new(false);
        std::thread::scope(|s| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|w| {
                    let memory = &memory;
                    s.spawn(move || {
                        for n in 0..EACH {
                            write(&memory.ring(w), &sample(w as u32, n));
                        }
                    })
                })
                .collect();
            let reading = s.spawn(|| {
                let mut reader = Reader::new(Start::First);
                let mut next = [0; WRITERS];
                let mut looking_back = 0;
                loop {
                    let last = done.load(Ordering::Acquire);
                    for (ring, next) in next.iter_mut().enumerate() {
                        reader.read(&memory, ring, 1000, |mut hit| {
                            let n = hit.pc;
                            assert_eq!(n, *next + std::mem::take(&mut hit.lost));
                            assert_eq!(hit, sample(ring as u32, n));
                            *next = n + 1;
                        });
                    }
                    if looking_back < 100 {
                        looking_back += 1;
                        let mut before = None;
                        Reader::new(Start::Oldest).read(&memory, 0, 100, |mut hit| {
                            hit.lost = 0;
                            assert!(before < Some(hit.pc));
                            before = Some(hit.pc);
                            assert_eq!(hit, sample(0, hit.pc));
                        });
                    }
                    if last && !reader.any(&memory) {
                        break;
                    }
                }
                assert_eq!(next, [EACH; WRITERS]);
            });
            for w in writers {
                w.join().unwrap();
            }
            done.store(true, Ordering::Release);
            reading.join().unwrap();
        });
    }
}

use super::last::{Asked, Found, last};

fn store(tid: u32, time: u64, addr: u64, len: u32, old: u64, new: u64) -> Hit {
    let mut hit = Hit {
        time,
        pc: 0x1000 + time,
        addr,
        len,
        watch: 1,
        tid,
        kind: 2,
        ..Hit::default()
    };
    hit.old[..8].copy_from_slice(&old.to_le_bytes());
    hit.new[..8].copy_from_slice(&new.to_le_bytes());
    hit
}

fn ask(memory: &Memory, addr: u64, len: u64, most: usize) -> Found {
    let asked = Asked {
        addr,
        len,
        reads: false,
        most,
    };
    last(memory, &asked)
}

#[test]
fn looking_back_over_all_threads() {
    let memory = Memory::new(3, 64);
    for (ring, time, addr, new) in [
        (0, 10, 0x100, 1),
        (1, 20, 0x100, 2),
        (0, 30, 0x200, 3),
        (2, 15, 0x104, 4),
    ] {
        write(
            &memory.ring(ring),
            &store(ring as u32, time, addr, 4, 0, new),
        );
    }
    let mut read = store(1, 40, 0x100, 4, 2, 2);
    read.kind = 1;
    write(&memory.ring(1), &read);
    let times = |f: &Found| f.hits.iter().map(|h| h.time).collect::<Vec<_>>();
    let found = ask(&memory, 0x100, 4, 10);
    assert_eq!((times(&found), found.reaches_back), (vec![20, 10], None));
    assert_eq!(times(&ask(&memory, 0x100, 8, 10)), [20, 15, 10]);
    assert_eq!(times(&ask(&memory, 0x100, 8, 1)), [20]);
    assert_eq!(times(&ask(&memory, 0x103, 1, 10)), [20, 10]);
    assert_eq!(times(&ask(&memory, 0x108, 8, 10)), [0u64; 0]);
    let asked = Asked {
        addr: 0x100,
        len: 1,
        reads: true,
        most: 1,
    };
    assert_eq!(times(&last(&memory, &asked)), [40]);
}

#[test]
fn a_part_of_an_access_has_its_part_of_the_values() {
    let memory = Memory::new(1, 64);
    write(
        &memory.ring(0),
        &store(
            1,
            10,
            0x100,
            8,
            0x1122_3344_5566_7788,
            0x11aa_3344_5566_7788,
        ),
    );
    let found = ask(&memory, 0x106, 1, 1);
    let hit = &found.hits[0];
    assert_eq!(
        (hit.addr, hit.len, hit.old[0], hit.new[0]),
        (0x106, 1, 0x22, 0xaa)
    );
    assert_eq!(hit.flags, 0);
    let hit = &ask(&memory, 0x104, 2, 1).hits[0];
    assert_eq!(
        (hit.old[..3].to_vec(), hit.flags),
        (vec![0x44, 0x33, 0], hit_flags::SILENT)
    );
    // A long one keeps its first bytes only.
    write(&memory.ring(0), &store(1, 20, 0x200, 100, 1, 2));
    assert_eq!(ask(&memory, 0x210, 16, 1).hits[0].flags, hit_flags::SILENT);
    assert_eq!(ask(&memory, 0x240, 4, 1).hits[0].flags, hit_flags::UNKNOWN);
    assert_eq!(ask(&memory, 0x218, 16, 1).hits[0].flags, hit_flags::UNKNOWN);
}

#[test]
fn several_watches_of_one_access_are_one_answer() {
    let memory = Memory::new(1, 64);
    for watch in [1, 2] {
        let mut hit = store(1, 10, 0x100, 4, 0, 1);
        (hit.watch, hit.time) = (watch, 10 + u64::from(watch));
        hit.pc = 7;
        write(&memory.ring(0), &hit);
    }
    assert_eq!(ask(&memory, 0x100, 4, 10).hits.len(), 1);
}

#[test]
fn what_has_been_overwritten_is_owned_up_to() {
    let memory = Memory::new(2, 64);
    write(&memory.ring(0), &store(1, 10, 0x100, 4, 0, 1));
    for time in 100..300 {
        write(&memory.ring(1), &store(2, time, 0x200, 4, 0, 1));
    }
    let found = ask(&memory, 0x100, 4, 10);
    // The other thread may have written it since.
    assert_eq!(found.hits[0].time, 10);
    assert_eq!(found.reaches_back, Some(236));
    // A record that was begun and not written does not end the search.
    begin(&memory);
    write(&memory.ring(0), &store(1, 400, 0x100, 4, 1, 2));
    assert_eq!(ask(&memory, 0x100, 4, 10).hits.len(), 2);
}

#[test]
fn a_sample_of_the_last() {
    let memory = Memory::new(1, 64);
    let mut reader = Reader::new(Start::First);
    let sample = |reader: &mut Reader| {
        let mut times = Vec::new();
        let mut lost = 0;
        reader.keep_last(&memory, 0, 4);
        reader.read(&memory, 0, 100, |hit| {
            times.push(hit.time);
            lost += hit.lost;
        });
        (times, lost)
    };
    let add = |times: core::ops::Range<u64>| {
        times.for_each(|time| write(&memory.ring(0), &store(1, time, 0x100, 4, 0, 1)));
    };
    add(0..3);
    assert_eq!(sample(&mut reader), (vec![0, 1, 2], 0));
    // Skips more than wanted, and more than the ring holds: the number of skipped records is known either way.
    add(3..30);
    assert_eq!(sample(&mut reader), (vec![26, 27, 28, 29], 23));
    add(30..300);
    assert_eq!(sample(&mut reader), (vec![296, 297, 298, 299], 266));
    assert_eq!(sample(&mut reader), (vec![], 0));
}

#[test]
fn rings_lie_side_by_side() {
    let mut end = RINGS_OFFSET;
    for index in 0..AREAS {
        let (at, slots) = ring_place(index);
        assert_eq!(at, end);
        assert!(slots.is_power_of_two() && slots >= 256);
        end = at + slots * 64;
    }
    assert_eq!(end, RINGS_END);
    const { assert!(RINGS_END - RINGS_OFFSET < 1 << 30) };
}

/// A ring whose writer is hostile: it moves its head at every read.
struct Hostile {
    words: Vec<AtomicU64>,
    head: AtomicU64,
    step: u64,
}

impl Rings for Hostile {
    fn rings(&self) -> usize {
        1
    }
    fn slots(&self, _: usize) -> u64 {
        (self.words.len() / SLOT_WORDS) as u64
    }
    fn head(&self, _: usize) -> (u64, u64) {
        (self.head.fetch_add(self.step, Ordering::Relaxed), u64::MAX)
    }
    fn copy(&self, _: usize, slot: u64, to: &mut [u64]) -> bool {
        let from = &self.words[slot as usize * SLOT_WORDS..][..to.len()];
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.load(Ordering::Relaxed);
        }
        true
    }
}

#[test]
fn a_head_that_moves_whenever_it_is_read_ends_all_the_same() {
    // Onward beyond the ring's size, onward within it, back, by almost nothing, and at the end of all numbers.
    for step in [1 << 40, 300, 0u64.wrapping_sub(7), 1, u64::MAX / 2] {
        for start in [0, 1 << 50, u64::MAX - 1000, u64::MAX] {
            for begin in [Start::First, Start::Oldest, Start::Tail(16)] {
                let rings = Hostile {
                    words: (0..256 * SLOT_WORDS)
                        .map(|_| AtomicU64::new(u64::MAX))
                        .collect(),
                    head: AtomicU64::new(start),
                    step,
                };
                let mut reader = Reader::new(begin);
                for _ in 0..10 {
                    reader.read(&rings, 0, 1000, |_| ());
                    reader.skip(0);
                    reader.keep_last(&rings, 0, 16);
                }
                reader.finish(&rings);
                let mut looks = 0;
                while reader.read(&rings, 0, 1000, |_| ()) != Progress::All {
                    reader.skip(0);
                    looks += 1;
                    assert!(looks < 10_000);
                }
                let asked = last::Asked {
                    addr: u64::MAX - 1,
                    len: u64::MAX,
                    reads: true,
                    most: 10,
                };
                last::all(&rings, &asked);
            }
        }
    }
}

#[test]
fn random_words_are_no_records() {
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        seed >> 7 ^ seed << 31
    };
    for round in 0..200u64 {
        let memory = Memory::new(1, 64);
        for (at, word) in memory.words[0].iter().enumerate() {
            let slot = (at / SLOT_WORDS) as u64;
            // Half of the stamps are right.
            let stamp = at % SLOT_WORDS == 0 && random() & 1 == 0;
            let value = match stamp {
                true => random() << 32 | u64::from(record::mark(slot)),
                false => random() << (random() % 64),
            };
            word.store(value, Ordering::Relaxed);
        }
        memory.heads[0].taken.store(round, Ordering::Relaxed);
        let mut reader = Reader::new(Start::Oldest);
        let mut most = 0;
        while reader.read(&memory, 0, 1000, |hit| most = most.max(hit.frames.len()))
            == Progress::Unfinished
        {
            reader.skip(0);
        }
        assert!(most < 256);
    }
}
