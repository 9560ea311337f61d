//! Blocks that the program had before its heap was checked, where they are known (`control/glibc.rs` of the stub's
//! task). They are watched as the blocks of the arena are.
//!
//! The program's allocator does not get them back while we are attached, so it has no reason to touch its heap. A block
//! that the program frees is poisoned, and is given to the allocator after a detach ([`give_back`]).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use super::blocks::Block;
use super::regions::{has, old_regions};
use super::shadow;
use super::twin::Twin;
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::ring::findings::{Asked, By, Wrong};

/// A block. Only its state and the call stack that freed it change.
#[repr(C)]
pub struct OldBlock {
    pub start: u64,
    /// Bytes that the program may use.
    pub size: u64,
    pub state: AtomicU32,
    /// Entry of the depot.
    pub freed: AtomicU32,
}

pub const IN_USE: u32 = 0;
/// The allocator has it back already.
pub const FREED_BEFORE: u32 = 1;
/// The allocator gets it after a detach.
pub const FREED: u32 = 2;
/// The allocator has got it after a detach.
pub const GIVEN_BACK: u32 = 3;

impl OldBlock {
    pub fn is(&self, state: u32) -> bool {
        self.state.load(Relaxed) == state
    }

    fn block(&self) -> Block {
        Block {
            start: self.start,
            size: self.size,
            by: By::Malloc,
            asked: Asked::Malloc,
            freed: !self.is(IN_USE),
            inherited: true,
            allocated_at: 0,
            freed_at: self.freed.load(Relaxed),
        }
    }
}

/// Address and number of the blocks, which are sorted by address.
static BLOCKS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// The code of the allocator, `[start, end)`.
static ALLOCATOR: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// New beginning of the allocator's own free.
static OWN_FREE: AtomicU64 = AtomicU64::new(0);
/// Blocks before this index have been examined by [`give_back`].
static LOOKED: AtomicU64 = AtomicU64::new(0);

// ---- by the stub's task, with the world stopped -------------------------------------------------

/// Takes over another stub's blocks. Freed ones still wait for the allocator.
pub fn adopt(twin: Twin) {
    twin.take(&BLOCKS);
    twin.take(&ALLOCATOR);
    twin.take(&OWN_FREE);
    LOOKED.store(0, Relaxed);
}

/// Address and bytes of the records, or zeros.
pub fn place() -> (u64, u64) {
    place_by(|number| number.load(Relaxed))
}

/// The same of the image whose statics `read` reads.
pub fn place_by(read: impl Fn(&'static AtomicU64) -> u64) -> (u64, u64) {
    let [at, len] = &BLOCKS;
    let bytes = read(len) * size_of::<OldBlock>() as u64;
    (read(at), bytes.next_multiple_of(PAGE_SIZE).max(PAGE_SIZE))
}

/// Sets the blocks; `at` is memory of ours.
pub fn begin((at, blocks): (u64, u64), allocator: (u64, u64), free: u64) {
    LOOKED.store(0, Relaxed);
    OWN_FREE.store(free, Relaxed);
    let put = |words: &[AtomicU64; 2], values: [u64; 2]| {
        words
            .iter()
            .zip(values)
            .for_each(|(to, from)| to.store(from, Relaxed));
    };
    put(&BLOCKS, [at, blocks]);
    put(&ALLOCATOR, [allocator.0, allocator.1]);
}

/// Poisons all bytes that the program may not touch. All of the region is addressable so far.
pub fn close_all() {
    for (start, end) in old_regions() {
        shadow::unpoison(start, end - start);
        let from = index_behind(start);
        let within = blocks().iter().skip(from);
        for block in within.take_while(|b| b.start < end) {
            // The word before it is its size, which only the allocator uses.
            shadow::poison(block.start - 8, 8);
            if !block.is(IN_USE) {
                shadow::poison(block.start, block.size);
            }
        }
    }
}

/// Resets to the state before [`begin`].
#[cfg(test)]
pub fn reset() {
    begin((0, 0), (0, 0), 0);
}

// ---- queries of handlers -------------------------------------------------------------------------

fn blocks() -> &'static [OldBlock] {
    let [at, len] = &BLOCKS;
    let (at, len) = (at.load(Relaxed), len.load(Relaxed));
    match at {
        0 => &[],
        // SAFETY: written by the stub's task, and mapped for good.
        _ => unsafe { core::slice::from_raw_parts(at as *const OldBlock, len as usize) },
    }
}

/// Index of the first block that begins behind this byte.
fn index_behind(addr: u64) -> usize {
    blocks().partition_point(|b| b.start <= addr)
}

fn find(addr: u64) -> Option<&'static OldBlock> {
    let block = blocks().get(index_behind(addr).checked_sub(1)?)?;
    (block.start == addr).then_some(block)
}

/// The block that begins there, if it is known.
pub fn at(addr: u64) -> Option<Block> {
    find(addr).map(OldBlock::block)
}

/// The block that contains this byte, or the last one before it.
pub fn near(addr: u64) -> Option<Block> {
    let before = blocks().get(index_behind(addr).checked_sub(1)?);
    before.map(OldBlock::block).filter(|_| has(addr))
}

/// The next block behind this byte.
pub fn next(addr: u64) -> Option<Block> {
    blocks().get(index_behind(addr)).map(OldBlock::block)
}

/// True if this is the allocator's own code.
pub fn is_allocators(pc: u64) -> bool {
    let [start, end] = &ALLOCATOR;
    pc >= start.load(Relaxed) && pc < end.load(Relaxed)
}

