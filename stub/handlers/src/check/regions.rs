//! Memory outside the arena with bits of its own: heaps of the program from before (`old.rs`), and memory that client
//! requests are about (`client.rs`).

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};

use super::arena;

/// True if the byte is in memory that has such bits.
#[inline]
pub fn is_checked(addr: u64) -> bool {
    arena::has(addr) || has(addr)
}

/// A watched region: its range, the distance to its alias, and whether client requests are the reason for it. (In other
/// regions, bytes outside all blocks belong to the allocator.)
struct Region {
    start: AtomicU64,
    end: AtomicU64,
    distance: AtomicU64,
    requested: AtomicBool,
}

pub const MOST_REGIONS: usize = 512;

static REGIONS: [Region; MOST_REGIONS] = [const {
    Region {
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
        distance: AtomicU64::new(0),
        requested: AtomicBool::new(false),
    }
}; MOST_REGIONS];
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// From the first region's start to the last one's end.
static SPAN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Memory of client requests that cannot be watched, `[start, end)`.
static REFUSED: [[AtomicU64; 2]; 64] = [const { [const { AtomicU64::new(0) }; 2] }; 64];

// ---- by the stub's task, with the world stopped -------------------------------------------------

/// Range, distance to the alias, and `requested` of a region.
type Known = ((u64, u64), u64, bool);

fn get(n: usize) -> Option<Known> {
    let r = REGIONS.get(n).filter(|_| n < COUNT.load(Relaxed))?;
    let range = (r.start.load(Relaxed), r.end.load(Relaxed));
    Some((range, r.distance.load(Relaxed), r.requested.load(Relaxed)))
}

fn set(n: usize, ((start, end), distance, requested): Known) {
    if let Some(r) = REGIONS.get(n) {
        r.start.store(start, Relaxed);
        r.end.store(end, Relaxed);
        r.distance.store(distance, Relaxed);
        r.requested.store(requested, Relaxed);
    }
}

fn settle(count: usize) {
    COUNT.store(count, Relaxed);
    let edge = |n: usize| get(n).map_or((0, 0), |r| r.0);
    let [first, last] = &SPAN;
    first.store(edge(0).0, Relaxed);
    last.store(count.checked_sub(1).map_or(0, |n| edge(n).1), Relaxed);
}

/// Adds a region, which is watched as a whole. Returns `false` if there are too many.
pub fn add_region(range: (u64, u64), distance: u64, requested: bool) -> bool {
    let count = COUNT.load(Relaxed);
    if count >= MOST_REGIONS {
        return false;
    }
    let mut n = count;
    while let Some(before) = n.checked_sub(1).and_then(get).filter(|b| b.0.0 > range.0) {
        set(n, before);
        n -= 1;
    }
    set(n, (range, distance, requested));
    settle(count + 1);
    true
}

/// Removes regions of client requests, as far as they are in `[start, end)`.
pub fn remove_requested(start: u64, end: u64) {
    for refused in &REFUSED {
        let [from, to] = refused;
        if from.load(Relaxed) < end && start < to.load(Relaxed) {
            to.store(0, Relaxed);
        }
    }
    let mut n = 0;
    while let Some((range, distance, requested)) = get(n) {
        if !requested || range.0 >= end || range.1 <= start {
            n += 1;
            continue;
        }
        let count = COUNT.load(Relaxed);
        for next in n + 1..count {
            if let Some(next_one) = get(next) {
                set(next - 1, next_one);
            }
        }
        settle(count - 1);
        for part in [(range.0, start), (end, range.1)] {
            if part.0 < part.1 {
                add_region(part, distance, requested);
                n += 1;
            }
        }
    }
}

/// Records that this memory cannot be watched.
pub fn refuse((start, end): (u64, u64)) {
    let free = |r: &&[AtomicU64; 2]| r[1].load(Relaxed) == 0;
    if let Some([from, to]) = REFUSED.iter().find(free) {
        from.store(start, Relaxed);
        to.store(end, Relaxed);
    }
}

/// Forgets all regions; they are not watched any more.
pub fn forget() {
    settle(0);
}

/// Resets to the state without any region.
#[cfg(test)]
pub fn reset() {
    forget();
    super::twin::clear(&REFUSED);
}

/// The regions that are heaps from before.
pub fn old_regions() -> impl Iterator<Item = (u64, u64)> {
    (0..).map_while(get).filter(|r| !r.2).map(|r| r.0)
}

/// All watched regions.
pub fn regions() -> impl Iterator<Item = (u64, u64)> {
    (0..).map_while(get).map(|r| r.0)
}

// ---- queries of handlers -------------------------------------------------------------------------

/// True if the byte is in a watched region.
#[inline]
pub fn has(addr: u64) -> bool {
    let [first, last] = &SPAN;
    addr < last.load(Relaxed) && addr >= first.load(Relaxed) && region(addr).is_some()
}

fn region(addr: u64) -> Option<&'static Region> {
    let known = REGIONS.get(..COUNT.load(Relaxed)).unwrap_or_default();
    let n = known.partition_point(|r| r.start.load(Relaxed) <= addr);
    let before = n.checked_sub(1).and_then(|n| known.get(n))?;
    (addr < before.end.load(Relaxed)).then_some(before)
}

/// True if the byte is watched because of a client request.
pub fn is_requested(addr: u64) -> bool {
    !arena::has(addr) && region(addr).is_some_and(|r| r.requested.load(Relaxed))
}

