//! The books of the heap's memory: the use of each granule, and the block in each slot.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use ulpf_lib::ring::findings::{Asked, By, SHARDS};

use super::arena::{ARENA, CARVED, GRANULE, GRANULES_AT, MAPPED, RECORDS_AT, SMALLEST, arena, has};
use super::block_map;
use super::granules::give_back;
use super::twin::Twin;
use crate::runtime::memory;

/// Limit of slots. (A heap of 128-byte slots, the average, would not fill the arena with that many; but our address
/// space is scarce.)
const MOST: u64 = 1 << 28;
/// Bytes for the records of slots.
pub const RECORDS: u64 = MOST * size_of::<Slot>() as u64;
/// Records that have been given to granules. Record 0 belongs to no slot.
static GIVEN: AtomicU64 = AtomicU64::new(1);

/// True if records are left for one more granule of every shard, since other threads may be asking now. The caller
/// holds the lock of a shard and asks before it takes a granule.
pub fn has_records() -> bool {
    GIVEN.load(Relaxed) + GRANULE / SMALLEST * SHARDS as u64 <= MOST
}

/// The record of a slot. A slot that was never used is all zero.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Slot {
    pub state: u8,
    pub by: u8,
    /// Mark of a leak search.
    pub mark: u8,
    pub asked: u8,
    /// From the slot to the block, in bytes.
    pub inside: u32,
    /// Bytes that the program asked for.
    pub size: u64,
    /// Entries of the depot.
    pub allocated: u32,
    pub freed: u32,
    /// The next slot of a list, in units of 16 bytes from the beginning of the arena.
    pub next: u32,
    /// Not 0 if a forked child inherited the block from its parent.
    pub inherited: u32,
}

pub const IN_USE: u8 = 1;
pub const QUARANTINED: u8 = 2;
pub const FREE: u8 = 3;

/// Takes over the state of the parent's stub in a forked child.
pub fn adopt(twin: Twin) {
    twin.take(&GIVEN);
}

/// Resets to the state before [`begin`].
#[cfg(test)]
pub fn reset() {
    GIVEN.store(1, Relaxed);
}

/// The use of a granule. The lowest two bits of its word hold the variant, the bits above hold the number.
#[cfg_attr(test, derive(Debug))]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Granule {
    Unused,
    /// Slots of this many bytes.
    Small(u64),
    /// First granule of a large block, with the block's number of granules.
    Large(u64),
    /// A later granule of a large block, with its distance from the first one.
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

/// Bit positions in a granule's word: the record number of its first slot (0 if it has none yet), and the owning shard.
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

/// The record of the slot at this offset of the arena. Records of a granule are side by side; the record behind the
/// last one belongs to another granule.
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

/// Prefetches the record of the slot at this offset.
pub fn expect(offset: u64) {
    memory::expect(record(offset) as u64);
}

pub fn get(offset: u64) -> Slot {
    // SAFETY: within the records; all patterns are valid.
    unsafe { record(offset).read_volatile() }
}

pub fn put(offset: u64, slot: Slot) {
    // SAFETY: within the records, and under the lock of its shard.
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

/// The shard that owns the slots there; it never changes. Large blocks and unused granules belong to the first shard.
pub fn owner(offset: u64) -> usize {
    (word(offset) >> OWNER) as usize
}

pub fn set_granule(offset: u64, what: Granule, owner: usize) {
    // A granule that has records keeps them: it belongs to a large block, and always will.
    let first = match (first_record(word(offset)), what) {
        (0, Granule::Small(size)) => {
            GIVEN.fetch_add(GRANULE.checked_div(size).unwrap_or(1), Relaxed)
        }
        (0, Granule::Large(_)) => GIVEN.fetch_add(1, Relaxed),
        (first, _) => first,
    };
    let word = what.word() | first << RECORD | (owner as u64) << OWNER;
    // SAFETY: within the words of granules, and under the lock of the shard.
    unsafe { granule_word(offset).write_volatile(word) };
    match what {
        Granule::Unused => {}
        Granule::Small(size) => block_map::settle(offset, Some(size), 0),
        Granule::Large(_) => block_map::settle(offset, None, 0),
        Granule::Behind(n) => block_map::settle(offset, None, n),
    }
}

pub fn link(offset: u64) -> u32 {
    (offset / 16) as u32
}

pub fn offset(link: u32) -> u64 {
    u64::from(link) * 16
}

/// Offset and size in bytes of the slot that holds the byte at `addr`.
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
    /// Bytes that the program asked for.
    pub size: u64,
    pub by: By,
    pub asked: Asked,
    pub freed: bool,
    /// A forked child inherited it from its parent.
    pub inherited: bool,
    /// Entries of the depot.
    pub allocated_at: u32,
    pub freed_at: u32,
}

