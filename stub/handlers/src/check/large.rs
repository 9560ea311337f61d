//! Large blocks: whole granules, of which the free ones are joined again.
//!
//! ```text
//! free blocks by size, as powers of two of granules ── none that is large enough ──▶ neighbours become one ──▶ new granules
//! ```
//! All of it is under the lock of the shelf that has the large blocks.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use super::arena::{ARENA, CARVED, GRANULE, arena};
use super::blocks::{
    EMPTY, FREE, Granule, Slot, get, granule, has_records, offset, put_free, set_granule, set_next,
};
use super::room::{self, NoRoom};
use super::twin::Twin;

/// The shelf that has them.
pub const SHELF: usize = 0;

const SIZES: usize = (ARENA / GRANULE).ilog2() as usize + 1;
/// Free blocks of the same power of two that are looked at for one that fits.
const TRIES: usize = 64;
/// Neighbours are looked for when this share of all granules has become free since, and so many at least.
const SHARE: u64 = 64;
const LEAST: u64 = 16;

struct Free {
    /// By power of two: the first one of a list.
    lists: [AtomicU32; SIZES],
    /// Granules in them; and how many there were at least since neighbours were looked for.
    granules: AtomicU64,
    joined: AtomicU64,
}

static ALL: Free = Free {
    lists: [const { AtomicU32::new(0) }; SIZES],
    granules: AtomicU64::new(0),
    joined: AtomicU64::new(0),
};

/// A forked child: what its parent's stub knew is known here, too.
pub fn adopt(twin: Twin) {
    twin.take(&ALL);
}

/// The slot of a block that needs so many bytes, with its gap.
pub fn take(need: u64) -> Result<u64, NoRoom> {
    let granules = need.div_ceil(GRANULE);
    if let Some(slot) = find(granules) {
        return Ok(slot);
    }
    if is_worth_joining(granules) {
        join();
        if let Some(slot) = find(granules) {
            return Ok(slot);
        }
    }
    if !has_records() {
        return Err(NoRoom::Never);
    }
    let slot = room::carve(granules)?;
    set(slot, granules);
    Ok(slot)
}

/// The slot, of so many granules, may be used again. `known`: what is known of it.
pub fn put_back(slot: u64, granules: u64, known: Slot) {
    let Some(list) = list(granules) else { return };
    put_free(list, slot, known);
    ALL.granules.fetch_add(granules, Relaxed);
}

fn list(granules: u64) -> Option<&'static AtomicU32> {
    ALL.lists.get(granules.max(1).ilog2() as usize)
}

fn size(slot: u64) -> u64 {
    match granule(slot) {
        Granule::Large(n) => n,
        _ => 0,
    }
}

/// A free one that is large enough, without what is left of it.
fn find(granules: u64) -> Option<u64> {
    let own = granules.max(1).ilog2() as usize;
    // (Those of greater powers are all large enough.)
    for list in ALL.lists.get(own..).unwrap_or_default() {
        let (mut before, mut at) = (0, list.load(Relaxed));
        for _ in 0..TRIES {
            if at == 0 {
                break;
            }
            let (slot, next) = (offset(at), get(offset(at)).next);
            let has = size(slot);
            if has >= granules {
                match before {
                    0 => list.store(next, Relaxed),
                    _ => set_next(offset(before), next),
                }
                let left = ALL.granules.fetch_sub(has, Relaxed) - has;
                ALL.joined.fetch_min(left, Relaxed);
                if has > granules && has_records() {
                    let rest = slot + granules * GRANULE;
                    set(slot, granules);
                    set(rest, has - granules);
                    put_back(rest, has - granules, EMPTY);
                }
                return Some(slot);
            }
            (before, at) = (at, next);
        }
    }
    None
}

fn is_worth_joining(granules: u64) -> bool {
    let free = ALL.granules.load(Relaxed);
    let new = free.saturating_sub(ALL.joined.load(Relaxed));
    free >= granules && new >= (CARVED.load(Relaxed) / GRANULE / SHARE).max(LEAST)
}

/// Free blocks side by side become one.
fn join() {
    for list in &ALL.lists {
        list.store(0, Relaxed);
    }
    ALL.granules.store(0, Relaxed);
    let end = CARVED.load(Relaxed);
    // The first one of those that are side by side, how many there are, and their granules.
    let mut run = (0, 0, 0);
    let mut at = GRANULE;
    while at < end {
        let granules = size(at);
        let is_free = granules > 0 && get(at).state == FREE;
        run = match (is_free, run) {
            (false, run) => {
                put_run(run);
                (0, 0, 0)
            }
            (true, (_, 0, _)) => (at, 1, granules),
            (true, (first, n, sum)) => (first, n + 1, sum + granules),
        };
        at += granules.max(1) * GRANULE;
    }
    put_run(run);
    ALL.joined.store(ALL.granules.load(Relaxed), Relaxed);
}

fn put_run((slot, n, granules): (u64, u64, u64)) {
    if n == 0 {
        return;
    }
    if n > 1 {
        set(slot, granules);
        if granules * GRANULE >= room::GIVEN_BACK {
            room::give_back(arena() + slot, granules * GRANULE);
        }
    }
    put_back(slot, granules, get(slot));
}

fn set(slot: u64, granules: u64) {
    set_granule(slot, Granule::Large(granules), SHELF);
    for n in 1..granules {
        set_granule(slot + n * GRANULE, Granule::Behind(n), SHELF);
    }
}
