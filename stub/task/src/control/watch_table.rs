//! The list of all watches that ever existed, in the shared area. Tools that look back at hits read from it what was
//! watched, and since when (`ulpf last`).

use core::sync::atomic::Ordering::*;

use ulpf_lib::ring::listed;
use ulpf_lib::staged::Changes;
use ulpf_lib::{WatchId, WatchKind, WatchRange};

use ulpf_stub_handlers::global::g;
use ulpf_stub_tables::attributes::{Attributes, Part};

/// These watches take effect, or have ended.
pub fn changed(changes: &Changes) {
    // A watch that follows pointers has one line, whatever its present parts are (see `moved`).
    let whole = |id: &WatchId| g().attributes(*id).part == Part::Whole;
    for (id, ..) in changes.removed.iter().filter(|(id, ..)| whole(id)) {
        if let Some(line) = g().listed(*id) {
            line.what.fetch_or(listed::ENDED, Release);
        }
    }
    for (id, range, kind) in changes.added.iter().filter(|(id, ..)| whole(id)) {
        let (Some(line), Some(h)) = (g().listed(*id), g().header()) else {
            continue;
        };
        let a = g().attributes(*id);
        line.len.store(range.len, Relaxed);
        line.start.store(range.start.0, Relaxed);
        line.reported_as.store(a.group.unwrap_or(*id).0, Relaxed);
        // SAFETY: reads the time-stamp counter.
        line.since
            .store(unsafe { core::arch::x86_64::_rdtsc() }, Relaxed);
        line.what.store(*kind as u32 | bits(a), Release);
        h.listed.fetch_max(id.0 + 1, AcqRel);
    }
}

/// A watch that follows pointers is at `to` from now on; `None`: nowhere.
pub fn moved(id: WatchId, len: u64, kind: WatchKind, to: Option<WatchRange>) {
    let (Some(line), Some(h)) = (g().listed(id), g().header()) else {
        return;
    };
    let ends = |bits: u32| kind as u32 | bits | listed::FOLLOWS | self::bits(g().attributes(id));
    // A concurrent reader of the line finds a watch that has just been set, or none.
    line.what.store(ends(listed::ENDED), Release);
    // SAFETY: reads the time-stamp counter.
    line.since
        .store(unsafe { core::arch::x86_64::_rdtsc() }, Release);
    line.len.store(len, Release);
    line.reported_as.store(id.0, Relaxed);
    line.start.store(to.map_or(0, |r| r.start.0), Release);
    line.what.store(ends(0), Release);
    h.listed.fetch_max(id.0 + 1, AcqRel);
    if let Some(n) = g().counters(id) {
        n.moved.fetch_add(1, Relaxed);
    }
}

/// A watch that follows pointers is switched off.
pub fn off(id: WatchId) {
    if let Some(line) = g().listed(id) {
        line.what.fetch_or(listed::ENDED | listed::OFF, Release);
    }
}

/// A watch that follows pointers was removed.
pub fn ended(id: WatchId) {
    if let Some(line) = g().listed(id) {
        line.what.fetch_or(listed::ENDED, Release);
    }
}

fn bits(a: &Attributes) -> u32 {
    let logged = if a.log { listed::LOGGED } else { 0 };
    logged
        | if a.out_of_band {
            listed::OUT_OF_BAND
        } else {
            0
        }
}

/// A watch is no longer in effect and can be switched on again. It may not be listed yet.
pub fn switched_off(id: WatchId, range: WatchRange, kind: WatchKind) {
    let (Some(line), Some(h)) = (g().listed(id), g().header()) else {
        return;
    };
    if line.what.load(Relaxed) == 0 {
        line.len.store(range.len, Relaxed);
        line.start.store(range.start.0, Relaxed);
        line.reported_as.store(id.0, Relaxed);
        let ended = kind as u32 | bits(g().attributes(id)) | listed::ENDED;
        line.what.store(ended, Release);
        h.listed.fetch_max(id.0 + 1, AcqRel);
    }
    line.what.fetch_or(listed::OFF, Release);
}

/// A watch that may already be listed has other attributes.
pub fn attributes_changed(id: WatchId) {
    if let Some(line) = g().listed(id)
        && line.what.load(Relaxed) != 0
        && g().attributes(id).log
    {
        line.what.fetch_or(listed::LOGGED, Release);
    }
}
