//! The checked heap itself: where blocks lie, and what is known of them.
//!
//! ```text
//! arena     | granule: slots of one size          | granule … | large block: several granules, and a gap |
//! slot      | block (what was asked for) | gap |
//! granules  a word each: what it is for            known apart from the program's memory
//! slots     a record each: size, state, who has allocated and freed
//! ```
//! Each thread takes small blocks from a shelf of its own (`shelf.rs`), under the shelf's lock, held for some tens of
//! instructions. A freed block goes through the quarantine (`quarantine.rs`) before its slot is used again.

use core::sync::atomic::{AtomicU64, Ordering::*};

use ulpf_lib::PAGE_SIZE;
use ulpf_lib::command::Gap;
use ulpf_lib::ring::found::{Asked, By, Wrong};

use super::arena::{ARENA, GRANULE, GRANULES_AT, RECORDS_AT, START, arena};
use super::blocks::{
    EMPTY, FREE, Granule, IN_USE, QUARANTINED, Slot, get, has_records, put, set_granule,
};
use super::room::{GIVEN_BACK, NoRoom, carve, each_window, give_back};
use super::shelf::{self, Taken, class};
use super::twin::Twin;
use super::{blocks, large, quarantine, shadow, told_blocks};
use crate::runtime::memory;
use ulpf_stub_tables::patches::tsc;

const LARGEST: u64 = 16 << 10;
/// Of a large block, the gap behind it at least.
const LARGE_GAP: u64 = PAGE_SIZE;

/// Bytes of a gap at least; and at most, if each is a random number from there to here.
static GAP: AtomicU64 = AtomicU64::new(16);
static GAP_MOST: AtomicU64 = AtomicU64::new(0);
/// What the next random gap is made of.
static RANDOM: AtomicU64 = AtomicU64::new(0);

/// Where the heap's memory is.
pub struct Places {
    /// Of [`ARENA`] bytes of address space.
    pub arena: u64,
    /// Zeroed, of [`RECORDS`] bytes.
    pub records: u64,
    /// Zeroed, of [`GRANULES`] bytes.
    pub granules: u64,
    /// Bytes of freed blocks that wait.
    pub quarantine: u64,
    pub gap: Gap,
}

/// By the stub's task, before anybody is served.
pub fn begin(places: &Places) {
    RECORDS_AT.store(places.records, Relaxed);
    GRANULES_AT.store(places.granules, Relaxed);
    quarantine::begin(places.quarantine);
    GAP.store(places.gap.least.max(16).next_multiple_of(16), Relaxed);
    if places.gap.most > places.gap.least {
        GAP_MOST.store(places.gap.most, Relaxed);
        RANDOM.store(tsc(), Relaxed);
    }
    START.store(places.arena, Relaxed);
}

/// A forked child: what its parent's stub knew is known here, too.
pub fn adopt(twin: Twin) {
    twin.take(&GAP);
    twin.take(&GAP_MOST);
    twin.take(&RANDOM);
    blocks::adopt(twin);
    shelf::adopt(twin);
    large::adopt(twin);
    quarantine::adopt(twin);
}

// ---- allocation ----------------------------------------------------------------------------------

fn small(shelf: &Taken, need: u64) -> Result<u64, NoRoom> {
    let (n, size) = class(need);
    let Some(class) = shelf.class(n) else {
        return Err(NoRoom::Never);
    };
    if let Some(slot) = shelf.pop(&class.free) {
        return Ok(slot);
    }
    let mut fresh = class.fresh.load(Relaxed);
    if fresh + size > class.end.load(Relaxed) {
        if !has_records() {
            return Err(NoRoom::Never);
        }
        fresh = carve(1)?;
        set_granule(fresh, Granule::Small(size), shelf.number());
        class.end.store(fresh + GRANULE, Relaxed);
    }
    class.fresh.store(fresh + size, Relaxed);
    Ok(fresh)
}

