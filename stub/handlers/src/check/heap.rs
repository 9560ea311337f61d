//! The checked heap itself: placement of blocks, and their records.
//!
//! ```text
//!     arena     | granule: slots of one size          | granule … | large block: several granules, redzone |
//!     slot      | block (bytes asked for) | redzone |
//!     granules  a word each: what it is for            known apart from the program's memory
//!     slots     a record each: size, state, call stacks of malloc and free
//! ```
//! Each thread takes small blocks from a shard of its own (`shard.rs`), under the shard's lock, which is held for some
//! tens of instructions. A freed block passes the quarantine (`quarantine.rs`) before its slot is used again.

use core::sync::atomic::{AtomicU64, Ordering::*};

use ulpf_lib::PAGE_SIZE;
use ulpf_lib::command::Redzone;
use ulpf_lib::ring::findings::{Asked, By, Wrong};

use super::arena::{ARENA, GRANULE, GRANULES_AT, RECORDS_AT, START, arena};
use super::blocks::{
    EMPTY, FREE, Granule, IN_USE, QUARANTINED, Slot, get, has_records, put, set_granule,
};
use super::granules::{ArenaFull, GIVEN_BACK, carve, each_window, give_back};
use super::shard::{self, Taken, class};
use super::twin::Twin;
use super::{blocks, client_blocks, entries, large, quarantine, shadow};
use crate::runtime::memory;
use ulpf_stub_tables::patches::tsc;

/// Bytes of the largest slot. Beyond it, blocks are large blocks.
pub(super) const LARGEST: u64 = 16 << 10;
/// Least redzone behind a large block, in bytes.
const LARGE_GAP: u64 = PAGE_SIZE;

/// Least redzone, in bytes; and the greatest, if redzones are random, or else 0.
static REDZONE: AtomicU64 = AtomicU64::new(16);
static REDZONE_MOST: AtomicU64 = AtomicU64::new(0);
/// State of the random generator for redzones.
static RANDOM: AtomicU64 = AtomicU64::new(0);

/// Memory of the heap.
pub struct Places {
    /// [`ARENA`] bytes of address space.
    pub arena: u64,
    /// Zeroed memory of [`super::blocks::RECORDS`] bytes.
    pub records: u64,
    /// Zeroed memory of [`super::arena::GRANULES`] bytes.
    pub granules: u64,
    /// Size of the quarantine in bytes.
    pub quarantine: u64,
    pub redzone: Redzone,
}

/// Starts the heap. Called by the stub's task before the first call is served.
pub fn begin(places: &Places) {
    RECORDS_AT.store(places.records, Relaxed);
    GRANULES_AT.store(places.granules, Relaxed);
    settle(places.quarantine, places.redzone);
    START.store(places.arena, Relaxed);
}

/// Sets the bytes of the quarantine, and the redzones of blocks from now on.
pub fn settle(quarantine: u64, redzone: Redzone) {
    quarantine::begin(quarantine);
    REDZONE.store(redzone.least.max(16).next_multiple_of(16), Relaxed);
    let most = if redzone.most > redzone.least {
        redzone.most
    } else {
        0
    };
    REDZONE_MOST.store(most, Relaxed);
    RANDOM.store(tsc(), Relaxed);
}

/// Takes over another stub's state.
pub fn adopt(twin: Twin) {
    twin.take(&REDZONE);
    twin.take(&REDZONE_MOST);
    twin.take(&RANDOM);
    blocks::adopt(twin);
    shard::adopt(twin);
    large::adopt(twin);
    quarantine::adopt(twin);
}

// ---- allocation ----------------------------------------------------------------------------------

pub(super) fn small(shard: &Taken, need: u64) -> Result<u64, ArenaFull> {
    let (n, size) = class(need);
    let Some(class) = shard.class(n) else {
        return Err(ArenaFull::Never);
    };
    if let Some(slot) = shard.pop(&class.free) {
        return Ok(slot);
    }
    let mut fresh = class.fresh.load(Relaxed);
    if fresh + size > class.end.load(Relaxed) {
        if !has_records() {
            return Err(ArenaFull::Never);
        }
        fresh = carve(1)?;
        set_granule(fresh, Granule::Small(size), shard.number());
        class.end.store(fresh + GRANULE, Relaxed);
    }
    class.fresh.store(fresh + size, Relaxed);
    Ok(fresh)
}

/// Least redzone behind the next block, in bytes.
fn redzone() -> u64 {
    let (least, most) = (REDZONE.load(Relaxed), REDZONE_MOST.load(Relaxed));
    if most <= least {
        return least;
    }
    // (splitmix64: a counter whose values are mixed into random numbers.)
    let step = 0x9e37_79b9_7f4a_7c15;
    let mut n = RANDOM.fetch_add(step, Relaxed);
    n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    let steps = (most - least) / 16 + 1;
    least + (n ^ n >> 31).checked_rem(steps).unwrap_or(0) * 16
}

