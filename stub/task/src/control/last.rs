//! `monitor ulpf last ADDR [LEN] [N]`: who has written these bytes, out of the threads' rings; one JSON
//! line, for a debugger's command. (`ulpf last` reads the rings itself.)

use core::fmt::Write;
use core::sync::atomic::Ordering::*;

use ulpf_lib::command::reply::{Last, LogHead, Micros, Record, Which};
use ulpf_lib::ring::last::{Asked, all, last};
use ulpf_lib::ring::{Rings, SLOT_WORDS, SharedHeader, listed, ring_place};

use ulpf_stub_handlers::global::g;

const MOST: u64 = 1000;
/// Some megabytes of text.
const MOST_LOGGED: u64 = 20_000;

/// The program's own rings.
pub struct Ours(pub &'static SharedHeader);

impl Rings for Ours {
    fn rings(&self) -> usize {
        self.0.rings.load(Acquire) as usize
    }
    fn slots(&self, ring: usize) -> u64 {
        ring_place(ring as u64).1
    }
    fn head(&self, ring: usize) -> (u64, u64) {
        g().ring_heads().get(ring).map_or((0, 0), |h| {
            let taken = h.taken.load(Acquire);
            (taken, h.records.load(Relaxed))
        })
    }
    fn copy(&self, ring: usize, slot: u64, to: &mut [u64]) -> bool {
        let base = self.0 as *const _ as u64;
        let words = ulpf_stub_handlers::global::ring_words(base, ring as u32);
        let Some(from) = words.and_then(|w| w.get(slot as usize * SLOT_WORDS..)) else {
            return false;
        };
        for (to, from) in to.iter_mut().zip(from) {
            *to = from.load(Acquire);
        }
        true
    }
}

/// `most`: how many accesses, the youngest first.
pub fn answer(addr: u64, len: u64, most: u64, out: &mut dyn Write) {
    let Some(h) = g().header() else { return };
    // SAFETY: reads the time-stamp counter.
    let now = unsafe { core::arch::x86_64::_rdtsc() };
    let ago = |tsc: u64| Micros::of_nanos(h.nanos(now).saturating_sub(h.nanos(tsc.min(now))));
    let asked = Asked {
        addr,
        len,
        reads: false,
        most: most.min(MOST) as usize,
    };
    let found = last(&Ours(h), &asked);
    let records = found.hits.iter();
    let answer = Last {
        addr,
        len,
        watched_since: watched_since(h, addr, len).map(ago),
        reaches_back: found.reaches_back.map(ago),
        last: records
            .map(|hit| Record::of(Which::Ago(ago(hit.time)), hit))
            .collect(),
    };
    let _ = writeln!(out, "{answer}");
}

/// `monitor ulpf log [N]`: all threads' records, each on a line, the oldest first. `watch` is its number.
pub fn log(most: u64, out: &mut dyn Write) {
    let Some(h) = g().header() else { return };
    let asked = Asked {
        addr: 0,
        len: u64::MAX,
        reads: true,
        most: most.min(MOST_LOGGED) as usize,
    };
    let found = all(&Ours(h), &asked);
    let begun = h.nanos(h.base_tsc);
    let since = |tsc: u64| Micros::of_nanos(h.nanos(tsc).saturating_sub(begun));
    let reaches_back = found.reaches_back.map(since);
    let _ = writeln!(out, "{}", LogHead { reaches_back });
    for hit in found.hits.iter().rev() {
        let (time, watch) = (since(hit.time), hit.watch);
        let _ = writeln!(out, "{}", Record::of(Which::Logged { time, watch }, hit));
    }
}

/// When the last of the logged watches there was set.
fn watched_since(h: &SharedHeader, addr: u64, len: u64) -> Option<u64> {
    let all = (0..h.listed.load(Acquire)).filter_map(|n| g().listed(ulpf_lib::WatchId(n)));
    let there = all.filter(|l| {
        let (start, size) = (l.start.load(Relaxed), l.len.load(Relaxed));
        let what = l.what.load(Acquire);
        what & listed::LOGGED != 0
            && what & listed::ENDED == 0
            && start < addr.saturating_add(len)
            && addr < start + size
    });
    there.map(|l| l.since.load(Relaxed)).max()
}
