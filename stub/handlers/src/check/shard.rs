//! Shards of the heap: each thread has one of a few shards, with free slots and granules of its own, so threads need
//! not wait for each other.
//!
//! ```text
//! thread ─▶ shard   free and unused slots by size, of granules that are this shard's for good (`blocks::owner`)
//!                   freed blocks of these, until they are enough for the quarantine (`quarantine.rs`)
//! ```
//! A block is changed under the lock of its own shard, also if another thread frees it. The first shard also has all
//! large blocks.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use ulpf_lib::ring::findings::{Counts, Findings, SHARDS};
use ulpf_lib::sync::lock::{Lock, Locked};

use super::arena::{self, GRANULE};
use super::blocks::{Granule, get, granule, offset, owner, put_free, slot_of};
use super::chain::Chain;
use super::findings::{count, findings};
use super::large;
use super::twin::Twin;

const CLASSES: usize = 64;

/// A size of slots: the list of free ones, the next unused one, and the end of its granule.
pub struct Class {
    pub free: AtomicU32,
    pub fresh: AtomicU64,
    pub end: AtomicU64,
}

#[repr(align(64))]
struct Shard {
    lock: Lock,
    classes: [Class; CLASSES],
    /// Freed blocks that are not in quarantine yet.
    freed: Chain,
    /// The fewest bytes in its blocks since the sum of all shards was last taken.
    least: AtomicU64,
}

static ALL: [Shard; SHARDS] = [const {
    Shard {
        lock: Lock::open(),
        classes: [const {
            Class {
                free: AtomicU32::new(0),
                fresh: AtomicU64::new(0),
                end: AtomicU64::new(0),
            }
        }; CLASSES],
        freed: Chain::empty(),
        least: AtomicU64::new(0),
    }
}; SHARDS];
/// A bit for each shard that was ever used.
static USED: AtomicU32 = AtomicU32::new(0);

/// Takes over the state of the parent's stub in a forked child.
pub fn adopt(twin: Twin) {
    // (The world is stopped, so no lock is held.)
    twin.take(&ALL);
    twin.take(&USED);
}

/// Resets to the state before any thread has used a shard.
#[cfg(test)]
pub fn reset() {
    super::twin::clear(&ALL);
    super::twin::clear(&USED);
}

/// The class and the slot size for `need` bytes.
pub fn class(need: u64) -> (usize, u64) {
    let need = need.max(arena::SMALLEST);
    if need <= 128 {
        let size = need.next_multiple_of(16);
        return (((size - arena::SMALLEST) / 16) as usize, size);
    }
    // Eight sizes from each power of two to the next one.
    let power = (need - 1).ilog2();
    let step = 1u64 << (power - 3);
    let size = need.next_multiple_of(step);
    let n = (size - (1 << power)) / step;
    let below = (128 - arena::SMALLEST) / 16;
    ((below + u64::from(power - 7) * 8 + n) as usize, size)
}

/// A locked shard; dropping it releases the lock.
pub struct Taken {
    number: usize,
    shard: &'static Shard,
    _locked: Locked<'static>,
}

/// Locks the shard with this number, modulo the number of shards.
pub fn take(number: usize) -> Taken {
    let number = number % SHARDS;
    let [first, ..] = &ALL;
    let shard = ALL.get(number).unwrap_or(first);
    Taken {
        number,
        shard,
        _locked: shard.lock.lock(),
    }
}

/// Locks the shard that owns the byte at `addr`. Also returns the slot and its size in bytes.
pub fn take_of(addr: u64) -> Option<(Taken, u64, u64)> {
    loop {
        let number = owner(slot_of(addr)?.0);
        let taken = take(number);
        // (A granule without slots may have got another owner meanwhile.)
        let (slot, bytes) = slot_of(addr)?;
        if owner(slot) == number {
            return Some((taken, slot, bytes));
        }
    }
}

impl Taken {
    pub fn number(&self) -> usize {
        self.number
    }