/// Bytes behind the next block, at least.
fn gap() -> u64 {
    let (least, most) = (GAP.load(Relaxed), GAP_MOST.load(Relaxed));
    if most <= least {
        return least;
    }
    // (splitmix64: each number of the sequence gives another one that looks random.)
    let step = 0x9e37_79b9_7f4a_7c15;
    let mut n = RANDOM.fetch_add(step, Relaxed);
    n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    let steps = (most - least) / 16 + 1;
    least + (n ^ n >> 31).checked_rem(steps).unwrap_or(0) * 16
}

/// Who asks for a block.
#[derive(Clone, Copy)]
pub struct Origin {
    /// The number of its thread, or whatever tells it from others.
    pub thread: u32,
    pub by: By,
    pub asked: Asked,
    /// The number of the callers in the depot.
    pub noted: u32,
}

/// A block of so many bytes, aligned to `align`, a power of two.
pub fn allocate(size: u64, align: u64, origin: Origin, zeroed: bool) -> Result<u64, NoRoom> {
    if size > ARENA || align > ARENA {
        return Err(NoRoom::Never);
    }
    let rounded = size.max(1).next_multiple_of(16);
    let gap = gap().max((size / 16).next_multiple_of(16).min(512));
    let extra = if align > 16 { align } else { 0 };
    let mut need = rounded + gap + extra;
    let is_small = need <= LARGEST;
    if !is_small {
        need += LARGE_GAP;
    }
    let (shelf, slot) = loop {
        let number = if is_small {
            origin.thread as usize
        } else {
            large::SHELF
        };
        let shelf = shelf::take(number);
        let slot = match is_small {
            true => small(&shelf, need),
            false => large::take(need),
        };
        match slot {
            Ok(slot) => break (shelf, slot),
            // (Rather than that the program gets no memory, uses of freed blocks are not found.)
            Err(NoRoom::Never) => drop(shelf),
            Err(grow) => return Err(grow),
        }
        if !quarantine::shorten(need) {
            return Err(NoRoom::Never);
        }
    };
    let before = get(slot).state;
    let inside = (arena() + slot).next_multiple_of(align.max(16)) - (arena() + slot);
    put(
        slot,
        Slot {
            state: IN_USE,
            by: origin.by as u8,
            asked: origin.asked as u8,
            inside: inside as u32,
            size,
            allocated: origin.noted,
            ..EMPTY
        },
    );
    let block = arena() + slot + inside;
    memory::expect(shadow::reachable(block));
    shadow::open(block, size);
    shelf.allocated(size);
    drop(shelf);
    if before != 0 && zeroed {
        clear(block, size);
    }
    Ok(block)
}

fn clear(addr: u64, len: u64) {
    // SAFETY: a block that nobody else knows yet; each window's alias is contiguous.
    each_window(addr, len, |at, n| unsafe {
        core::ptr::write_bytes(shadow::reachable(at) as *mut u8, 0, n as usize)
    });
}

/// Copies from one block to another.
pub fn copy(from: u64, to: u64, len: u64) {
    let mut buffer = [0u8; 1024];
    let mut done = 0;
    while done < len {
        let n = (len - done).min(buffer.len() as u64) as usize;
        let part = buffer.get_mut(..n).unwrap_or_default();
        memory::read(from + done, part);
        memory::write(to + done, part);
        done += n as u64;
    }
}

/// Frees the block at `addr`, which a function of this kind was given.
pub fn free(addr: u64, by: By, noted: u32) -> Result<(), Wrong> {
    let (shelf, slot, bytes) = shelf::take_of(addr).ok_or(Wrong::NoBlock)?;
    let s = get(slot);
    let start = arena() + slot + u64::from(s.inside);
    match s.state {
        IN_USE if start == addr => {}
        QUARANTINED | FREE if start == addr => return Err(Wrong::Twice),
        _ => return Err(Wrong::NoBlock),
    }
    shadow::close(start, s.size);
    told_blocks::forget_all(start, start + s.size);
    put(
        slot,
        Slot {
            state: QUARANTINED,
            freed: noted,
            next: 0,
            ..s
        },
    );
    if s.size >= GIVEN_BACK {
        give_back(start, s.size);
    }
    shelf.released(s.size);
    quarantine::add(shelf, slot, bytes);
    // It is freed all the same.
    if By::of(s.by.into()) != by {
        return Err(Wrong::Mismatch);
    }
    Ok(())
}
