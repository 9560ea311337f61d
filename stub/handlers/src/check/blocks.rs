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

/// As it is before [`begin`].
#[cfg(test)]
pub fn reset() {
    GIVEN.store(1, Relaxed);
}

/// What a granule is for: its word says this in the lowest two bits, and the rest above.
#[cfg_attr(test, derive(Debug))]
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
    // (A large block's own granules do not come behind it.)
    let granule_behind = |at: u64| (at / GRANULE + 1) * GRANULE + arena();
    match slot_of(addr) {
        Some((slot, size)) => {
            let end = slot + size;
            near(arena() + end).or_else(|| near(granule_behind(end - 1)))
        }
        None => near(granule_behind(addr - arena())),
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::arena;
    use super::super::fixture::{Heap, origin};
    use super::super::heap;
    use super::*;

    fn allocate(heap: &Heap, size: u64) -> u64 {
        let from = origin(1, By::Malloc, 3);
        heap.allocate(size, 16, from, false).expect("room")
    }

    fn granules() -> impl Strategy<Value = Granule> {
        prop_oneof![
            Just(Granule::Unused),
            (32..=GRANULE / 4).prop_map(Granule::Small),
            (1..=ARENA / GRANULE).prop_map(Granule::Large),
            (1..=ARENA / GRANULE).prop_map(Granule::Behind),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn a_word_says_what_a_granule_is_for(what in granules(), first in 0..MOST, owner in 0..SHELVES as u64) {
            let word = what.word() | first << RECORD | owner << OWNER;
            prop_assert!(Granule::of(word) == what);
            prop_assert_eq!(first_record(word), first);
            prop_assert_eq!(word >> OWNER, owner);
        }
    }

    #[test]
    fn records_are_side_by_side_and_stay_where_they_are() {
        let heap = Heap::new(1 << 20, 0);
        heap.grow(8 * GRANULE);
        set_granule(GRANULE, Granule::Small(1024), 2);
        set_granule(2 * GRANULE, Granule::Large(2), 0);
        set_granule(3 * GRANULE, Granule::Behind(1), 0);
        let number = |at| (record(at) as u64 - RECORDS_AT.load(Relaxed)) / size_of::<Slot>() as u64;
        assert_eq!(number(GRANULE), 1, "the first one is nobody's");
        assert_eq!(number(GRANULE + 1023), 1);
        assert_eq!(number(GRANULE + 63 * 1024), 64);
        assert_eq!(number(2 * GRANULE), 65);
        assert_eq!(owner(GRANULE), 2);
        // A large block that is divided, and joined again, has the same record.
        set_granule(3 * GRANULE, Granule::Large(1), 0);
        set_granule(2 * GRANULE, Granule::Large(1), 0);
        assert_eq!((number(2 * GRANULE), number(3 * GRANULE)), (65, 66));
        set_granule(3 * GRANULE, Granule::Behind(1), 0);
        set_granule(3 * GRANULE, Granule::Large(1), 0);
        assert_eq!(number(3 * GRANULE), 66);
    }

    #[test]
    fn records_have_an_end() {
        let _heap = Heap::new(1 << 20, 0);
        assert!(has_records());
        GIVEN.store(MOST - GRANULE / SMALLEST, Relaxed);
        assert!(!has_records());
    }

    #[test]
    fn a_byte_belongs_to_the_slot_around_it() {
        let heap = Heap::new(1 << 20, 0);
        heap.grow(8 * GRANULE);
        let start = arena::arena();
        set_granule(GRANULE, Granule::Small(48), 0);
        set_granule(2 * GRANULE, Granule::Large(2), 0);
        set_granule(3 * GRANULE, Granule::Behind(1), 0);
        let slot = |at| slot_of(start + at);
        assert_eq!(slot(GRANULE - 1), None);
        assert_eq!(slot(GRANULE + 47), Some((GRANULE, 48)));
        assert_eq!(slot(GRANULE + 48), Some((GRANULE + 48, 48)));
        // 65536 is 1365 times 48, and 16.
        assert_eq!(slot(2 * GRANULE - 17), Some((2 * GRANULE - 64, 48)));
        assert_eq!(slot(2 * GRANULE - 16), None);
        assert_eq!(slot(4 * GRANULE - 1), Some((2 * GRANULE, 2 * GRANULE)));
        assert_eq!(slot(4 * GRANULE), None);
        assert_eq!(slot(8 * GRANULE), None);
        assert_eq!(slot_of(start - 1), None);
        assert_eq!(slot_of(start + ARENA), None);
    }

    #[test]
    fn the_next_block_is_the_one_of_the_next_slot() {
        let heap = Heap::new(1 << 20, 0);
        let [a, b] = [allocate(&heap, 40), allocate(&heap, 40)];
        let large = allocate(&heap, GRANULE);
        assert_eq!(next(a).map(|n| n.start), Some(b));
        assert_eq!(next(b).map(|n| n.start), Some(large));
        assert_eq!(next(large).map(|n| n.start), None, "it is the last one");
        assert_eq!(next(large + GRANULE).map(|n| n.start), None);
        assert!(at(a).is_some_and(|b| b.has(a + 39) && !b.has(a + 40) && !b.has(a - 1)));
        assert!(at(a + 1).is_none() && near(a + 1).is_some());
    }

    #[test]
    fn a_mark_only_rises() {
        let heap = Heap::new(1 << 20, 0);
        let [a, empty] = [allocate(&heap, 40), allocate(&heap, 0)];
        let marked = |addr, to| mark(addr, |begins| to + u8::from(begins)).map(|b| b.start);
        assert_eq!(marked(a + 39, 1), Some(a));
        assert_eq!(marked(a + 39, 1), None);
        assert_eq!(marked(a, 1), Some(a));
        assert_eq!(marked(a, 0), None);
        assert_eq!(marked(a + 40, 5), None, "one behind it");
        assert_eq!(marked(empty, 5), Some(empty));
        let mut marks = Vec::new();
        each(|b, mark| marks.push((b.start, mark)));
        assert_eq!(marks, [(a, 2), (empty, 6)]);
        unmark();
        each(|_, mark| assert_eq!(mark, 0));
        heap::free(a, By::Malloc, 0).unwrap();
        assert_eq!(marked(a, 7), None, "it is freed");
    }

    #[test]
    fn blocks_of_the_parent_are_inherited() {
        let heap = Heap::new(1 << 20, 0);
        let a = allocate(&heap, 40);
        inherit();
        let b = allocate(&heap, 40);
        assert_eq!(
            [a, b].map(|b| at(b).map(|b| b.inherited)),
            [Some(true), Some(false)]
        );
    }
}
