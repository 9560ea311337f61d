//! Memory of the arena: fresh granules, and memory that goes back to the system.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::sys;

use super::arena::{ARENA, CARVED, GRANULE, MAPPED, REFUSED, arena, lock};
use super::{entries, shadow};

/// Least size, in bytes, of free memory that goes back to the system: of a freed block at once, of neighbours when they
/// are joined.
pub const GIVEN_BACK: u64 = 1 << 20;

/// The arena has no memory for a request.
pub enum ArenaFull {
    /// The arena must grow by this many bytes first.
    Grow(u64),
    /// It cannot grow.
    Never,
}

/// Takes fresh granules that were never used.
pub fn carve(granules: u64) -> Result<u64, ArenaFull> {
    let _lock = lock();
    let at = CARVED.load(Relaxed);
    let end = at + granules * GRANULE;
    let more = end.saturating_sub(MAPPED.load(Relaxed));
    if more > 0 && !entries::asleep() {
        // (The program gets an error if it asks for more than there can be.)
        return Err(match more < REFUSED.load(Relaxed) {
            true => ArenaFull::Grow(more),
            false => ArenaFull::Never,
        });
    }
    if more > 0 && (end > ARENA || !grow_alone(more)) {
        return Err(ArenaFull::Never);
    }
    CARVED.store(end, Relaxed);
    Ok(at)
}

/// Grows the arena in a forked child, where no stub's task does it.
fn grow_alone(more: u64) -> bool {
    let mapped = MAPPED.load(Relaxed);
    let more = more.next_multiple_of(16 << 20).min(ARENA - mapped);
    let prot = k::PROT_READ | k::PROT_WRITE;
    let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_FIXED | k::MAP_NORESERVE;
    let at = arena() + mapped;
    // SAFETY: address space that the heap has reserved.
    let done = unsafe { sys!(k::__NR_mmap, at, more, prot, flags, -1i64, 0) }.is_ok();
    if done {
        MAPPED.store(mapped + more, Relaxed);
    }
    done
}

/// Gives whole pages of a freed block back to the system.
pub fn give_back(addr: u64, len: u64) {
    let from = addr.next_multiple_of(PAGE_SIZE);
    let to = (addr + len) & !(PAGE_SIZE - 1);
    if from >= to {
        return;
    }
    each_window(from, to - from, |at, n| {
        let reachable = shadow::reachable(at);
        let advice = match reachable == at {
            true => k::MADV_DONTNEED,
            false => k::MADV_REMOVE,
        };
        // SAFETY: memory of a block that has been freed.
        let _ = unsafe { sys!(k::__NR_madvise, reachable, n, advice) };
    });
}

/// Calls `f` with each part of a range whose alias is contiguous.
pub fn each_window(addr: u64, len: u64, mut f: impl FnMut(u64, u64)) {
    let (mut at, end) = (addr, addr + len);
    while at < end {
        let window = (at - arena()) / shadow::WINDOW * shadow::WINDOW + shadow::WINDOW + arena();
        let stop = end.min(window);
        f(at, stop - at);
        at = stop;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::fixture::Heap;
    use super::*;

    #[test]
    fn who_wants_more_than_is_mapped_says_how_much() {
        let heap = Heap::new(1 << 20, 0);
        // (The first granule is not used.)
        assert!(matches!(carve(2), Err(ArenaFull::Grow(n)) if n == 3 * GRANULE));
        heap.grow(3 * GRANULE);
        assert_eq!(carve(2).ok(), Some(GRANULE));
        assert!(matches!(carve(1), Err(ArenaFull::Grow(GRANULE))));
    }

    #[test]
    fn what_was_refused_is_not_asked_for_again() {
        let heap = Heap::new(1 << 20, 0);
        assert!(heap.retry(|| carve(32)).is_none());
        assert!(matches!(carve(32), Err(ArenaFull::Never)));
        assert!(matches!(carve(31), Err(ArenaFull::Grow(_))));
        assert_eq!(heap.retry(|| carve(2)), Some(GRANULE));
    }

    #[test]
    fn only_whole_pages_are_given_back() {
        let mut heap = Heap::new(1 << 20, 0);
        let at = arena() + GRANULE;
        heap.bytes(at, GRANULE).fill(1);
        give_back(at + 100, 3 * PAGE_SIZE);
        let bytes = heap.bytes(at, GRANULE);
        let zero = bytes.iter().filter(|b| **b == 0).count();
        assert_eq!(zero as u64, 2 * PAGE_SIZE);
        let given = PAGE_SIZE as usize..3 * PAGE_SIZE as usize;
        assert!(bytes[given].iter().all(|b| *b == 0));
        heap.bytes(at, GRANULE).fill(1);
        give_back(at + 1, PAGE_SIZE);
        assert!(heap.bytes(at, GRANULE).iter().all(|b| *b == 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn pieces_are_side_by_side_and_in_one_window(at in 0..4 * shadow::WINDOW, len in 0..3 * shadow::WINDOW) {
            let _heap = Heap::new(1 << 20, 0);
            let mut next = at;
            each_window(arena() + at, len, |piece, n| {
                let piece = piece - arena();
                assert_eq!(piece, next);
                assert!(n > 0 && piece / shadow::WINDOW == (piece + n - 1) / shadow::WINDOW);
                next = piece + n;
            });
            prop_assert_eq!(next, at + len);
        }
    }
}
