//! The quarantine: freed blocks are used again only after a number of bytes has been freed after them.
//!
//! ```text
//! free ─▶ chain of the block's shard ── some kilobytes ──▶ the quarantine, a chain of all ── too long ──▶ shards
//! ```
//! So threads do not contend for the end of the quarantine at each call.

use core::sync::atomic::{AtomicU64, Ordering::*};

use ulpf_lib::ring::findings::SHARDS;
use ulpf_lib::sync::lock::Lock;

use super::arena::arena;
use super::blocks::{expect, get, link, offset, owner};
use super::chain::{Chain, Loose, takes};
use super::findings::findings;
use super::shadow;
use super::shard::{self, Taken};
use super::twin::Twin;

/// Limit of bytes in the chain of a shard.
const MOST_FREED: u64 = 64 << 10;

/// Least bytes of freed blocks in quarantine, with their redzones and records ([`takes`]).
static QUARANTINE: AtomicU64 = AtomicU64::new(64 << 20);
/// A thread that holds it takes no other lock.
static LOCK: Lock = Lock::open();
/// All slots in quarantine; protected by the lock.
static WAITING: Chain = Chain::empty();

pub fn begin(bytes: u64) {
    QUARANTINE.store(bytes, Relaxed);
}

/// Takes over the state of the parent's stub in a forked child.
pub fn adopt(twin: Twin) {
    twin.take(&QUARANTINE);
    twin.take(&WAITING);
}

/// Resets to the state before [`begin`].
#[cfg(test)]
pub fn reset() {
    super::twin::clear(&WAITING);
    QUARANTINE.store(64 << 20, Relaxed);
}

/// Adds a freed slot of `bytes` bytes of that shard.
pub fn add(shard: Taken, slot: u64, bytes: u64) {
    let quarantine = QUARANTINE.load(Relaxed);
    let enough = (quarantine / 1024).min(MOST_FREED);
    let freed = shard.freed();
    freed.append(&Loose {
        first: link(slot),
        last: link(slot),
        bytes: takes(bytes),
    });
    if freed.bytes() < enough {
        return;
    }
    let chain = freed.take_all();
    drop(shard);
    let ended = {
        let _lock = LOCK.lock();
        WAITING.append(&chain);
        // (A chain of another shard may have been freed earlier and come later.)
        let ended = WAITING.take_until(quarantine + enough * (SHARDS as u64 - 1));
        if let Some(f) = findings() {
            f.kept.store(WAITING.bytes(), Relaxed);
        }
        ended
    };
    if let Some(ended) = ended {
        release(&ended);
    }
}

/// Shortens the quarantine to half, for good, when there is no memory for `need` bytes. Returns `false` if that would
/// not help.
pub fn shorten(need: u64) -> bool {
    const LEAST: u64 = 64 << 10;
    let ended = {
        let _lock = LOCK.lock();
        let waiting = WAITING.bytes();
        if waiting < need.max(LEAST) {
            return false;
        }
        QUARANTINE.fetch_min(waiting / 2, Relaxed);
        WAITING.take_until(waiting / 2)
    };
    if let Some(ended) = &ended {
        release(ended);
    }
    ended.is_some()
}

/// Makes these slots usable again.
fn release(chain: &Loose) {
    let mut shard: Option<Taken> = None;
    let mut at = chain.first;
    while at != 0 {
        let slot = offset(at);
        at = match at == chain.last {
            true => 0,
            false => get(slot).next,
        };
        if at != 0 {
            expect(offset(at));
        }
        // Its bits change when it is allocated, most likely soon.
        shadow::expect(arena() + slot);
        let number = owner(slot);
        // (One lock is held at a time.)
        let same = shard.take().filter(|taken| taken.number() == number);
        let taken = same.unwrap_or_else(|| shard::take(number));
        taken.take_back(slot);
        shard = Some(taken);
    }
}

#[cfg(test)]
mod tests {
    use ulpf_lib::ring::findings::By;

    use super::super::arena::GRANULE;
    use super::super::blocks::{FREE, QUARANTINED};
    use super::super::heap;
    use super::super::tests::fixture::{Heap, origin};
    use super::*;

    const SIZE: u64 = 1000;

    fn slot(addr: u64) -> u64 {
        addr - arena()
    }

    fn allocate(heap: &Heap, thread: u32) -> u64 {
        let from = origin(thread, By::Malloc, 0);
        heap.allocate(SIZE, 16, from, false).expect("room")
    }

    fn free_all(all: &[u64]) {
        for at in all {
            heap::free(*at, By::Malloc, 0).expect("a block");
        }
    }

    fn states(all: &[u64]) -> Vec<u8> {
        all.iter().map(|at| get(slot(*at)).state).collect()
    }

    #[test]
    fn the_oldest_ones_are_used_again_first() {
        let each = takes(shard::class(SIZE + 64 + 8).1);
        let heap = Heap::new(4 << 20, 10 * each);
        let all: Vec<u64> = (0..40).map(|_| allocate(&heap, 1)).collect();
        free_all(&all);
        let states = states(&all);
        let used = states.iter().filter(|s| **s == FREE).count();
        // (Including what other shards may still hold: seven times a kilobyte's share of it.)
        assert!((25..=30).contains(&used), "{used}");
        assert!(states[..used].iter().all(|s| *s == FREE));
        assert!(states[used..].iter().all(|s| *s == QUARANTINED));
        assert_eq!(
            heap.findings().kept.load(Relaxed),
            (40 - used as u64) * each
        );
    }

    #[test]
    fn a_shard_keeps_some_before_it_hands_them_on() {
        let heap = Heap::new(4 << 20, 64 << 20);
        let all: Vec<u64> = (0..100).map(|_| allocate(&heap, 2)).collect();
        free_all(&all[..40]);
        assert_eq!(WAITING.bytes(), 0);
        let freed = shard::take(2).freed().bytes();
        assert_eq!(freed % 40, 0);
        free_all(&all[40..]);
        let freed = freed / 40 * 100;
        let own = shard::take(2).freed().bytes();
        assert!(own < MOST_FREED && WAITING.bytes() >= MOST_FREED);
        assert_eq!(WAITING.bytes() + own, freed);
    }

    #[test]
    fn where_memory_ends_half_is_used_again_and_less_is_kept() {
        let heap = Heap::new(4 << 20, 64 << 20);
        assert!(!shorten(1), "there is nothing");
        let all: Vec<u64> = (0..400).map(|n| allocate(&heap, n % 2)).collect();
        free_all(&all);
        let waiting = WAITING.bytes();
        assert!(!shorten(waiting + 1), "that would not be enough");
        assert_eq!(WAITING.bytes(), waiting);
        assert!(shorten(waiting));
        assert!(WAITING.bytes() <= waiting / 2);
        assert_eq!(QUARANTINE.load(Relaxed), waiting / 2);
        let free = states(&all).iter().filter(|s| **s == FREE).count();
        assert!((100..=200).contains(&free), "{free}");
        // Each slot went back to its own shard.
        for at in &all {
            if get(slot(*at)).state == FREE {
                assert!((0..2).contains(&owner(slot(*at))));
            }
        }
        let carved = super::super::arena::CARVED.load(Relaxed);
        for n in 0..free as u32 {
            allocate(&heap, n % 2);
        }
        let more = super::super::arena::CARVED.load(Relaxed) - carved;
        assert!(more <= 2 * GRANULE, "they are used again");
    }
}
