//! Large blocks: whole granules. Free ones are joined again.
//!
//! ```text
//! free blocks by size, as powers of two of granules ── none that is large enough ──▶ neighbours become one ──▶ new granules
//! ```
//! All of it is under the lock of the shard that has the large blocks.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use super::arena::{ARENA, CARVED, GRANULE, arena};
use super::blocks::{
    EMPTY, FREE, Granule, Slot, get, granule, has_records, offset, put_free, set_granule, set_next,
};
use super::granules::{self, ArenaFull};
use super::twin::Twin;

/// The shard that owns them.
pub const SHARD: usize = 0;

const SIZES: usize = (ARENA / GRANULE).ilog2() as usize + 1;
/// Limit of free blocks of one power of two that are tried.
const TRIES: usize = 64;
/// Neighbours are joined when this share of all granules has become free since the last time, and at least `LEAST`.
const SHARE: u64 = 64;
const LEAST: u64 = 16;

struct Free {
    /// Heads of the lists, by power of two.
    lists: [AtomicU32; SIZES],
    /// Granules in the lists; and the least number of them since the last join.
    granules: AtomicU64,
    joined: AtomicU64,
}

static ALL: Free = Free {
    lists: [const { AtomicU32::new(0) }; SIZES],
    granules: AtomicU64::new(0),
    joined: AtomicU64::new(0),
};

/// Takes over the state of the parent's stub in a forked child.
pub fn adopt(twin: Twin) {
    twin.take(&ALL);
}

/// Resets to the state without any free block.
#[cfg(test)]
pub fn reset() {
    super::twin::clear(&ALL);
}

/// A slot for a block of `need` bytes, including its redzone.
pub fn take(need: u64) -> Result<u64, ArenaFull> {
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
        return Err(ArenaFull::Never);
    }
    let slot = granules::carve(granules)?;
    set(slot, granules);
    Ok(slot)
}

/// Puts back a free slot of `granules` granules, with its record `known`.
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

/// Takes a free slot that is large enough, and puts the rest back.
fn find(granules: u64) -> Option<u64> {
    let own = granules.max(1).ilog2() as usize;
    // (All slots of greater powers are large enough.)
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

/// Joins free blocks that are side by side.
fn join() {
    for list in &ALL.lists {
        list.store(0, Relaxed);
    }
    ALL.granules.store(0, Relaxed);
    let end = CARVED.load(Relaxed);
    // The current run of free blocks: the first one, their number, and their granules.
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
        if granules * GRANULE >= granules::GIVEN_BACK {
            granules::give_back(arena() + slot, granules * GRANULE);
        }
    }
    put_back(slot, granules, get(slot));
}

