//! Blocks and pools of client requests, sorted by address: two skip lists (W. Pugh, 1990) in memory of ours. Their
//! records have numbers. Each access holds [`super::arena::lock`].
//!
//! ```text
//! records   | first of blocks | first of pools | record | record | …        0: none
//! level 2     ────────────────────────────────▶ 0x5000 ─────────────────▶ …
//! level 0     ───────▶ 0x4000 ───────▶ 0x4040 ─▶ 0x5000 ─▶ 0x5020 ──────▶ …
//! ```

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use super::twin::Twin;

/// One in four records has a second level, one in four of those a third, and so on.
const LEVELS: usize = 11;

/// A block, or a pool.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ClientBlock {
    pub start: u64,
    /// Bytes of a block; for a pool, bytes of the redzone on both sides of its blocks.
    pub size: u64,
    /// For a block, its pool. Of two blocks with the same start, that of the lower pool comes first.
    pub pool: u32,
    /// For a pool, its first block; for a block, the next and the previous one of its pool.
    pub next: u32,
    pub before: u32,
    /// The redzone of a block that is in no pool.
    pub redzone: u32,
    /// For a pool, the flags that the program has given.
    pub flags: u32,
    /// Entries of the depot.
    pub allocated: u32,
    pub freed: u32,
    pub is_freed: bool,
    /// The record is a pool.
    pub is_pool: bool,
    /// Mark of a leak search.
    pub mark: u8,
    pub inherited: bool,
    levels: u8,
    forward: [u32; LEVELS],
}

const EMPTY: ClientBlock = ClientBlock {
    start: 0,
    size: 0,
    pool: 0,
    next: 0,
    before: 0,
    redzone: 0,
    flags: 0,
    allocated: 0,
    freed: 0,
    is_freed: false,
    is_pool: false,
    mark: 0,
    inherited: false,
    levels: 0,
    forward: [0; LEVELS],
};

/// Limit of records, and their bytes.
const MOST: u32 = 1 << 21;
pub const LEN: u64 = MOST as u64 * size_of::<ClientBlock>() as u64;

/// The two lists, by the number of their head.
pub const BLOCKS: u32 = 0;
pub const POOLS: u32 = 1;
const FIRST: u32 = 2;

/// Address of zeroed memory of [`LEN`] bytes, or 0 before [`begin`].
pub static AT: AtomicU64 = AtomicU64::new(0);
/// Records that have been used so far, the first free one, and the number of records in the lists.
static USED: AtomicU32 = AtomicU32::new(FIRST);
static FREE: AtomicU32 = AtomicU32::new(0);
static COUNT: AtomicU32 = AtomicU32::new(0);
static CHANCE: AtomicU32 = AtomicU32::new(0x9e37_79b9);

pub fn begin(at: u64) {
    AT.store(at, Relaxed);
}

pub fn adopt(twin: Twin) {
    twin.take(&AT);
    for word in [&USED, &FREE, &COUNT] {
        twin.take(word);
    }
}

/// Resets to the state before [`begin`].
#[cfg(test)]
pub fn reset() {
    USED.store(FIRST, Relaxed);
    FREE.store(0, Relaxed);
    COUNT.store(0, Relaxed);
    AT.store(0, Relaxed);
}

/// Address of the records.
pub fn place() -> u64 {
    AT.load(Relaxed)
}

/// True if there is neither a block nor a pool.
pub fn is_empty() -> bool {
    COUNT.load(Relaxed) == 0
}

fn record(n: u32) -> *mut ClientBlock {
    (AT.load(Relaxed) + u64::from(n) * size_of::<ClientBlock>() as u64) as *mut ClientBlock
}

/// The record with this number, which is in a list.
pub fn get(n: u32) -> ClientBlock {
    // SAFETY: within the records, of which all zero is one.
    unsafe { record(n.min(MOST - 1)).read() }
}

/// Changes the record, except for its start.
pub fn change(n: u32, f: impl FnOnce(&mut ClientBlock)) {
    // SAFETY: as in `get`, and under the lock.
    f(unsafe { &mut *record(n.min(MOST - 1)) });
}

fn forward(n: u32, level: usize) -> u32 {
    get(n).forward.get(level).copied().unwrap_or(0)
}

/// The last record before this place, for each level.
fn path(list: u32, (start, pool): (u64, u32)) -> [u32; LEVELS] {
    let mut path = [list; LEVELS];
    let mut at = list;
    for (level, before) in path.iter_mut().enumerate().rev() {
        loop {
            let next = forward(at, level);
            let node = get(next);
            if next == 0 || (node.start, node.pool) >= (start, pool) {
                break;
            }
            at = next;
        }
        *before = at;
    }
    path
}

/// The first record that begins at or behind `start`, or 0.
pub fn from(list: u32, start: u64) -> u32 {
    forward(path(list, (start, 0))[0], 0)
}

/// The last record that begins before `end`, or 0.
pub fn before(list: u32, end: u64) -> u32 {
    match path(list, (end, 0))[0] {
        n if n == list => 0,
        n => n,
    }
}

/// The next record, or 0.
pub fn after(n: u32) -> u32 {
    forward(n, 0)
}

/// The record of this pool that begins at `start`.
pub fn find(list: u32, start: u64, pool: u32) -> Option<u32> {
    let n = forward(path(list, (start, pool))[0], 0);
    let node = get(n);
    (n != 0 && node.start == start && node.pool == pool).then_some(n)
}

