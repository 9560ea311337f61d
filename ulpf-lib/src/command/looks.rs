//! Queries that the shared area answers: for the stub while the program runs, and for the server after its end.

use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use super::reply::{Last, LogHead, Micros, Record, Which};
use crate::ring::last::{Asked, all, last};
use crate::ring::{Clock, Listed, Rings, listed};

const MOST: u64 = 1000;
/// Limit of a reply, some megabytes of text.
const MOST_LOGGED: u64 = 20_000;

/// `ulpf last ADDR LEN MOST`: the accesses to these bytes, the youngest first. `now` is the time-stamp counter's value,
/// `table` all watches that have existed.
pub fn who_wrote<'a>(
    rings: &impl Rings,
    clock: &Clock,
    now: u64,
    table: impl Iterator<Item = &'a Listed>,
    (addr, len, most): (u64, u64, u64),
    out: &mut dyn Write,
) {
    let ago = |tsc: u64| Micros::of_nanos(clock.ago(now, tsc));
    let asked = Asked {
        addr,
        len,
        reads: false,
        most: most.min(MOST) as usize,
    };
    let found = last(rings, &asked);
    let records = found.hits.iter();
    let records = records.map(|hit| Record::of(Which::Ago(ago(hit.time)), hit));
    let answer = Last {
        addr,
        len,
        watched_since: watched_since(table, addr, len).map(ago),
        reaches_back: found.reaches_back.map(ago),
        stretches: false,
        last: records.collect::<Vec<_>>(),
    };
    let _ = writeln!(out, "{answer}");
}

/// `ulpf log MOST`: all threads' records, each on a line, the oldest first.
pub fn log(rings: &impl Rings, clock: &Clock, most: u64, out: &mut dyn Write) {
    let asked = Asked {
        addr: 0,
        len: u64::MAX,
        reads: true,
        most: most.min(MOST_LOGGED) as usize,
    };
    let found = all(rings, &asked);
    let begun = clock.nanos(clock.base_tsc);
    let since = |tsc: u64| Micros::of_nanos(clock.nanos(tsc).saturating_sub(begun));
    let reaches_back = found.reaches_back.map(since);
    let _ = writeln!(out, "{}", LogHead { reaches_back });
    for hit in found.hits.iter().rev() {
        let (time, watch) = (since(hit.time), hit.watch);
        let _ = writeln!(out, "{}", Record::of(Which::Logged { time, watch }, hit));
    }
}

/// Whether the hits of a watch on these bytes are written to the rings.
pub fn is_logged<'a>(table: impl Iterator<Item = &'a Listed>, addr: u64, len: u64) -> bool {
    watched_since(table, addr, len).is_some()
}

/// The time at which the youngest logged watch on these bytes was set.
fn watched_since<'a>(table: impl Iterator<Item = &'a Listed>, addr: u64, len: u64) -> Option<u64> {
    let there = table.filter(|l| {
        let (start, size) = (l.start.load(Relaxed), l.len.load(Relaxed));
        let what = l.what.load(Acquire);
        what & listed::LOGGED != 0
            && what & listed::ENDED == 0
            && start < addr.saturating_add(len)
            && addr < start.saturating_add(size)
    });
    there.map(|l| l.since.load(Relaxed)).max()
}
