//! Memory outside the arena whose bits say, too, whether anybody may touch it: heaps of the program from before (`old.rs`).

use core::sync::atomic::{AtomicU64, Ordering::*};

use super::arena;

/// Is the byte in memory whose bits say that?
#[inline]
pub fn is_checked(addr: u64) -> bool {
    arena::has(addr) || has(addr)
}

/// Memory in which all that no block has is the allocator's: where it begins and ends, and how far its alias is.
struct Region {
    start: AtomicU64,
    end: AtomicU64,
    distance: AtomicU64,
}

pub const MOST_REGIONS: usize = 64;

static REGIONS: [Region; MOST_REGIONS] = [const {
    Region {
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        distance: AtomicU64::new(0),
    }
}; MOST_REGIONS];
/// From the first one to the end of the last one.
static SPAN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
// ---- by the stub's task, at rest -------------------------------------------------------------------

/// One more region, all of which is watched. They come in ascending order. `false`: there are too many.
pub fn add_region((start, end): (u64, u64), distance: u64) -> bool {
    let Some(free) = REGIONS.iter().find(|r| r.end.load(Relaxed) == 0) else {
        return false;
    };
    free.start.store(start, Relaxed);
    free.distance.store(distance, Relaxed);
    free.end.store(end, Relaxed);
    let [first, last] = &SPAN;
    if last.load(Relaxed) == 0 {
        first.store(start, Relaxed);
    }
    last.store(end, Relaxed);
    true
}

/// Nobody watches them any more.
pub fn forget() {
    let [_, last] = &SPAN;
    last.store(0, Relaxed);
    REGIONS.iter().for_each(|r| r.end.store(0, Relaxed));
}

/// The regions that are watched.
pub fn regions() -> impl Iterator<Item = (u64, u64)> {
    let all = REGIONS
        .iter()
        .map(|r| (r.start.load(Relaxed), r.end.load(Relaxed)));
    all.take_while(|r| r.1 != 0)
}

// ---- what handlers ask ---------------------------------------------------------------------------

/// Is the byte in a region that is watched?
#[inline]
pub fn has(addr: u64) -> bool {
    let [first, last] = &SPAN;
    addr < last.load(Relaxed) && addr >= first.load(Relaxed) && region(addr).is_some()
}

fn region(addr: u64) -> Option<&'static Region> {
    let is_in = |r: &&Region| addr >= r.start.load(Relaxed) && addr < r.end.load(Relaxed);
    REGIONS
        .iter()
        .take_while(|r| r.end.load(Relaxed) != 0)
        .find(is_in)
}

/// From an address of a region to its alias, and where that region ends.
pub fn distance(addr: u64) -> Option<(u64, u64)> {
    let [first, last] = &SPAN;
    if addr >= last.load(Relaxed) || addr < first.load(Relaxed) {
        return None;
    }
    region(addr).map(|r| (r.distance.load(Relaxed), r.end.load(Relaxed)))
}

/// Where the region begins that has this byte.
pub fn start_of(addr: u64) -> Option<u64> {
    region(addr).map(|r| r.start.load(Relaxed))
}