fn set(slot: u64, granules: u64) {
    set_granule(slot, Granule::Large(granules), SHARD);
    for n in 1..granules {
        set_granule(slot + n * GRANULE, Granule::Behind(n), SHARD);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::super::arena;
    use super::super::tests::fixture::Heap;
    use super::*;

    const MOST: u64 = 16 << 20;

    fn take_some(heap: &Heap, granules: u64) -> u64 {
        heap.retry(|| take(granules * GRANULE)).expect("room")
    }

    /// Frees as the shard does.
    fn free(slot: u64) {
        put_back(slot, size(slot), get(slot));
    }

    fn carved() -> u64 {
        CARVED.load(Relaxed) / GRANULE - 1
    }

    #[test]
    fn what_is_left_of_a_larger_one_is_free() {
        let heap = Heap::new(MOST, 0);
        let first = take_some(&heap, 5);
        take_some(&heap, 1);
        free(first);
        assert_eq!(take_some(&heap, 2), first);
        assert_eq!(take_some(&heap, 3), first + 2 * GRANULE);
        assert_eq!(carved(), 6);
        assert_eq!((size(first), size(first + 2 * GRANULE)), (2, 3));
    }

    #[test]
    fn neighbours_are_joined_and_their_memory_is_given_back() {
        let mut heap = Heap::new(MOST, 0);
        let all: Vec<u64> = (0..16).map(|_| take_some(&heap, 2)).collect();
        for slot in &all {
            heap.bytes(arena() + slot, 2 * GRANULE).fill(7);
            free(*slot);
        }
        assert_eq!(take_some(&heap, 32), all[0]);
        assert_eq!(carved(), 32);
        let bytes = heap.bytes(arena() + all[0], 32 * GRANULE);
        assert!(bytes.iter().all(|b| *b == 0));
    }

    #[test]
    fn one_in_use_keeps_its_neighbours_apart() {
        let heap = Heap::new(MOST, 0);
        let all: Vec<u64> = (0..21).map(|_| take_some(&heap, 2)).collect();
        for (n, slot) in all.iter().enumerate() {
            if n != 10 {
                free(*slot);
            }
        }
        let next = take_some(&heap, 21);
        assert_eq!(next, GRANULE + 42 * GRANULE, "new memory");
        let mut both = [take_some(&heap, 20), take_some(&heap, 20)];
        both.sort_unstable();
        assert_eq!(both, [all[0], all[11]]);
        assert_eq!(get(all[10]).state, 0);
    }

    #[test]
    fn without_memory_there_is_none() {
        let heap = Heap::new(1 << 20, 0);
        assert!(heap.retry(|| take(2 << 20)).is_none());
        // A smaller block may still fit.
        assert!(heap.retry(|| take(256 << 10)).is_some());
        assert_eq!(arena::mapped(), (256 << 10) + GRANULE);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Take(u64),
        Free(Index),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (1..6 * GRANULE).prop_map(Op::Take),
            any::<Index>().prop_map(Op::Free),
        ]
    }

    fn check(live: &BTreeMap<u64, u64>) -> Result<(), TestCaseError> {
        let mut behind = GRANULE;
        for (&slot, &granules) in live {
            prop_assert!(slot >= behind, "blocks overlap");
            behind = slot + granules * GRANULE;
            prop_assert!(granule(slot) == Granule::Large(granules));
            for n in 1..granules {
                prop_assert!(granule(slot + n * GRANULE) == Granule::Behind(n));
            }
        }
        prop_assert!(behind <= CARVED.load(Relaxed));
        let used: u64 = live.values().sum();
        prop_assert_eq!(
            used + ALL.granules.load(Relaxed),
            carved(),
            "granules got lost"
        );
        // Each slot in the lists is free, and in the list of its size.
        let mut free = 0;
        for (power, list) in ALL.lists.iter().enumerate() {
            let mut at = list.load(Relaxed);
            while at != 0 {
                let slot = offset(at);
                prop_assert_eq!(get(slot).state, FREE);
                prop_assert!(!live.contains_key(&slot));
                prop_assert_eq!(size(slot).ilog2() as usize, power);
                free += size(slot);
                at = get(slot).next;
            }
        }
        prop_assert_eq!(free, ALL.granules.load(Relaxed));
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..Default::default() })]
        #[test]
        fn no_two_overlap_and_no_granule_is_lost(ops in vec(op(), 1..150)) {
            let heap = Heap::new(64 << 20, 0);
            let mut live = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Take(need) => {
                        let slot = heap.retry(|| take(need)).expect("room");
                        super::super::blocks::put(slot, Slot {
                            state: super::super::blocks::IN_USE,
                            ..EMPTY
                        });
                        prop_assert_eq!(size(slot), need.div_ceil(GRANULE));
                        prop_assert!(live.insert(slot, size(slot)).is_none());
                    }
                    Op::Free(which) if !live.is_empty() => {
                        let slot = *which.get(&live.keys().copied().collect::<Vec<_>>());
                        live.remove(&slot);
                        free(slot);
                    }
                    Op::Free(_) => {}
                }
                check(&live)?;
            }
            // With nothing in use, all of it is one block again.
            for slot in live.into_keys() {
                free(slot);
            }
            join();
            check(&BTreeMap::new())?;
            if carved() > 0 {
                prop_assert_eq!(find(carved()), Some(GRANULE));
            }
        }
    }
}
