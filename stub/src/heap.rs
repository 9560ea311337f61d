//! The stub's own heap.
//!
//! Callers are the stub's task and, when an instruction is decoded for the first time, program
//! threads inside our signal handlers. Neither is ever parked here, and a signal that strikes a program
//! thread here is only noted. A forked child must not allocate (the lock may be taken).

use ulpf_lib::arena::Arena;

#[global_allocator]
pub static ARENA: Arena = Arena::new();

/// The stub's task has failed, perhaps in the middle of an allocation.
pub fn free_lock() {
    ARENA.free_lock();
}

/// malloc(3) for capstone.
pub fn c_malloc(size: usize) -> *mut u8 {
    ARENA.c_malloc(size)
}

pub fn c_free(p: *mut u8) {
    ARENA.c_free(p)
}

pub fn c_size(p: *mut u8) -> usize {
    ARENA.c_size(p)
}

pub fn c_zeroed(size: usize) -> *mut u8 {
    ARENA.c_zeroed(size)
}