impl Block {
    /// True if the block contains the byte at `addr`.
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

/// The block in the slot that contains the byte at `addr`.
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

/// Marks the slot with the record `known` as free and puts it at the head of `list`. The caller holds the lock of its
/// shard.
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

/// Marks all present blocks as inherited.
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

// ---- leak search ---------------------------------------------------------------------------------

/// Calls `f` with every block in use and its mark. Called by the stub's task with the world stopped.
pub fn each(mut f: impl FnMut(Block, u8)) {
    each_slot(|slot, s| {
        if s.state == IN_USE
            && let Some(b) = block(slot)
        {
            f(b, s.mark);
        }
    });
}

/// Clears the marks of all blocks. Called by the stub's task with the world stopped.
pub fn unmark() {
    each_slot(|slot, s| {
        if s.mark != 0 {
            put(slot, Slot { mark: 0, ..s });
        }
    });
}

/// Gives the memory of granules without a block in use back to the system.
pub fn give_back_free() {
    // The current run of such granules.
    let (mut start, mut end) = (0, 0);
    each_granule(|at, granules, what| {
        let mut used = what == Granule::Unused;
        each_slot_of(at, granules, what, &mut |_, s| used |= s.state == IN_USE);
        if used {
            return;
        }
        if end != at {
            give_back(arena() + start, end - start);
            start = at;
        }
        end = at + granules * GRANULE;
    });
    give_back(arena() + start, end - start);
}

/// Enters all granules in the block map, which is new.
pub fn map_all() {
    each_granule(|at, granules, what| match what {
        Granule::Small(size) => block_map::settle(at, Some(size), 0),
        Granule::Large(_) => {
            (0..granules).for_each(|n| block_map::settle(at + n * GRANULE, None, n));
        }
        Granule::Unused | Granule::Behind(_) => {}
    });
}

fn each_slot(mut f: impl FnMut(u64, Slot)) {
    each_granule(|at, granules, what| each_slot_of(at, granules, what, &mut f));
}

/// Calls `f` with each granule of slots and each large block: the offset, the number of granules, and the use.
fn each_granule(mut f: impl FnMut(u64, u64, Granule)) {
    let end = CARVED.load(Relaxed).min(MAPPED.load(Relaxed));
    let mut at = GRANULE;
    while at < end {
        let what = granule(at);
        let granules = match what {
            Granule::Large(n) => n.max(1),
            _ => 1,
        };
        f(at, granules, what);
        at += granules * GRANULE;
    }
}

fn each_slot_of(at: u64, granules: u64, what: Granule, f: &mut impl FnMut(u64, Slot)) {
    let stop = at + granules * GRANULE;
    let size = match what {
        Granule::Small(size) => size.max(SMALLEST),
        _ => stop - at,
    };
    let mut slot = at;
    while slot + size <= stop {
        f(slot, get(slot));
        slot += size;
    }
}

/// Marks the block in use that `addr` points into, if its present mark is lower, and returns it. The closure gets
/// whether `addr` is the beginning of the block.
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
    use super::super::heap;
    use super::super::tests::fixture::{Heap, origin};
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
        fn a_word_says_what_a_granule_is_for(what in granules(), first in 0..MOST, owner in 0..SHARDS as u64) {
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
