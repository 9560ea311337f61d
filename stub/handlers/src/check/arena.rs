//! The address space of the checked heap, and the heap's common lock.

use core::sync::atomic::{AtomicU64, Ordering::*};

use ulpf_lib::sync::lock::{Lock, Locked};

/// Bytes of address space for blocks.
pub const ARENA: u64 = 1 << ulpf_engine::patch::ARENA_BITS;
/// Bytes of a granule: slots of one size share it; large blocks have multiples of it.
pub const GRANULE: u64 = 1 << ulpf_engine::patch::GRANULE_BITS;
/// Bytes of the smallest slot.
pub const SMALLEST: u64 = 32;
/// Bytes of the table that has a word for each granule.
pub const GRANULES: u64 = ARENA / GRANULE * 8;

/// Addresses of the arena and its tables. The stub's task writes them before the first call is served.
pub static START: AtomicU64 = AtomicU64::new(0);
pub static RECORDS_AT: AtomicU64 = AtomicU64::new(0);
pub static GRANULES_AT: AtomicU64 = AtomicU64::new(0);
/// Bytes of the arena that are mapped memory, and bytes of those that have been given to granules.
pub static MAPPED: AtomicU64 = AtomicU64::new(0);
pub static CARVED: AtomicU64 = AtomicU64::new(GRANULE);
/// The smallest growth, in bytes, that has failed.
pub static REFUSED: AtomicU64 = AtomicU64::new(u64::MAX);

/// First byte of the arena, or 0 if no heap is checked.
#[inline]
pub fn arena() -> u64 {
    START.load(Relaxed)
}

/// True if the byte at `addr` is in the arena.
#[inline]
pub fn has(addr: u64) -> bool {
    let start = arena();
    start != 0 && addr.wrapping_sub(start) < ARENA
}

/// Bytes of the arena that are mapped memory.
pub fn mapped() -> u64 {
    MAPPED.load(Relaxed)
}

/// Records that the arena cannot grow by `bytes`, and returns the limit known before. Called by the stub's task with
/// the world stopped.
pub fn refuse(bytes: u64) -> u64 {
    REFUSED.fetch_min(bytes, Relaxed)
}

/// Records that the arena is mapped up to `to` bytes. Called by the stub's task with the world stopped.
pub fn grown(to: u64) {
    MAPPED.store(to, Relaxed);
}

/// Resets to the state before there is a heap.
#[cfg(test)]
pub fn reset() {
    for word in [&START, &RECORDS_AT, &GRANULES_AT, &MAPPED] {
        word.store(0, Relaxed);
    }
    CARVED.store(GRANULE, Relaxed);
    REFUSED.store(u64::MAX, Relaxed);
}

// ---- the lock ------------------------------------------------------------------------------------

/// Guards what all shards share: room for granules, blocks of client requests, the depot of callers, reports. A thread
/// that holds a shard's lock ([`super::shard`]) may take it, not the other way round.
static LOCK: Lock = Lock::open();

pub fn lock() -> Locked<'static> {
    LOCK.lock()
}
