//! Cost of a record in a thread's ring for its writer, in ticks of the time-stamp counter, with and without a concurrent
//! reader. Prints a table.
//!
//! `cargo bench -p ulpf-lib --bench rings`
#![allow(clippy::print_stderr, clippy::print_stdout)]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use ulpf_lib::ring::{Entry, Reader, Ring, RingHead, Rings, SLOT_WORDS, Start, ring_place};

struct Memory(RingHead, Vec<AtomicU64>);

impl Rings for Memory {
    fn rings(&self) -> usize {
        1
    }
    fn slots(&self, _: usize) -> u64 {
        (self.1.len() / SLOT_WORDS) as u64
    }
    fn head(&self, _: usize) -> (u64, u64) {
        let taken = self.0.taken.load(Ordering::Acquire);
        (taken, self.0.records.load(Ordering::Relaxed))
    }
    fn copy(&self, _: usize, slot: u64, to: &mut [u64]) -> bool {
        let from = &self.1[slot as usize * SLOT_WORDS..];
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.load(Ordering::Acquire);
        }
        true
    }
}

fn now() -> u64 {
    // SAFETY: reads the time-stamp counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

fn main() {
    const ROUNDS: u64 = 1 << 20;
    println!("{:>24} {:>10} {:>14}", "record", "alone", "with a reader");
    for (name, len, frames) in [("8 bytes", 8, 0), ("16 bytes", 16, 0), ("8 frames", 8, 8)] {
        let mut row = vec![];
        for reading in [false, true] {
            let words = ring_place(0).1 as usize * SLOT_WORDS;
            let words = (0..words).map(|_| AtomicU64::new(0)).collect();
            let memory = Memory(RingHead::default(), words);
            let done = AtomicBool::new(false);
            let best = std::thread::scope(|s| {
                if reading {
                    s.spawn(|| {
                        let mut reader = Reader::new(Start::First);
                        while !done.load(Ordering::Relaxed) {
                            reader.read(&memory, 0, usize::MAX, |h| drop(black_box(h)));
                            std::thread::sleep(std::time::Duration::from_millis(1));
                        }
                    });
                }
                let frames = vec![1u64; frames];
                let best = (0..9).map(|_| {
                    let ring = Ring::new(&memory.0, &memory.1);
                    let start = now();
                    for n in 0..ROUNDS {
                        let entry = Entry {
                            pc: black_box(n),
                            addr: n,
                            len: black_box(len),
                            watch: 1,
                            tid: 1,
                            kind: 2,
                            flags: 0,
                            old: &[n; 4],
                            new: &[n + 1; 4],
                            inside: 0,
                            call: None,
                            frames: &frames,
                        };
                        ring.write(black_box(&entry), now);
                    }
                    (now() - start) as f64 / ROUNDS as f64
                });
                let mut all: Vec<f64> = best.collect();
                done.store(true, Ordering::Relaxed);
                all.sort_by(f64::total_cmp);
                all[all.len() / 2]
            });
            row.push(best);
        }
        println!("{name:>24} {:>10.1} {:>14.1}", row[0], row[1]);
    }
    let start = now();
    for _ in 0..ROUNDS {
        black_box(now());
    }
    let clock = (now() - start) as f64 / ROUNDS as f64;
    println!("{:>24} {clock:>10.1}", "(the clock alone)");
}
