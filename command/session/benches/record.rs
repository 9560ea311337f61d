//! Cost of a hit in the compact log: time per hit and hits per second, from a thread's full ring to the file, on one
//! processor. Prints a table.
//!
//! `cargo bench -p ulpf-log`
#![allow(clippy::print_stderr, clippy::print_stdout)]

use std::fs::File;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use ulpf_lib::ring::{Entry, Ring, RingHead, Rings, SLOT_WORDS};
use ulpf_session::drain::drain;
use ulpf_session::log::{Log, Recorder};
use ulpf_session::merge::{Flow, Source};

const HITS: u64 = 1 << 20;

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

impl Source for Memory {
    fn now(&self) -> u64 {
        now()
    }
    fn wait(&self, _: impl Fn() -> bool, _: Duration) {}
}

fn now() -> u64 {
    // SAFETY: reads the time-stamp counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Generates the n-th hit of a simulated program: address, length, old and new value.
type Program = fn(u64) -> (u64, u32, u64, u64);

const PROGRAMS: [(&str, Program); 4] = [
    ("a counter", |n| (0x4040, 8, n, n + 1)),
    ("an array of int", |n| {
        (0x4040 + 4 * (n % 4096), 4, n / 4096, n / 4096 + 1)
    }),
    ("doubles", |n| {
        let value = |n: u64| (n as f64).sqrt().to_bits();
        (0x4040 + 8 * (n % 512), 8, value(n), value(n + 1))
    }),
    ("a heap", |n| {
        let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (0x7f00_0000_0000 + (hash >> 40), 8, hash, n)
    }),
];

fn main() {
    let path = std::env::args().nth(1).filter(|a| !a.starts_with('-'));
    let path = path.unwrap_or_else(|| format!("/dev/shm/ulpf-record-{}.ulpf", std::process::id()));
    println!(
        "{:>18} {:>12} {:>14} {:>12}",
        "program", "M hits/s", "cycles a hit", "bytes a hit"
    );
    for (name, program) in PROGRAMS {
        let words = (0..HITS as usize * SLOT_WORDS)
            .map(|_| AtomicU64::new(0))
            .collect();
        let memory = Memory(RingHead::default(), words);
        let ring = Ring::new(&memory.0, &memory.1);
        for n in 0..HITS {
            let (addr, len, old, new) = program(n);
            let entry = Entry {
                pc: 0x40_1136 + n % 3,
                addr,
                len,
                watch: 0,
                tid: 1,
                kind: 2,
                flags: 0,
                old: &[old, 0, 0, 0],
                new: &[new, 0, 0, 0],
                inside: 0,
                call: None,
                frames: &[],
            };
            ring.write(black_box(&entry), now);
        }
        let mut all: Vec<(Duration, u64, u64)> = (0..9)
            .map(|_| {
                let file = File::create(&path).expect("a file to write to");
                let log = Log::begin(file).expect("a file to write to");
                let flow = Flow::default();
                flow.finish.store(true, Ordering::Relaxed);
                let (begun, tsc) = (Instant::now(), now());
                let mut recorder = Recorder::new(log, 0, false, |_| true);
                let drained = drain(&memory, &flow, &mut recorder);
                assert_eq!((drained.hits, drained.lost), (HITS, 0));
                let bytes = std::fs::metadata(&path).map_or(0, |m| m.len());
                (begun.elapsed(), now() - tsc, bytes)
            })
            .collect();
        all.sort();
        let (time, cycles, bytes) = all[all.len() / 2];
        println!(
            "{name:>18} {:>12.1} {:>14.1} {:>12.2}",
            HITS as f64 / time.as_secs_f64() / 1e6,
            cycles as f64 / HITS as f64,
            bytes as f64 / HITS as f64
        );
    }
    let _ = std::fs::remove_file(&path);
}
