//! Threads that allocate do not wait for each other: each has one of a few shelves, with free slots and granules of its own.
//!
//! ```text
//! thread ─▶ shelf   free and unused slots by size, of granules that are this shelf's for good (`blocks::owner`)
//!                   freed blocks of these, until they are enough for the quarantine (`quarantine.rs`)
//! ```
//! A block is changed under the lock of its own shelf, whoever frees it. The first shelf has all large blocks, too.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use ulpf_lib::ring::found::{Counts, Findings, SHELVES};

use super::arena::{self, GRANULE, Lock, Locked};
use super::blocks::{Granule, get, granule, offset, owner, put_free, slot_of};
use super::chain::Chain;
use super::found::{count, findings};
use super::large;
use super::twin::Twin;

const CLASSES: usize = 64;

/// By size of slots: the free ones, and where the next unused one is and its granule ends.
pub struct Class {
    pub free: AtomicU32,
    pub fresh: AtomicU64,
    pub end: AtomicU64,
}

#[repr(align(64))]
struct Shelf {
    lock: Lock,
    classes: [Class; CLASSES],
    /// Freed blocks that are not in the quarantine yet.
    freed: Chain,
    /// The fewest bytes in its blocks since the sum of all shelves was taken last.
    least: AtomicU64,
}

static ALL: [Shelf; SHELVES] = [const {
    Shelf {
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
}; SHELVES];
/// A bit for each shelf that was ever used.
static USED: AtomicU32 = AtomicU32::new(0);

/// A forked child: what its parent's stub knew is known here, too.
pub fn adopt(twin: Twin) {
    // (At rest, when no lock is taken.)
    twin.take(&ALL);
    twin.take(&USED);
}

/// The number and the size of slots for so many bytes.
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

/// A shelf that is the caller's alone, until this is dropped.
pub struct Taken {
    number: usize,
    shelf: &'static Shelf,
    _locked: Locked<'static>,
}

/// The shelf with this number, or whichever it stands for.
pub fn take(number: usize) -> Taken {
    let number = number % SHELVES;
    let [first, ..] = &ALL;
    let shelf = ALL.get(number).unwrap_or(first);
    Taken {
        number,
        shelf,
        _locked: shelf.lock.lock(),
    }
}

/// The shelf that has the byte at `addr`, with the slot and its bytes.
pub fn take_of(addr: u64) -> Option<(Taken, u64, u64)> {
    loop {
        let number = owner(slot_of(addr)?.0);
        let taken = take(number);
        // (It has become another's meanwhile, if nobody's slots were there.)
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
        self.shelf.classes.get(n)
    }

    pub fn freed(&self) -> &'static Chain {
        &self.shelf.freed
    }

    /// What is counted of its blocks, if anybody looks.
    fn counts(&self) -> Option<(&'static Findings, &'static Counts)> {
        let f = findings()?;
        Some((f, f.counts.get(self.number)?))
    }

    /// Counts a block of so many bytes that is in use from now on.
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

    /// Or is not any more.
    pub fn released(&self, size: u64) {
        if let Some((_, counts)) = self.counts() {
            count(&counts.freed, 1);
            count(&counts.bytes, -(size as i64));
        }
    }

    /// The bytes in all blocks, after `size` more, with which this shelf has `own`. `None`: it has not many more than when it
    /// had least since the last look. Who shares the heap with others looks only now and then: what they count is in their
    /// caches.
    fn look(&self, f: &Findings, own: u64, size: u64) -> Option<u64> {
        const STEP: u64 = 4096;
        let (bit, mut used) = (1 << self.number, USED.load(Relaxed));
        if used & bit == 0 {
            used = USED.fetch_or(bit, Relaxed) | bit;
        }
        if used == bit {
            return Some(own);
        }
        let least = self.shelf.least.load(Relaxed).min(own.wrapping_sub(size));
        let looks = own.wrapping_sub(least) >= STEP;
        let least = if looks { own } else { least };
        self.shelf.least.store(least, Relaxed);
        looks.then(|| f.bytes())
    }

    /// The first slot of a list of this shelf, which is in none any more.
    pub fn pop(&self, list: &AtomicU32) -> Option<u64> {
        let slot = Some(list.load(Relaxed))
            .filter(|link| *link != 0)
            .map(offset)?;
        list.store(get(slot).next, Relaxed);
        Some(slot)
    }

    /// A slot of this shelf may be used again.
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