/// True if a call about this address is served by us. The allocator itself handles addresses outside all known blocks.
/// It also handles blocks that it had back before we came, for it frees the cache of a thread that ends.
pub fn serves(addr: u64) -> bool {
    if blocks().is_empty() || !has(addr) {
        return false;
    }
    match find(addr) {
        Some(block) => !block.is(FREED_BEFORE),
        None => near(addr).is_some_and(|b| !b.freed && addr < b.start + b.size),
    }
}

pub fn free(addr: u64, noted: u32) -> Result<(), Wrong> {
    let block = find(addr).ok_or(Wrong::NoBlock)?;
    let state = &block.state;
    let before = state.compare_exchange(IN_USE, FREED, Relaxed, Relaxed);
    before.map_err(|_| Wrong::Twice)?;
    block.freed.store(noted, Relaxed);
    shadow::poison(block.start, block.size);
    Ok(())
}

/// Freed blocks that wait for the program's allocator.
pub fn waiting() -> impl Iterator<Item = &'static OldBlock> {
    blocks().iter().filter(|block| block.is(FREED))
}

/// After a detach: passes some of the blocks that the program has freed to its own free.
pub fn give_back(free: impl Fn(u64, u64)) {
    /// Blocks examined by one call.
    const FAR: u64 = 1024;
    let (all, own) = (blocks(), OWN_FREE.load(Relaxed));
    let from = LOOKED.load(Relaxed);
    if own == 0 || from >= all.len() as u64 {
        return;
    }
    let from = LOOKED.fetch_add(FAR, Relaxed);
    for block in all.iter().skip(from as usize).take(FAR as usize) {
        let state = &block.state;
        if state
            .compare_exchange(FREED, GIVEN_BACK, Relaxed, Relaxed)
            .is_ok()
        {
            free(own, block.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::super::regions::add_region;
    use super::super::tests::fixture::Statics;
    use super::*;

    const END: u64 = 0x3000;

    fn blocks_at(all: &[(u64, u64, u32)]) -> Vec<OldBlock> {
        let block = |&(start, size, state): &(u64, u64, u32)| OldBlock {
            start,
            size,
            state: state.into(),
            freed: 0.into(),
        };
        all.iter().map(block).collect()
    }

    /// Three blocks; the allocator has one back already.
    fn three() -> (Vec<OldBlock>, Statics) {
        let statics = Statics::take();
        let all = blocks_at(&[
            (0x1010, 0x18, IN_USE),
            (0x1030, 0x20, FREED_BEFORE),
            (0x2000, 0x100, IN_USE),
        ]);
        add_region((0x1000, END), 0, false);
        begin((all.as_ptr() as u64, 3), (0x9000, 0x9100), 0x9040);
        (all, statics)
    }

    #[test]
    fn a_block_is_found_by_its_bytes() {
        let _three = three();
        let start = |of: Option<Block>| of.map(|b| b.start);
        assert_eq!(start(at(0x1010)), Some(0x1010));
        assert_eq!(start(at(0x1011)), None);
        assert_eq!(start(near(0x1027)), Some(0x1010));
        assert_eq!(start(near(0x100f)), None);
        assert_eq!(start(near(END - 1)), Some(0x2000));
        assert_eq!(start(near(END)), None);
        assert_eq!(start(next(0x1010)), Some(0x1030));
        assert_eq!(start(next(0)), Some(0x1010));
        assert_eq!(start(next(0x2000)), None);
        assert!(at(0x1030).is_some_and(|b| b.freed && b.inherited && b.size == 0x20));
    }

    #[test]
    fn the_allocator_serves_what_it_had_and_what_nobody_knows() {
        let (all, _statics) = three();
        assert!(serves(0x1010) && serves(0x1011) && serves(0x20ff));
        assert!(!serves(0x1030) && !serves(0x1031) && !serves(0x1028) && !serves(0x2100));
        assert!(!serves(END) && !serves(0xfff));
        assert_eq!(free(0x1010, 5), Ok(()));
        assert!(serves(0x1010), "a second free is ours to tell of");
        assert!(!serves(0x1011));
        assert_eq!(all[0].block().freed_at, 5);
    }

    #[test]
    fn a_block_is_freed_once() {
        let _three = three();
        assert_eq!(free(0x2000, 7), Ok(()));
        assert_eq!(free(0x2000, 8), Err(Wrong::Twice));
        assert_eq!(free(0x2001, 8), Err(Wrong::NoBlock));
        assert_eq!(at(0x2000).map(|b| (b.freed, b.freed_at)), Some((true, 7)));
    }

    #[test]
    fn what_was_freed_here_is_given_back_once() {
        let (all, _statics) = three();
        free(0x2000, 0).unwrap();
        let given = RefCell::new(Vec::new());
        for _ in 0..2 {
            give_back(|own, block| given.borrow_mut().push((own, block)));
        }
        assert_eq!(given.into_inner(), [(0x9040, 0x2000)]);
        assert!(all[2].is(GIVEN_BACK) && all[1].is(FREED_BEFORE) && all[0].is(IN_USE));
    }

    #[test]
    fn only_blocks_in_use_are_open() {
        let (_all, statics) = three();
        let mut bits = vec![0u8; END as usize / 8];
        statics.use_bits(bits.as_mut_ptr() as u64);
        close_all();
        let open = |at| shadow::first_poisoned(at, 1).is_none();
        assert!(open(0x1010) && open(0x1027));
        assert!(!open(0x1008) && !open(0x100f), "the word before a block");
        assert!(!open(0x1028) && !open(0x1030) && !open(0x104f));
        assert!(open(0x2000) && open(0x20ff) && !open(0x1fff));
    }

    #[test]
    fn the_allocators_code_has_an_end() {
        let _three = three();
        assert!(is_allocators(0x9000) && is_allocators(0x90ff));
        assert!(!is_allocators(0x9100) && !is_allocators(0x8fff));
    }
}
