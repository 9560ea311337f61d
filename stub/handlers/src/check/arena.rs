//! Where the checked heap is, and its locks.

use core::sync::atomic::{AtomicU64, Ordering::*};

use ulpf_lib::sync::lock::{Lock, Locked};

/// Bytes of address space for blocks.
pub const ARENA: u64 = 1 << ulpf_engine::patch::ARENA_BITS;
/// Slots of one size share these bytes; large blocks have multiples of them.
pub const GRANULE: u64 = 1 << ulpf_engine::patch::GRANULE_BITS;
/// No slot is smaller.
pub const SMALLEST: u64 = 32;
/// Bytes for the words of granules.
pub const GRANULES: u64 = ARENA / GRANULE * 8;

/// Where everything is; written by the stub's task before anybody is served.
pub static START: AtomicU64 = AtomicU64::new(0);
pub static RECORDS_AT: AtomicU64 = AtomicU64::new(0);
pub static GRANULES_AT: AtomicU64 = AtomicU64::new(0);
/// So much of the arena is memory, and so much of that has been given to granules; in bytes.
pub static MAPPED: AtomicU64 = AtomicU64::new(0);
pub static CARVED: AtomicU64 = AtomicU64::new(GRANULE);
/// It cannot grow by so many bytes, or by more.
pub static REFUSED: AtomicU64 = AtomicU64::new(u64::MAX);

/// Its first byte; 0: there is none.
#[inline]
pub fn arena() -> u64 {
    START.load(Relaxed)
}

/// Is the byte at `addr` in the arena?
#[inline]
pub fn has(addr: u64) -> bool {
    let start = arena();
    start != 0 && addr.wrapping_sub(start) < ARENA
}

/// So much of the arena is memory.
pub fn mapped() -> u64 {
    MAPPED.load(Relaxed)
}

/// By the stub's task, at rest: it cannot grow by so many bytes. How many were too many before.
pub fn refuse(bytes: u64) -> u64 {
    REFUSED.fetch_min(bytes, Relaxed)
}

/// By the stub's task, at rest: so much is memory now.
pub fn grown(to: u64) {
    MAPPED.store(to, Relaxed);
}

/// As it is before there is a heap.
#[cfg(test)]
pub fn reset() {
    for word in [&START, &RECORDS_AT, &GRANULES_AT, &MAPPED] {
        word.store(0, Relaxed);
    }
    CARVED.store(GRANULE, Relaxed);
    REFUSED.store(u64::MAX, Relaxed);
}

// ---- the lock ------------------------------------------------------------------------------------

/// Of what there is one of: room for granules, blocks that the program has told of, callers, reports. Whoever has a shelf's
/// ([`super::shelf`]) may take it, not the other way round.
static LOCK: Lock = Lock::open();

pub fn lock() -> Locked<'static> {
    LOCK.lock()
}
