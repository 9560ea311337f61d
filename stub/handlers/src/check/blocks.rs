//! What is known of the heap's memory: what each granule is for, and which block is in each slot.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use ulpf_lib::ring::found::{Asked, By, SHELVES};

use super::arena::{ARENA, CARVED, GRANULE, GRANULES_AT, MAPPED, RECORDS_AT, SMALLEST, arena, has};
use super::lines;
use super::twin::Twin;
use crate::runtime::memory;

/// So many slots at most. (With more of them, which are of 128 bytes on average, the arena is not full yet; but address space
/// of ours is scarce.)
const MOST: u64 = 1 << 28;
/// Bytes for the records of slots.
pub const RECORDS: u64 = MOST * size_of::<Slot>() as u64;
/// So many records have been given to granules; the first one is nobody's.
static GIVEN: AtomicU64 = AtomicU64::new(1);

/// Are there records for another granule of whoever asks at present? To be asked, under the lock of a shelf, before there is one.
pub fn has_records() -> bool {
    GIVEN.load(Relaxed) + GRANULE / SMALLEST * SHELVES as u64 <= MOST
}

/// What is known of a slot. All zero: it was never used.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Slot {
    pub state: u8,
    pub by: u8,
    /// Of a search for what is lost.
    pub mark: u8,
    pub asked: u8,
    /// From the slot to the block, in bytes.
    pub inside: u32,
    /// Bytes that were asked for.
    pub size: u64,
    /// Numbers of the depot.
    pub allocated: u32,
    pub freed: u32,
    /// The next one of a list, in units of 16 bytes from the beginning of the arena.
    pub next: u32,
    /// Not 0: a forked child has it from its parent.
    pub inherited: u32,
}

pub const IN_USE: u8 = 1;
pub const QUARANTINED: u8 = 2;
pub const FREE: u8 = 3;

/// A forked child: what its parent's stub knew is known here, too.
pub fn adopt(twin: Twin) {
    twin.take(&GIVEN);
}

/// What a granule is for: its word says this in the lowest two bits, and the rest above.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Granule {
    Unused,
    /// Slots of so many bytes.
    Small(u64),
    /// The first one of so many.
    Large(u64),
    /// So many behind the first one.
    Behind(u64),
}

impl Granule {
    fn of(word: u64) -> Granule {
        let number = (word & ((1 << RECORD) - 1)) >> 2;
        match word & 3 {
            1 => Granule::Small(number),
            2 => Granule::Large(number),
            3 => Granule::Behind(number),
            _ => Granule::Unused,
        }
    }
    fn word(self) -> u64 {
        match self {
            Granule::Unused => 0,
            Granule::Small(n) => n << 2 | 1,
            Granule::Large(n) => n << 2 | 2,
            Granule::Behind(n) => n << 2 | 3,
        }
    }
}

/// Where, in a granule's word, the number of its first slot's record is, 0 for none yet; and whose its slots are.
const RECORD: u32 = 22;
const OWNER: u32 = 56;
const _: () = assert!(ARENA / GRANULE < 1 << (RECORD - 2) && MOST <= 1 << (OWNER - RECORD));

pub const EMPTY: Slot = Slot {
    state: 0,
    by: 0,
    mark: 0,
    asked: 0,
    inside: 0,
    size: 0,
    allocated: 0,
    freed: 0,
    next: 0,
    inherited: 0,
};

/// The record of the slot at this offset of the arena. Those of a granule are side by side: what lies behind one is not theirs.
pub fn record(offset: u64) -> *mut Slot {
    let word = word(offset);
    let within = match Granule::of(word) {
        // (So short numbers are divided faster.)
        Granule::Small(size) => ((offset % GRANULE) as u32).checked_div(size as u32),
        _ => None,
    };
    let number = first_record(word) + u64::from(within.unwrap_or(0));
    (RECORDS_AT.load(Relaxed) as *mut Slot).wrapping_add(number as usize)
}

/// The record of the slot at this offset is read soon.
pub fn expect(offset: u64) {
    memory::expect(record(offset) as u64);
}

pub fn get(offset: u64) -> Slot {
    // SAFETY: within the records; all patterns are valid.
    unsafe { record(offset).read_volatile() }
}

pub fn put(offset: u64, slot: Slot) {
    // SAFETY: within the records, and under the lock of its shelf.
    unsafe { record(offset).write_volatile(slot) };
}

fn granule_word(offset: u64) -> *mut u64 {
    (GRANULES_AT.load(Relaxed) + offset / GRANULE * 8) as *mut u64
}

fn word(offset: u64) -> u64 {
    // SAFETY: within the words of granules.
    unsafe { granule_word(offset).read_volatile() }
}

fn first_record(word: u64) -> u64 {
    (word >> RECORD) & ((1 << (OWNER - RECORD)) - 1)
}

pub fn granule(offset: u64) -> Granule {
    Granule::of(word(offset))
}

/// The number of the shelf whose its slots are: that never changes. Large blocks and what is unused are the first one's.
pub fn owner(offset: u64) -> usize {
    (word(offset) >> OWNER) as usize
}

pub fn set_granule(offset: u64, what: Granule, owner: usize) {
    // One that has records keeps them: it is one of a large block's, and so it will be.
    let first = match (first_record(word(offset)), what) {
        (0, Granule::Small(size)) => {
            GIVEN.fetch_add(GRANULE.checked_div(size).unwrap_or(1), Relaxed)
        }
        (0, Granule::Large(_)) => GIVEN.fetch_add(1, Relaxed),
        (first, _) => first,
    };
    let word = what.word() | first << RECORD | (owner as u64) << OWNER;
    // SAFETY: within the words of granules, and under the lock of the shelf.
    unsafe { granule_word(offset).write_volatile(word) };
    match what {
        Granule::Unused => {}
        Granule::Small(size) => lines::settle(offset, Some(size), 0),
        Granule::Large(_) => lines::settle(offset, None, 0),
        Granule::Behind(n) => lines::settle(offset, None, n),
    }
}

