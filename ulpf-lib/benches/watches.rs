//! Cost of watches by number: memory, insertion, query, a debugger's stop, and the arming of guards.
//! Prints tables.
//!
//! `cargo bench -p ulpf-lib`
#![allow(clippy::print_stderr, clippy::print_stdout)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use ulpf_lib::{
    Guard, Guards, PAGE_SIZE, PageMap, PageRun, StagedWatches, TargetAddr, WatchId, WatchKind,
    WatchRange, Watchlist,
};

fn range(i: u64) -> WatchRange {
    WatchRange::new(TargetAddr(0x5555_0000_0000 + i * 24), 8).unwrap()
}

/// Numbers in an order that is neither ascending nor repeated.
fn shuffled(n: u64) -> impl Iterator<Item = u64> {
    let step = (n / 2 + n / 8) | 1;
    let step = (step..).step_by(2).find(|s| gcd(*s, n) == 1).unwrap();
    (0..n).map(move |i| i * step % n)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn best(mut f: impl FnMut() -> Duration) -> Duration {
    (0..5).map(|_| f()).min().unwrap()
}

fn main() {
    println!(
        "{:>9}  {:>12}  {:>12}  {:>12}  {:>10}  {:>10}",
        "watches", "bytes/watch", "bulk", "one by one", "hit", "miss"
    );
    for n in [1u64, 1_000, 10_000, 1_000_000] {
        let order: Vec<u64> = shuffled(n).collect();
        let watches = || {
            order
                .iter()
                .map(|&i| (WatchId(i as u32), range(i), WatchKind::Write))
        };
        let mut list = Watchlist::new();
        let bulk = best(|| {
            list = Watchlist::new();
            let start = Instant::now();
            list.insert_bulk(watches());
            start.elapsed()
        });
        let single = best(|| {
            let mut list = Watchlist::new();
            let start = Instant::now();
            for (id, range, kind) in watches() {
                list.insert(id, range, kind);
            }
            start.elapsed()
        });
        let probes = 1_000_000;
        let query = |offset: u64| {
            best(|| {
                let start = Instant::now();
                for k in 0..probes {
                    let i = k * 7919 % n;
                    black_box(list.any_overlap(TargetAddr(range(i).start.0 + offset), 8));
                }
                start.elapsed()
            })
            .as_nanos() as f64
                / probes as f64
        };
        println!(
            "{n:>9}  {:>12.1}  {bulk:>12.1?}  {single:>12.1?}  {:>7.1} ns  {:>7.1} ns",
            list.memory() as f64 / n as f64,
            query(4),
            query(8),
        );
    }

    for n in [1_000u64, 10_000] {
        let mut staged = StagedWatches::new();
        for i in 0..n {
            staged.insert(range(i), WatchKind::Write);
        }
        staged.commit();
        let stop = best(|| {
            let start = Instant::now();
            for i in 0..n {
                staged.remove(range(i), WatchKind::Write).unwrap();
            }
            for i in 0..n {
                staged.insert(range(i), WatchKind::Write).unwrap();
            }
            assert!(staged.commit().is_empty());
            start.elapsed()
        });
        println!("a stop of GDB with {n} watches (all removed, all inserted, commit): {stop:.1?}");
    }

    println!(
        "\n{:>9}  {:>9}  {:>10}  {:>10}  {:>10}  {:>10}",
        "watches", "pages", "arm", "unchanged", "one more", "give back"
    );
    for (n, gap) in [
        (1, 24),
        (1_000, 24),
        (1_000, 4 * PAGE_SIZE),
        (10_000, 4 * PAGE_SIZE),
        (1_000_000, 24),
    ] {
        arm(n, gap);
    }
}

/// `n` watches of 8 bytes, `gap` bytes apart, in memory that is in use.
fn arm(n: u64, gap: u64) {
    let mut memory = vec![1u8; (n * gap + 8 * PAGE_SIZE) as usize];
    let base = (memory.as_mut_ptr() as u64 + 2 * PAGE_SIZE) & !(PAGE_SIZE - 1);
    let mut list = Watchlist::new();
    list.insert_bulk((0..n).map(|i| {
        (
            WatchId(i as u32),
            WatchRange::new(TargetAddr(base + i * gap), 8).unwrap(),
            WatchKind::Write,
        )
    }));
    let pages: u64 = list.pages().map(|r: PageRun| r.len() / PAGE_SIZE).sum();
    assert!(list.pages().all(|r| r.guard == Guard::NoWrite));
    let mut guards = Guards::lazy(Box::leak(Box::new(PageMap::new())));
    let beyond = TargetAddr(base + n * gap + 3 * PAGE_SIZE).page();
    let one_more = PageRun {
        start: beyond,
        end: beyond.offset(PAGE_SIZE),
        guard: Guard::NoWrite,
    };
    let mut times = [Duration::MAX; 4];
    for _ in 0..5 {
        let mut lap = |i: usize, f: &mut dyn FnMut()| {
            let start = Instant::now();
            f();
            times[i] = times[i].min(start.elapsed());
        };
        lap(0, &mut || assert!(guards.apply(list.pages()).is_empty()));
        lap(1, &mut || assert!(guards.apply(list.pages()).is_empty()));
        lap(2, &mut || {
            assert!(guards.apply(list.pages().chain([one_more])).is_empty())
        });
        lap(3, &mut || guards.release_all().unwrap());
    }
    println!(
        "{n:>9}  {pages:>9}  {:>10.1?}  {:>10.1?}  {:>10.1?}  {:>10.1?}",
        times[0], times[1], times[2], times[3]
    );
    assert!(memory[n as usize / 2] == 1);
}