/// The rest of `[start, end)` from the first byte on that is not watched, but might be.
pub fn unknown(start: u64, end: u64) -> Option<(u64, u64)> {
    let refused = |at: u64| {
        let of = REFUSED
            .iter()
            .map(|[from, to]| (from.load(Relaxed), to.load(Relaxed)));
        let mut of = of.filter(|r| r.0 <= at && at < r.1);
        of.next().map(|r| r.1)
    };
    let mut at = start;
    while at < end && !arena::has(at) {
        match distance(at).map(|d| d.1).or_else(|| refused(at)) {
            Some(next) => at = next,
            None => return Some((at, end)),
        }
    }
    None
}

/// The distance from an address of a region to its alias, and the region's end.
pub fn distance(addr: u64) -> Option<(u64, u64)> {
    let [first, last] = &SPAN;
    if addr >= last.load(Relaxed) || addr < first.load(Relaxed) {
        return None;
    }
    region(addr).map(|r| (r.distance.load(Relaxed), r.end.load(Relaxed)))
}

/// Start of the region that contains this byte.
pub fn start_of(addr: u64) -> Option<u64> {
    region(addr).map(|r| r.start.load(Relaxed))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::tests::fixture::Statics;
    use super::*;

    const UNITS: u64 = 64;

    #[derive(Clone, Debug)]
    enum Op {
        Add(u64, u64, bool),
        Remove(u64, u64),
        Refuse(u64, u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let range = (1..UNITS).prop_flat_map(|at| (Just(at), at + 1..=UNITS));
        prop_oneof![
            3 => (range.clone(), any::<bool>()).prop_map(|((a, b), requested)| Op::Add(a, b, requested)),
            2 => range.clone().prop_map(|(a, b)| Op::Remove(a, b)),
            1 => range.prop_map(|(a, b)| Op::Refuse(a, b)),
        ]
    }

    /// For each byte: the distance, and whether a client request is the reason.
    type Byte = Option<(u64, bool)>;

    fn check(model: &[Byte], refused: &[(u64, u64)]) -> Result<(), TestCaseError> {
        for (at, byte) in (0u64..).zip(model) {
            prop_assert_eq!(has(at), byte.is_some(), "byte {}", at);
            prop_assert_eq!(is_requested(at), byte.is_some_and(|b| b.1));
            prop_assert_eq!(distance(at).map(|d| d.0), byte.map(|b| b.0));
            let known =
                |n: u64| model[n as usize].is_some() || refused.iter().any(|r| r.0 <= n && n < r.1);
            let first = (at..UNITS).find(|n| !known(*n));
            prop_assert_eq!(unknown(at, UNITS), first.map(|n| (n, UNITS)));
        }
        let all: Vec<_> = regions().collect();
        prop_assert!(all.iter().all(|r| r.0 < r.1));
        prop_assert!(all.windows(2).all(|two| two[0].1 <= two[1].0), "{:?}", all);
        let bytes = |of: &[(u64, u64)]| of.iter().map(|r| r.1 - r.0).sum::<u64>();
        prop_assert_eq!(bytes(&all), model.iter().flatten().count() as u64);
        let old: Vec<_> = old_regions().collect();
        let is_old = |b: &&(u64, bool)| !b.1;
        prop_assert_eq!(
            bytes(&old),
            model.iter().flatten().filter(is_old).count() as u64
        );
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn regions_are_those_of_a_list_of_bytes(ops in vec(op(), 1..40)) {
            let _statics = Statics::take();
            let mut model: Vec<Byte> = vec![None; UNITS as usize + 2];
            let mut refused: Vec<(u64, u64)> = Vec::new();
            for (n, op) in (100u64..).zip(ops) {
                match op {
                    Op::Add(a, b, requested) => {
                        let part = &mut model[a as usize..b as usize];
                        if part.iter().all(Option::is_none) {
                            prop_assert!(add_region((a, b), n, requested));
                            part.fill(Some((n, requested)));
                        }
                    }
                    Op::Remove(a, b) => {
                        remove_requested(a, b);
                        for byte in &mut model[a as usize..b as usize] {
                            *byte = byte.filter(|b| !b.1);
                        }
                        refused.retain(|r| r.0 >= b || a >= r.1);
                    }
                    Op::Refuse(a, b) => {
                        refuse((a, b));
                        refused.push((a, b));
                    }
                }
                check(&model, &refused)?;
            }
        }
    }

    #[test]
    fn there_is_an_end_to_regions() {
        let _statics = Statics::take();
        for n in 0..MOST_REGIONS as u64 {
            assert!(add_region((n * 2 + 2, n * 2 + 3), 0, true));
        }
        assert!(!add_region((1 << 20, 2 << 20), 0, true));
        assert!(!has(1 << 20) && has(2));
        remove_requested(4, 5);
        assert!(add_region((1 << 20, 2 << 20), 0, true));
        assert_eq!(start_of((1 << 20) + 7), Some(1 << 20));
    }

    #[test]
    fn more_refusals_than_there_is_room_for_are_forgotten() {
        let _statics = Statics::take();
        for n in 0..REFUSED.len() as u64 + 1 {
            refuse((n * 2 + 1, n * 2 + 2));
        }
        let last = REFUSED.len() as u64 * 2 - 1;
        assert_eq!(unknown(last, last + 1), None);
        assert_eq!(unknown(last + 2, last + 3), Some((last + 2, last + 3)));
    }
}
