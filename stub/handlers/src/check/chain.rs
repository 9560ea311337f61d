//! Freed slots, one behind the other.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use super::arena::GRANULE;
use super::blocks::{Granule, Slot, expect, get, granule, offset, set_next};

/// Slots, the oldest first, each of which leads to the next one.
pub struct Chain {
    first: AtomicU32,
    last: AtomicU32,
    bytes: AtomicU64,
}

/// A chain that nobody else has.
pub struct Loose {
    pub first: u32,
    pub last: u32,
    pub bytes: u64,
}

impl Chain {
    pub const fn empty() -> Chain {
        Chain {
            first: AtomicU32::new(0),
            last: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub fn append(&self, more: &Loose) {
        match self.last.load(Relaxed) {
            0 => self.first.store(more.first, Relaxed),
            last => set_next(offset(last), more.first),
        }
        self.last.store(more.last, Relaxed);
        self.bytes
            .store(self.bytes.load(Relaxed) + more.bytes, Relaxed);
    }

    pub fn take_all(&self) -> Loose {
        Loose {
            first: self.first.swap(0, Relaxed),
            last: self.last.swap(0, Relaxed),
            bytes: self.bytes.swap(0, Relaxed),
        }
    }

    /// The oldest ones, until no more than so many bytes are left. (The last one's `next` is not theirs.)
    pub fn take_until(&self, left: u64) -> Option<Loose> {
        let first = Some(self.first.load(Relaxed)).filter(|first| *first != 0)?;
        let (mut last, mut next, mut bytes) = (0, first, 0);
        let all = self.bytes.load(Relaxed);
        while next != 0 && all - bytes > left {
            (last, next) = (next, get(offset(next)).next);
            if next != 0 {
                expect(offset(next));
            }
            bytes += bytes_of(offset(last));
        }
        (bytes > 0).then_some(())?;
        self.first.store(next, Relaxed);
        if next == 0 {
            self.last.store(0, Relaxed);
        }
        self.bytes.store(all - bytes, Relaxed);
        Some(Loose { first, last, bytes })
    }
}

/// What a slot takes.
fn bytes_of(slot: u64) -> u64 {
    let bytes = match granule(slot & !(GRANULE - 1)) {
        Granule::Small(size) => size,
        Granule::Large(n) => n * GRANULE,
        _ => return 0,
    };
    takes(bytes)
}

/// What a freed slot of so many bytes takes: with its record, and a bit for each byte.
pub fn takes(bytes: u64) -> u64 {
    bytes + bytes / 8 + size_of::<Slot>() as u64
}