pub fn link(offset: u64) -> u32 {
    (offset / 16) as u32
}

pub fn offset(link: u32) -> u64 {
    u64::from(link) * 16
}

/// The slot that holds the byte at `addr`: its offset, and its bytes.
pub fn slot_of(addr: u64) -> Option<(u64, u64)> {
    let at = addr.wrapping_sub(arena());
    if !has(addr) || at >= MAPPED.load(Relaxed) {
        return None;
    }
    let start = at & !(GRANULE - 1);
    match granule(start) {
        Granule::Unused => None,
        Granule::Small(size) => {
            let n = (at - start).checked_div(size)?;
            let slot = start + n * size;
            (slot + size <= start + GRANULE).then_some((slot, size))
        }
        Granule::Large(n) => Some((start, n * GRANULE)),
        Granule::Behind(n) => {
            let first = start.checked_sub(n * GRANULE)?;
            match granule(first) {
                Granule::Large(n) => Some((first, n * GRANULE)),
                _ => None,
            }
        }
    }
}

/// A block, in use or freed.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub start: u64,
    /// Bytes that were asked for.
    pub size: u64,
    pub by: By,
    pub asked: Asked,
    pub freed: bool,
    /// A forked child has it from its parent.
    pub inherited: bool,
    /// Numbers of the depot.
    pub allocated_at: u32,
    pub freed_at: u32,
}

impl Block {
    /// Is the byte at `addr` one of it?
    pub fn has(&self, addr: u64) -> bool {
        addr.wrapping_sub(self.start) < self.size
    }
}

pub fn block(slot: u64) -> Option<Block> {
    let s = get(slot);
    if !(IN_USE..=FREE).contains(&s.state) {
        return None;
    }
    Some(Block {
        start: arena() + slot + u64::from(s.inside),
        size: s.size,
        by: By::of(s.by.into()),
        asked: Asked::of(s.asked.into()),
        freed: s.state != IN_USE,
        inherited: s.inherited != 0,
        allocated_at: s.allocated,
        freed_at: s.freed,
    })
}

/// The block in whose slot the byte at `addr` is.
pub fn near(addr: u64) -> Option<Block> {
    block(slot_of(addr)?.0)
}

/// The block that begins at `addr`.
pub fn at(addr: u64) -> Option<Block> {
    near(addr).filter(|b| b.start == addr)
}

/// The block in the next slot behind the byte at `addr`.
pub fn next(addr: u64) -> Option<Block> {
    let granule = ((addr - arena()) / GRANULE + 1) * GRANULE + arena();
    match slot_of(addr) {
        Some((slot, size)) => near(arena() + slot + size).or_else(|| near(granule)),
        None => near(granule),
    }
}

/// The slot, of which this is known, is free, and the first one of this list. Under the lock of its shelf.
pub fn put_free(list: &AtomicU32, slot: u64, known: Slot) {
    let next = list.swap(link(slot), Relaxed);
    let state = FREE;
    put(
        slot,
        Slot {
            state,
            next,
            ..known
        },
    );
}

pub fn set_next(slot: u64, next: u32) {
    put(slot, Slot { next, ..get(slot) });
}

/// All blocks that there are now are inherited.
pub fn inherit() {
    each(|block, _| {
        if let Some((slot, _)) = slot_of(block.start) {
            put(
                slot,
                Slot {
                    inherited: 1,
                    ..get(slot)
                },
            );
        }
    });
}

// ---- a search for what is lost -------------------------------------------------------------------

/// Calls `f` with every block in use, and its mark. By the stub's task, at rest.
pub fn each(mut f: impl FnMut(Block, u8)) {
    each_slot(|slot, s| {
        if s.state == IN_USE
            && let Some(b) = block(slot)
        {
            f(b, s.mark);
        }
    });
}

/// No block is marked any more. By the stub's task, at rest.
pub fn unmark() {
    each_slot(|slot, s| {
        if s.mark != 0 {
            put(slot, Slot { mark: 0, ..s });
        }
    });
}

fn each_slot(mut f: impl FnMut(u64, Slot)) {
    let end = CARVED.load(Relaxed).min(MAPPED.load(Relaxed));
    let mut at = GRANULE;
    while at < end {
        let (size, granules) = match granule(at) {
            Granule::Small(size) => (size, 1),
            Granule::Large(n) => (n * GRANULE, n),
            _ => (GRANULE, 1),
        };
        let stop = at + granules * GRANULE;
        let mut slot = at;
        while slot + size <= stop {
            f(slot, get(slot));
            slot += size;
        }
        at = stop;
    }
}

/// Marks the block in use that `addr` points into, if it has a lower mark; it is that then, and whether `addr` is its
/// beginning.
pub fn mark(addr: u64, mark: impl FnOnce(bool) -> u8) -> Option<Block> {
    let (slot, _) = slot_of(addr)?;
    let s = get(slot);
    let b = block(slot).filter(|b| !b.freed)?;
    let inside = addr.wrapping_sub(b.start);
    if inside >= b.size.max(1) {
        return None;
    }
    let mark = mark(inside == 0);
    if s.mark >= mark {
        return None;
    }
    put(slot, Slot { mark, ..s });
    Some(b)
}