    pub fn class(&self, n: usize) -> Option<&'static Class> {
        self.shard.classes.get(n)
    }

    pub fn freed(&self) -> &'static Chain {
        &self.shard.freed
    }

    /// The counters of this shard, unless they are not read any more.
    fn counts(&self) -> Option<(&'static Findings, &'static Counts)> {
        let f = findings()?;
        Some((f, f.counts.get(self.number)?))
    }

    /// Counts a new block of `size` bytes in use.
    pub fn allocated(&self, size: u64) {
        let Some((f, counts)) = self.counts() else {
            return;
        };
        count(&counts.allocated, 1);
        let own = count(&counts.bytes, size as i64);
        if let Some(now) = self.look(f, own, size)
            && now > f.most.load(Relaxed)
        {
            f.most.fetch_max(now, Relaxed);
        }
    }

    /// Counts a block of `size` bytes that is not in use any more.
    pub fn released(&self, size: u64) {
        if let Some((_, counts)) = self.counts() {
            count(&counts.freed, 1);
            count(&counts.bytes, -(size as i64));
        }
    }

    /// The bytes in all blocks, after an allocation of `size` by which this shard has `own`. `None` if the shard has
    /// grown by less than `STEP` since its low since the last look. With several shards in use the sum is seldom
    /// taken, since their counters are in the caches of other cores.
    fn look(&self, f: &Findings, own: u64, size: u64) -> Option<u64> {
        const STEP: u64 = 4096;
        let (bit, mut used) = (1 << self.number, USED.load(Relaxed));
        if used & bit == 0 {
            used = USED.fetch_or(bit, Relaxed) | bit;
        }
        if used == bit {
            return Some(own);
        }
        let least = self.shard.least.load(Relaxed).min(own.wrapping_sub(size));
        let looks = own.wrapping_sub(least) >= STEP;
        let least = if looks { own } else { least };
        self.shard.least.store(least, Relaxed);
        looks.then(|| f.bytes())
    }

    /// Takes the first slot out of a list of this shard.
    pub fn pop(&self, list: &AtomicU32) -> Option<u64> {
        let slot = Some(list.load(Relaxed))
            .filter(|link| *link != 0)
            .map(offset)?;
        list.store(get(slot).next, Relaxed);
        Some(slot)
    }

    /// Makes a slot of this shard usable again.
    pub fn take_back(&self, slot: u64) {
        match granule(slot & !(GRANULE - 1)) {
            Granule::Small(size) => {
                if let Some(class) = self.class(class(size).0) {
                    put_free(&class.free, slot, get(slot));
                }
            }
            Granule::Large(n) => large::put_back(slot, n, get(slot)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::heap;
    use super::super::tests::fixture::Heap;
    use super::*;

    #[test]
    fn each_size_has_the_smallest_class_that_holds_it() {
        let mut sizes: [u64; CLASSES] = [0; CLASSES];
        let mut last = (0, 0);
        for need in 1..=heap::LARGEST {
            let (n, size) = class(need);
            assert!(size >= need && size >= arena::SMALLEST && size % 16 == 0);
            // At most one eighth is lost, except for the smallest sizes.
            assert!(need <= 128 || size - need < need / 8 + 1, "{need}: {size}");
            assert!(need > 128 || size < need.max(arena::SMALLEST) + 16);
            assert_eq!(class(size), (n, size));
            assert!(sizes[n] == 0 || sizes[n] == size, "class {n}");
            sizes[n] = size;
            assert!((n, size) >= last && n <= last.0 + 1, "{need}");
            last = (n, size);
        }
    }

    #[test]
    fn a_granule_is_divided_into_slots_that_lie_in_it() {
        let heap = Heap::new(16 << 20, 0);
        for need in [1, 33, 129, 200, 5000, heap::LARGEST] {
            let shard = take(3);
            let size = class(need).1;
            let slot = heap.retry(|| heap::small(&shard, need)).unwrap();
            assert_eq!(slot % GRANULE, 0, "the first one of its granule");
            assert!(granule(slot) == Granule::Small(size));
            for n in 1..GRANULE / size {
                assert_eq!(heap::small(&shard, need).ok(), Some(slot + n * size));
            }
            assert_eq!(owner(slot), 3);
            drop(shard);
            let last = arena::arena() + slot + GRANULE / size * size;
            let of = take_of(last - 1).map(|(shard, slot, size)| (shard.number(), slot, size));
            assert_eq!(of, Some((3, last - size - arena::arena(), size)));
            // The rest of the granule is no slot, nor is the memory beyond what has been carved.
            assert_eq!(slot_of(last), None);
        }
    }

    #[test]
    fn numbers_beyond_the_last_shard_begin_again() {
        let _heap = Heap::new(1 << 20, 0);
        assert_eq!(take(SHARDS + 2).number(), 2);
    }

    #[test]
    fn a_slot_that_is_taken_back_is_the_next_one() {
        let heap = Heap::new(1 << 20, 0);
        let shard = take(1);
        let small = || heap.retry(|| heap::small(&shard, 100)).unwrap();
        let [a, b, c] = [small(), small(), small()];
        for slot in [a, c] {
            shard.take_back(slot);
            assert_eq!(get(slot).state, super::super::blocks::FREE);
        }
        assert_eq!([small(), small(), small()], [c, a, b + class(100).1 * 2]);
    }

    #[test]
    fn the_peak_is_exact_though_shards_report_now_and_then() {
        let heap = Heap::new(1 << 20, 0);
        let f = heap.findings();
        for _ in 0..100 {
            take(0).allocated(1000);
            take(5).allocated(500);
        }
        assert_eq!(f.bytes(), 150_000);
        let most = f.most.load(Relaxed);
        assert!((150_000 - 2 * 4096..=150_000).contains(&most), "{most}");
        for _ in 0..100 {
            take(5).released(500);
        }
        assert_eq!((f.bytes(), f.freed()), (100_000, 100));
        assert_eq!(f.most.load(Relaxed), most);
    }
}
