//! Memory of the library.
//!
//! Memory for a change of the watches must not come from the program's allocator. A fault may have happened inside it
//! (its lock is held), its pages may be about to be guarded, and handlers read our tables. So while a thread is the
//! changer, its allocations come from our arena; all others go to the program's allocator. The address tells the two
//! apart.

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::c_void;
use std::alloc::System;

use capstone_sys as cs;
use ulpf_lib::arena::Arena;
use ulpf_lib::place;

use crate::change;
use crate::exception_stacks::OwnBlock;
use crate::mask;
use crate::shared::S;

static ARENA: Arena = Arena::new();

/// An allocator that lends itself to `libulpf` while watches change. With the feature `global-alloc`
/// (the default) it is the program's; a program with another allocator turns that off and names
/// `Switch(other)` as its own.
pub struct Switch<A = System>(pub A);

#[cfg(feature = "global-alloc")]
#[global_allocator]
static GLOBAL: Switch = Switch(System);

fn ours(p: *mut u8) -> bool {
    place::memory().contains(&(p as u64))
}

/// Frees a block of an earlier change with signals blocked: a signal handler that changes watches would otherwise wait
/// for the arena's lock forever. (Not on the program's stack, which may be guarded while faults cannot be served.)
fn undisturbed(free: impl Fn()) {
    let own = (!S.is_changer()).then(OwnBlock::claim).flatten();
    match own {
        Some(own) => change::aside(own, || {
            let mask = mask::set(mask::ALL);
            free();
            mask::set(mask);
        }),
        None => free(),
    }
}

// SAFETY: each block returns to its source.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Switch<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if S.is_changer() {
            // SAFETY: the caller's layout.
            let p = unsafe { ARENA.alloc(layout) };
            // A block outside of our place (192 GiB, now full) could not be recognised.
            return if ours(p) { p } else { core::ptr::null_mut() };
        }
        // SAFETY: the caller's layout.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !S.is_changer() {
            // SAFETY: the caller's layout.
            return unsafe { self.0.alloc_zeroed(layout) };
        }
        // SAFETY: the caller's layout; the block is ours.
        unsafe {
            let p = self.alloc(layout);
            if !p.is_null() {
                p.write_bytes(0, layout.size());
            }
            p
        }
    }

    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !ours(p) && !S.is_changer() {
            // SAFETY: from `self.0`, with this layout.
            return unsafe { self.0.realloc(p, layout, size) };
        }
        // SAFETY: the caller's promises; the copy stays inside both blocks.
        unsafe {
            let fresh = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !fresh.is_null() {
                fresh.copy_from_nonoverlapping(p, layout.size().min(size));
                self.dealloc(p, layout);
            }
            fresh
        }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        if ours(p) {
            // SAFETY: from the arena, with this layout.
            undisturbed(|| unsafe { ARENA.dealloc(p, layout) });
        } else {
            // SAFETY: from `self.0`, with this layout.
            unsafe { self.0.dealloc(p, layout) }
        }
    }
}

unsafe extern "C" fn c_malloc(size: usize) -> *mut c_void {
    ARENA.c_malloc(size).cast()
}
unsafe extern "C" fn c_calloc(n: usize, size: usize) -> *mut c_void {
    match n.checked_mul(size) {
        Some(total) => ARENA.c_zeroed(total).cast(),
        None => core::ptr::null_mut(),
    }
}
unsafe extern "C" fn c_realloc(p: *mut c_void, size: usize) -> *mut c_void {
    let new = ARENA.c_malloc(size);
    if !p.is_null() && !new.is_null() {
        let n = ARENA.c_size(p.cast()).min(size);
        // SAFETY: both blocks hold `n` bytes.
        unsafe { core::ptr::copy_nonoverlapping(p.cast::<u8>(), new, n) };
        ARENA.c_free(p.cast());
    }
    new.cast()
}
unsafe extern "C" fn c_free(p: *mut c_void) {
    ARENA.c_free(p.cast());
}

unsafe extern "C" {
    fn vsnprintf(
        to: *mut core::ffi::c_char,
        n: usize,
        format: *const core::ffi::c_char,
        args: *mut c_void,
    ) -> i32;
}

/// Gives capstone our arena: it writes into its memory while the fault handler decodes, so that must not be the
/// program's.
pub fn capstone_uses_arena() {
    let memory = cs::cs_opt_mem {
        malloc: Some(c_malloc),
        calloc: Some(c_calloc),
        realloc: Some(c_realloc),
        free: Some(c_free),
        // SAFETY: a pointer to `__va_list_tag`, whatever the binding calls it.
        vsnprintf: unsafe {
            core::mem::transmute::<*const (), cs::cs_vsnprintf_t>(vsnprintf as *const ())
        },
    };
    // SAFETY: capstone copies the structure.
    unsafe { cs::cs_option(0, cs::cs_opt_type::CS_OPT_MEM, &raw const memory as usize) };
}
