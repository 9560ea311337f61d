//! A checked heap (`ulpf check`): the program's malloc and free are served here, from memory in which every byte that
//! nobody may touch is watched.
//!
//! ```text
//!  malloc, free, operator delete …   their first bytes: a jump ─▶ hooks.rs ─▶ `direct` ─▶ called()
//!                                                                                          │
//!  the arena   │ block │ gap │ block │ gap │ freed block (quarantine) │ …           heap.rs ┘ depot.rs (callers)
//!  its bits      0000    1111  0000    1111  1111111111111111111111      shadow.rs
//!                                                                             │
//!  an access ─▶ a fault, or a trampoline: bits of the bytes ── set ──▶ hits.rs ─▶ judge.rs ─▶ report.rs
//! ```
//! The arena is one stretch of address space that grows by chunks; each is one watch for all accesses, of which the
//! part is [`Part::Checked`](ulpf_stub_tables::attributes::Part): not its range decides what is a hit, but the bits
//! with which trampolines of patches decide, too. A byte of the arena has a bit that says: nobody may touch this. So
//! malloc and free change bits and nothing else, on the calling thread, without anybody's rest.
//!
//! What a program says itself, by Valgrind's client requests, comes the same way (`requests.rs`) and changes bits, too
//! (`told.rs`, `told_blocks.rs`), also of other memory, which is watched from then on (`regions.rs`); blocks of its own allocators are in lists
//! of their own (`told_list.rs`).
//!
//! What is known of blocks lies apart from them (`blocks.rs`), where no stray store of the program leads by accident.
//!
//! A forked child has everything here as a copy, but no guards: there the functions go on serving its blocks, on its own
//! stack, and check nothing ([`alone`]); if it is followed, its own stub takes the books over (`adopt.rs`).

use core::sync::atomic::{AtomicBool, Ordering::*};

pub mod adopt;
pub mod arena;
pub mod blocks;
pub mod chain;
pub mod computed;
pub mod depot;
pub mod entries;
pub mod errno;
pub mod far;
pub mod files;
#[cfg(test)]
mod fixture;
pub mod foresee;
pub mod found;
pub mod heap;
pub mod hooks;
pub mod judge;
pub mod jumps;
pub mod known;
pub mod large;
pub mod left;
pub mod lines;
pub mod news;
pub mod old;
pub mod overlaps;
pub mod quarantine;
pub mod regions;
pub mod report;
pub mod requests;
pub mod room;
pub mod serve;
pub mod shadow;
pub mod shelf;
pub mod thunks;
pub mod told;
pub mod told_blocks;
pub mod told_list;
pub mod twin;

/// Blocks that are left at the end are looked for.
pub static LEAKS: AtomicBool = AtomicBool::new(false);

/// A debugger wants the program to stop at its errors.
pub static STOPS: AtomicBool = AtomicBool::new(false);

/// A heap is checked, and nobody but that looks: its bits are all that there are.
pub fn has_no_debugger() -> bool {
    entries::ON.load(Relaxed) && !STOPS.load(Relaxed)
}

/// A forked child, or a program that the debugger lets go, has the heap and nothing that watches it: its functions go on,
/// and tell nothing. (One that ran before, and holds no block of ours, needs none of that: [`left`].)
pub fn alone() {
    if entries::ON.load(Relaxed) {
        entries::fall_asleep();
        requests::fall_asleep();
        shadow::forget();
        regions::forget();
    }
}

/// Does a program that we leave go on to allocate by what lies in our image, and in our memory? One that had no allocator before
/// us does.
pub fn stays() -> bool {
    entries::ON.load(Relaxed) && !left::LEFT.load(Relaxed)
}

/// Does a child of a fork need what lies in our image, and in our memory?
pub fn stays_in_child() -> bool {
    entries::ON.load(Relaxed)
}
