//! Threads that allocate do not wait for each other: each has one of a few shelves, with free slots and granules of its own.
//!
//! ```text
//! thread ─▶ shelf   free and unused slots by size, of granules that are this shelf's for good (`blocks::owner`)
//!                   freed blocks of these, until they are enough for the quarantine (`quarantine.rs`)
//! ```
//! A block is changed under the lock of its own shelf, whoever frees it. The first shelf has all large blocks, too.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use ulpf_lib::ring::found::{Counts, SHELVES};

use super::arena::{self, Lock, Locked};
use super::blocks::{Slot, get, link, offset, owner, put, slot_of};
use super::chain::Chain;
use super::found::findings;
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
    /// The bytes in its blocks when the sum of all shelves was taken last.
    looked: AtomicU64,
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
        looked: AtomicU64::new(0),
    }
}; SHELVES];
/// Free large blocks, under the lock of the first shelf.
static LARGE: AtomicU32 = AtomicU32::new(0);
/// A bit for each shelf that was ever used.
static USED: AtomicU32 = AtomicU32::new(0);

/// A forked child: what its parent's stub knew is known here, too.
pub fn adopt(twin: Twin) {
    // (At rest, when no lock is taken.)
    twin.take(&ALL);
    twin.take(&LARGE);
    twin.take(&USED);
}

/// The number and the size of slots for so many bytes.
pub fn class(need: u64) -> (usize, u64) {
    let need = need.max(arena::SMALLEST);
    if need <= 128 {
        let size = need.next_multiple_of(16);
        return (((size - 64) / 16) as usize, size);
    }
    // Eight sizes from each power of two to the next one.
    let power = (need - 1).ilog2();
    let step = 1u64 << (power - 3);
    let size = need.next_multiple_of(step);
    let n = (size - (1 << power)) / step;
    ((4 + u64::from(power - 7) * 8 + n) as usize, size)
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

    /// The list of free large blocks, of which the first shelf has them all.
    pub fn large(&self) -> &'static AtomicU32 {
        &LARGE
    }

    pub fn freed(&self) -> &'static Chain {
        &self.shelf.freed
    }

    /// Counts a block of so many bytes that is in use from now on.
    pub fn allocated(&self, size: u64) {
        self.count(|counts| (&counts.allocated, size));
        self.look();
    }

    /// Or is not any more.
    pub fn released(&self, size: u64) {
        self.count(|counts| (&counts.freed, size.wrapping_neg()));
    }

    fn count(&self, which: impl FnOnce(&Counts) -> (&AtomicU64, u64)) {
        let Some(counts) = findings().and_then(|f| f.counts.get(self.number)) else {
            return;
        };
        let add = |to: &AtomicU64, n| to.store(to.load(Relaxed).wrapping_add(n), Relaxed);
        let (blocks, bytes) = which(counts);
        add(blocks, 1);
        add(&counts.bytes, bytes);
    }

    /// Are these the most bytes so far? Who shares the heap with others looks only now and then: what they count is in their
    /// caches.
    fn look(&self) {
        const STEP: u64 = 4096;
        let Some((f, counts)) = findings().and_then(|f| Some((f, f.counts.get(self.number)?)))
        else {
            return;
        };
        let (bit, mut used) = (1 << self.number, USED.load(Relaxed));
        if used & bit == 0 {
            used = USED.fetch_or(bit, Relaxed) | bit;
        }
        let own = counts.bytes.load(Relaxed);
        let mut now = own;
        if used != bit {
            let more = own.wrapping_sub(self.shelf.looked.load(Relaxed)) as i64;
            if (0..STEP as i64).contains(&more) {
                return;
            }
            self.shelf.looked.store(own, Relaxed);
            now = f.bytes();
        }
        if now > f.most.load(Relaxed) {
            f.most.fetch_max(now, Relaxed);
        }
    }

    /// Slots of a list of this shelf: the first one, which is in none any more.
    pub fn pop(&self, list: &AtomicU32) -> Option<u64> {
        let slot = Some(list.load(Relaxed))
            .filter(|link| *link != 0)
            .map(offset)?;
        list.store(get(slot).next, Relaxed);
        Some(slot)
    }

    pub fn push(&self, list: &AtomicU32, slot: u64, state: u8) {
        let next = list.swap(link(slot), Relaxed);
        put(
            slot,
            Slot {
                state,
                next,
                ..get(slot)
            },
        );
    }
}
