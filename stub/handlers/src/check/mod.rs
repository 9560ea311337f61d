//! A checked heap (`ulpf check`): the program's malloc and free are served here, from memory in which every poisoned
//! byte is watched.
//!
//! ```text
//!  malloc, free, operator delete …   their first bytes: a jump ─▶ hooks.rs ─▶ `direct` ─▶ called()
//!                                                                                          │
//!  the arena   │ block │ gap │ block │ gap │ freed block (quarantine) │ …           heap.rs ┘ depot.rs (callers)
//!  its bits      0000    1111  0000    1111  1111111111111111111111      shadow.rs
//!                                                                             │
//!  an access ─▶ a fault, or a trampoline: bits of the bytes ── set ──▶ hits.rs ─▶ judge.rs ─▶ report.rs
//! ```
//! The arena is one stretch of address space that grows by chunks. Each chunk is one watch for all accesses whose part
//! is [`Part::Checked`](ulpf_stub_tables::attributes::Part): the range does not decide what is a hit. The bits do, by
//! which trampolines decide, too. Each byte of the arena has a bit that is set if the byte is poisoned. So malloc and
//! free change bits and nothing else, on the calling thread, without stopping other threads.
//!
//! Client requests of the program (Valgrind's) come the same way (`requests.rs`) and change bits, too (`client.rs`,
//! `client_blocks.rs`). They may be about other memory, which is watched from then on (`regions.rs`). Blocks of the
//! program's own allocators are in separate lists (`client_list.rs`).
//!
//! The records of blocks are kept apart from the blocks (`blocks.rs`), where stray stores of the program are unlikely
//! to hit.
//!
//! A forked child has a copy of all this, but no guards. There the functions continue to serve its blocks, on its own
//! stack, and check nothing ([`alone`]). If the child is followed, its own stub takes over the books (`adopt.rs`).

use core::sync::atomic::{AtomicBool, Ordering::*};

pub mod adopt;
pub mod arena;
pub mod block_map;
pub mod blocks;
pub mod chain;
pub mod client;
pub mod client_blocks;
pub mod client_list;
pub mod computed;
pub mod depot;
pub mod entries;
pub mod errno;
pub mod family;
pub mod files;
pub mod findings;
pub mod granules;
pub mod heap;
pub mod hooks;
pub mod judge;
pub mod jumps;
pub mod large;
pub mod left;
pub mod lookup;
pub mod old;
pub mod out_of_block;
pub mod overlaps;
pub mod precheck;
pub mod quarantine;
pub mod regions;
pub mod report;
pub mod requests;
pub mod serve;
pub mod shadow;
pub mod shard;
#[cfg(test)]
mod tests {
    pub mod fixture;
}
pub mod thunks;
pub mod twin;

/// Blocks left at the end of the program are searched.
pub static LEAKS: AtomicBool = AtomicBool::new(false);

/// A debugger wants the program to stop at its errors.
pub static STOPS: AtomicBool = AtomicBool::new(false);

/// True if a heap is checked and no debugger stops at its errors: then the bits alone decide.
pub fn has_no_debugger() -> bool {
    entries::ON.load(Relaxed) && !STOPS.load(Relaxed)
}

/// A forked child, or a program after a detach, has the heap and nothing that watches it. Its functions continue, and
/// report nothing. (A program that ran before and holds no block of ours needs none of that: [`left`].)
pub fn alone() {
    if entries::ON.load(Relaxed) {
        entries::fall_asleep();
        requests::fall_asleep();
        shadow::forget();
        regions::forget();
    }
}

/// True if a program allocates from our image and memory after a detach. That is so if it had no allocator before us.
pub fn stays() -> bool {
    entries::ON.load(Relaxed) && !left::LEFT.load(Relaxed)
}

/// True if a forked child needs our image and memory.
pub fn stays_in_child() -> bool {
    entries::ON.load(Relaxed)
}