/// The origin of a request for a block.
#[derive(Clone, Copy)]
pub struct Origin {
    /// The number of the thread, or another number that distinguishes it.
    pub thread: u32,
    pub by: By,
    pub asked: Asked,
    /// Number of the call stack in the depot.
    pub noted: u32,
}

/// Allocates `size` bytes, aligned to `align`, a power of two.
pub fn allocate(size: u64, align: u64, origin: Origin, zeroed: bool) -> Result<u64, ArenaFull> {
    if size > ARENA || align > ARENA {
        return Err(ArenaFull::Never);
    }
    let rounded = size.max(1).next_multiple_of(16);
    let redzone = redzone().max((size / 16).next_multiple_of(16).min(512));
    let extra = if align > 16 { align } else { 0 };
    let mut need = rounded + redzone + extra;
    let is_small = need <= LARGEST;
    if !is_small {
        need += LARGE_GAP;
    }
    let (shard, slot) = loop {
        let number = if is_small {
            origin.thread as usize
        } else {
            large::SHARD
        };
        let shard = shard::take(number);
        let slot = match is_small {
            true => small(&shard, need),
            false => large::take(need),
        };
        match slot {
            Ok(slot) => break (shard, slot),
            // (Out of memory: rather reuse quarantined blocks, and miss accesses to them, than fail.)
            Err(ArenaFull::Never) => drop(shard),
            Err(grow) => return Err(grow),
        }
        if !quarantine::shorten(need) {
            return Err(ArenaFull::Never);
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
    shadow::unpoison(block, size);
    shard.allocated(size);
    drop(shard);
    if before != 0 && zeroed {
        clear(block, size);
    }
    Ok(block)
}

fn clear(addr: u64, len: u64) {
    // SAFETY: a block that is not handed out yet; the alias of each window is contiguous.
    each_window(addr, len, |at, n| unsafe {
        core::ptr::write_bytes(shadow::reachable(at) as *mut u8, 0, n as usize)
    });
}

/// Copies from one block to another.
pub fn copy(from: u64, to: u64, len: u64) {
    if entries::asleep() {
        // SAFETY: blocks in use, which nothing guards any more.
        return unsafe {
            core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len as usize)
        };
    }
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

/// Frees the block at `addr`, which was passed to a function of this kind.
pub fn free(addr: u64, by: By, noted: u32) -> Result<(), Wrong> {
    let (shard, slot, bytes) = shard::take_of(addr).ok_or(Wrong::NoBlock)?;
    let s = get(slot);
    let start = arena() + slot + u64::from(s.inside);
    match s.state {
        IN_USE if start == addr => {}
        QUARANTINED | FREE if start == addr => return Err(Wrong::Twice),
        _ => return Err(Wrong::NoBlock),
    }
    shadow::poison(start, s.size);
    client_blocks::forget_all(start, start + s.size);
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
    shard.released(s.size);
    quarantine::add(shard, slot, bytes);
    // The block is freed even so.
    if By::of(s.by.into()) != by {
        return Err(Wrong::Mismatch);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::super::chain::takes;
    use super::super::tests::fixture::{Heap, origin};
    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Allocate {
            size: u64,
            align: u64,
            thread: u32,
            new: bool,
            zeroed: bool,
        },
        Free(Index, bool),
        /// A pointer into a block, or into its redzone.
        FreeInside(Index, u64),
        FreeTwice(Index),
    }

    fn size() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..64, 0u64..2000, 15_000u64..17_000, 0u64..300_000]
    }

    fn op() -> impl Strategy<Value = Op> {
        let allocate = (size(), 0u32..14, 0u32..4, any::<bool>(), any::<bool>());
        prop_oneof![
            5 => allocate.prop_map(|(size, power, thread, new, zeroed)| Op::Allocate {
                size,
                align: 1 << power,
                thread,
                new,
                zeroed
            }),
            4 => (any::<Index>(), any::<bool>()).prop_map(|(n, new)| Op::Free(n, new)),
            1 => (any::<Index>(), 1u64..3000).prop_map(|(n, by)| Op::FreeInside(n, by)),
            1 => any::<Index>().prop_map(Op::FreeTwice),
        ]
    }

    fn by(new: bool) -> By {
        if new { By::New } else { By::Malloc }
    }

    #[derive(Clone, Copy)]
    struct Live {
        size: u64,
        new: bool,
        noted: u32,
        fill: u8,
    }

    /// A freed block, and when it was freed.
    #[derive(Clone, Copy)]
    struct Dead {
        size: u64,
        /// Bytes that had been freed before it.
        before: u64,
    }

    struct Model {
        heap: Heap,
        quarantine: u64,
        live: BTreeMap<u64, Live>,
        dead: BTreeMap<u64, Dead>,
        /// As the quarantine counts it.
        freed_bytes: u64,
        allocated: u64,
        freed: u64,
    }

    impl Model {
        fn new(most: u64, quarantine: u64) -> Model {
            Model {
                heap: Heap::new(most, quarantine),
                quarantine,
                live: BTreeMap::new(),
                dead: BTreeMap::new(),
                freed_bytes: 0,
                allocated: 0,
                freed: 0,
            }
        }

        fn allocate(&mut self, size: u64, align: u64, thread: u32, new: bool, zeroed: bool) {
            self.allocated += 1;
            let noted = self.allocated as u32;
            let from = origin(thread, by(new), noted);
            let at = self.heap.allocate(size, align, from, zeroed).expect("room");
            assert_eq!(at % align.max(16), 0);
            let (slot, slot_bytes) = blocks::slot_of(at).expect("its slot");
            let slot = arena() + slot;
            assert!(
                slot <= at && at + size.max(1) + 16 <= slot + slot_bytes,
                "no redzone behind it"
            );
            // The slot belongs to this block alone.
            let before = self.live.range(..slot + slot_bytes).next_back();
            assert!(
                before.is_none_or(|(start, b)| start + b.size + 16 <= slot),
                "overlap"
            );
            self.is_quarantined_long_enough(slot, slot_bytes);
            if zeroed {
                assert!(
                    self.heap.bytes(at, size).iter().all(|b| *b == 0),
                    "not zeroed"
                );
            }
            let fill = noted as u8 | 1;
            self.heap.bytes(at, size).fill(fill);
            let live = Live {
                size,
                new,
                noted,
                fill,
            };
            self.live.insert(at, live);
        }

        /// A freed block was in this slot: check that as many bytes as the quarantine holds were freed since.
        fn is_quarantined_long_enough(&mut self, slot: u64, bytes: u64) {
            let end = slot + bytes;
            let is_in = |d: &(&u64, &Dead)| *d.0 < end && d.0 + d.1.size.max(1) > slot;
            let within: Vec<u64> = self.dead.iter().filter(is_in).map(|d| *d.0).collect();
            for start in within {
                let dead = self.dead.remove(&start).unwrap();
                assert!(!self.is_quarantined(&dead), "used again too soon");
            }
        }

        /// True if the quarantine must still hold it: too few bytes were freed after it.
        fn is_quarantined(&self, dead: &Dead) -> bool {
            self.freed_bytes - dead.before <= self.quarantine
        }

        fn pick(&self, which: Index) -> Option<u64> {
            let all: Vec<u64> = self.live.keys().copied().collect();
            (!all.is_empty()).then(|| *which.get(&all))
        }

        fn free(&mut self, at: u64, new: bool) {
            let live = self.live.remove(&at).unwrap();
            let slot_bytes = blocks::slot_of(at).unwrap().1;
            let bytes = self.heap.bytes(at, live.size);
            assert!(
                bytes.iter().all(|b| *b == live.fill),
                "somebody wrote to it"
            );
            let want = if new == live.new {
                Ok(())
            } else {
                Err(Wrong::Mismatch)
            };
            assert_eq!(free(at, by(new), 99), want);
            let dead = Dead {
                size: live.size,
                before: self.freed_bytes,
            };
            self.freed_bytes += takes(slot_bytes);
            self.freed += 1;
            self.dead.insert(at, dead);
        }

        fn step(&mut self, op: Op) {
            match op {
                Op::Allocate {
                    size,
                    align,
                    thread,
                    new,
                    zeroed,
                } => self.allocate(size, align, thread, new, zeroed),
                Op::Free(which, new) => {
                    if let Some(at) = self.pick(which) {
                        self.free(at, new);
                    }
                }
                Op::FreeInside(which, by) => {
                    if let Some(at) = self.pick(which)
                        && !self.live.contains_key(&(at + by))
                        && !self.dead.contains_key(&(at + by))
                    {
                        assert_eq!(free(at + by, By::Malloc, 0), Err(Wrong::NoBlock));
                    }
                }
                Op::FreeTwice(which) => {
                    let all: Vec<u64> = self.dead.keys().copied().collect();
                    if !all.is_empty() {
                        let at = *which.get(&all);
                        let wrong = free(at, By::Malloc, 0).expect_err("it is free");
                        // (Later it may have become a part of a larger free block.)
                        let is_gone = !self.is_quarantined(&self.dead[&at]);
                        assert!(wrong == Wrong::Twice || is_gone && wrong == Wrong::NoBlock);
                    }
                }
            }
        }

        fn check(&self) {
            let mut seen = 0;
            blocks::each(|b, _| {
                assert!(self.live.get(&b.start).is_some_and(|l| l.size == b.size));
                seen += 1;
            });
            assert_eq!(seen, self.live.len());
            for (&at, live) in &self.live {
                let b = blocks::at(at).expect("a block");
                assert_eq!((b.size, b.by, b.freed), (live.size, by(live.new), false));
                assert_eq!(b.allocated_at, live.noted);
                assert_eq!(
                    blocks::near(at + live.size).map(|b| b.start),
                    Some(at),
                    "its redzone"
                );
                assert_eq!(
                    shadow::first_poisoned(at, live.size),
                    None,
                    "its bytes are open"
                );
                assert_eq!(
                    shadow::first_addressable(at + live.size, 16),
                    None,
                    "its redzone is addressable"
                );
            }
            for (&at, dead) in &self.dead {
                if self.is_quarantined(dead) {
                    let b = blocks::at(at).expect("a freed block");
                    assert_eq!((b.size, b.freed, b.freed_at), (dead.size, true, 99));
                }
                assert_eq!(
                    shadow::first_addressable(at, dead.size),
                    None,
                    "its bytes are closed"
                );
            }
            let f = self.heap.findings();
            assert_eq!((f.allocated(), f.freed()), (self.allocated, self.freed));
            assert_eq!(f.bytes(), self.live.values().map(|l| l.size).sum::<u64>());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..Default::default() })]
        #[test]
        fn the_heap_is_a_map_of_blocks(quarantine in 0u64..400_000, ops in vec(op(), 1..200)) {
            let mut model = Model::new(128 << 20, quarantine);
            for op in ops {
                model.step(op);
            }
            model.check();
        }

        #[test]
        fn small_blocks_are_used_again_after_the_quarantine(
            quarantine in 0u64..20_000,
            sizes in vec((0u64..100, 0u32..3, any::<Index>()), 100..300),
        ) {
            let mut model = Model::new(16 << 20, quarantine);
            for (size, thread, which) in sizes {
                model.allocate(size, 1, thread, false, true);
                if model.live.len() > 4 {
                    let at = model.pick(which).unwrap();
                    model.free(at, false);
                }
            }
            model.check();
        }
    }

    #[test]
    fn too_much_is_refused_at_once() {
        let heap = Heap::new(1 << 20, 0);
        let from = origin(0, By::Malloc, 0);
        for (size, align) in [(u64::MAX, 16), (ARENA + 1, 16), (1, ARENA * 2)] {
            assert!(matches!(
                allocate(size, align, from, false),
                Err(ArenaFull::Never)
            ));
        }
        assert!(heap.allocate(ARENA, 16, from, false).is_none());
        assert!(heap.allocate(100, 16, from, false).is_some());
    }

    #[test]
    fn where_memory_ends_the_quarantine_is_used() {
        let heap = Heap::new(4 << 20, 64 << 20);
        let from = origin(0, By::Malloc, 0);
        let size = 200 << 10;
        for n in 0..100 {
            let at = heap.allocate(size, 16, from, false);
            let at = at.unwrap_or_else(|| panic!("no memory for block {n}"));
            free(at, By::Malloc, 0).unwrap();
        }
    }

    #[test]
    fn the_memory_of_a_large_freed_block_is_given_back() {
        let mut heap = Heap::new(8 << 20, 64 << 20);
        let from = origin(0, By::Malloc, 0);
        let [large, less] = [GIVEN_BACK, GIVEN_BACK - 1]
            .map(|size| heap.allocate(size, PAGE_SIZE, from, false).unwrap());
        for (at, given_back) in [(large, true), (less, false)] {
            heap.bytes(at, GIVEN_BACK - PAGE_SIZE).fill(5);
            free(at, By::Malloc, 0).unwrap();
            let bytes = heap.bytes(at, GIVEN_BACK - PAGE_SIZE);
            assert!(bytes.iter().all(|b| (*b == 0) == given_back));
        }
    }

    #[test]
    fn a_redzone_is_as_long_as_was_asked_for() {
        let heap = Heap::new(4 << 20, 0);
        let from = origin(0, By::Malloc, 0);
        for (least, most) in [(64, 0), (32, 512)] {
            REDZONE.store(least, Relaxed);
            REDZONE_MOST.store(most, Relaxed);
            let mut redzones = Vec::new();
            for size in 1..200 {
                let at = heap.allocate(size, 16, from, false).unwrap();
                let (slot, bytes) = blocks::slot_of(at).unwrap();
                redzones.push(arena() + slot + bytes - at - size);
            }
            assert!(redzones.iter().all(|redzone| *redzone >= least));
            assert_eq!(redzones.iter().any(|redzone| *redzone > 400), most > 400);
        }
        REDZONE_MOST.store(0, Relaxed);
    }
}