fn levels() -> u8 {
    let mut chance = CHANCE.load(Relaxed);
    chance ^= chance << 13;
    chance ^= chance >> 17;
    chance ^= chance << 5;
    CHANCE.store(chance, Relaxed);
    (1 + (chance | 1 << 20).trailing_zeros() / 2) as u8
}

/// Adds a record that did not exist; returns 0 if there is no room.
pub fn add(list: u32, start: u64, pool: u32) -> u32 {
    if AT.load(Relaxed) == 0 {
        return 0;
    }
    let mut n = FREE.load(Relaxed);
    if n != 0 {
        FREE.store(forward(n, 0), Relaxed);
    } else {
        n = USED.load(Relaxed);
        if n >= MOST {
            return 0;
        }
        USED.store(n + 1, Relaxed);
    }
    let mut node = ClientBlock {
        start,
        pool,
        levels: levels(),
        ..EMPTY
    };
    let path = path(list, (start, pool));
    let used = node.levels.into();
    for ((level, next), before) in node.forward.iter_mut().enumerate().zip(path).take(used) {
        *next = forward(before, level);
        set_forward(before, level, n);
    }
    change(n, |to| *to = node);
    COUNT.fetch_add(1, Relaxed);
    n
}

fn set_forward(n: u32, level: usize, to: u32) {
    change(n, |node| {
        if let Some(next) = node.forward.get_mut(level) {
            *next = to;
        }
    });
}

/// Takes the record out of its list.
pub fn remove(list: u32, n: u32) {
    let node = get(n);
    let path = path(list, (node.start, node.pool));
    for (level, before) in path.into_iter().enumerate() {
        if forward(before, level) == n {
            set_forward(before, level, forward(n, level));
        }
    }
    change(n, |old| *old = EMPTY);
    set_forward(n, 0, FREE.swap(n, Relaxed));
    COUNT.fetch_sub(1, Relaxed);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::collections::btree_map::Entry;
    use std::ops::Bound::*;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::tests::fixture::{Map, Statics};
    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Add(u32, u64, u32),
        Remove(u32, u64, u32),
    }

    fn op() -> impl Strategy<Value = Op> {
        let what = (BLOCKS..=POOLS, 1u64..40, 0u32..3);
        prop_oneof![
            3 => what.clone().prop_map(|(list, start, pool)| Op::Add(list, start, pool)),
            2 => what.prop_map(|(list, start, pool)| Op::Remove(list, start, pool)),
        ]
    }

    type Model = BTreeMap<(u64, u32), u32>;

    fn check(list: u32, model: &Model) -> Result<(), TestCaseError> {
        let mut n = from(list, 0);
        for (&(start, pool), &number) in model {
            prop_assert_eq!(n, number);
            prop_assert_eq!((get(n).start, get(n).pool), (start, pool));
            prop_assert_eq!(get(n).size, start * 3);
            n = after(n);
        }
        prop_assert_eq!(n, 0, "the end");
        for start in 0..41 {
            let first = model.range((start, 0)..).next().map_or(0, |e| *e.1);
            prop_assert_eq!(from(list, start), first);
            let last = model.range((Unbounded, Excluded((start, 0)))).next_back();
            prop_assert_eq!(before(list, start), last.map_or(0, |e| *e.1));
            for pool in 0..3 {
                let one = model.get(&(start, pool)).copied();
                prop_assert_eq!(find(list, start, pool), one);
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn the_lists_are_sorted_maps(ops in vec(op(), 1..120)) {
            let _statics = Statics::take();
            let map = Map::new(LEN);
            begin(map.at);
            let mut models = [Model::new(), Model::new()];
            let mut most = 0;
            for op in ops {
                match op {
                    Op::Add(list, start, pool) => {
                        let model = &mut models[list as usize];
                        if let Entry::Vacant(place) = model.entry((start, pool)) {
                            let n = add(list, start, pool);
                            prop_assert!(n >= FIRST);
                            change(n, |node| node.size = start * 3);
                            place.insert(n);
                        }
                    }
                    Op::Remove(list, start, pool) => {
                        if let Some(n) = models[list as usize].remove(&(start, pool)) {
                            remove(list, n);
                        }
                    }
                }
                let count: usize = models.iter().map(BTreeMap::len).sum();
                most = most.max(count);
                prop_assert_eq!(is_empty(), count == 0);
                prop_assert_eq!(USED.load(Relaxed) as usize, FIRST as usize + most, "records are used again");
                check(BLOCKS, &models[0])?;
                check(POOLS, &models[1])?;
            }
        }
    }

    #[test]
    fn one_in_four_has_another_level() {
        let _statics = Statics::take();
        let mut counts = [0u32; LEVELS + 1];
        for _ in 0..1 << 16 {
            counts[levels() as usize] += 1;
        }
        assert_eq!(counts[0], 0);
        for (level, count) in counts.iter().enumerate().skip(1).take(4) {
            let expected = 3 << (16 - 2 * level);
            assert!(count.abs_diff(expected) < expected / 4, "{level}: {count}");
        }
    }

    #[test]
    fn there_is_an_end_to_records() {
        let _statics = Statics::take();
        let map = Map::new(LEN);
        begin(map.at);
        USED.store(MOST - 1, Relaxed);
        assert_eq!(add(BLOCKS, 1, 0), MOST - 1);
        assert_eq!(add(BLOCKS, 2, 0), 0);
        remove(BLOCKS, MOST - 1);
        assert_eq!(add(BLOCKS, 3, 0), MOST - 1);
        assert_eq!(from(BLOCKS, 0), MOST - 1);
        assert_eq!(get(MOST - 1).start, 3);
    }
}
