// SPDX-License-Identifier: GPL-2.0-or-later
//! libulpf's splay tree for programs on the machine: what the thesis's watchpoint handler asks at each
//! fault, with the functions that its C API names.

#[path = "../../../ulpf-lib/c/benches/splay/mod.rs"]
#[allow(dead_code)]
mod splay;

use splay::Splay;

/// The tree must not lie on pages with watches, or the handler would fault on its own list, for ever. So
/// it does not come from malloc, whose blocks are watched; and nothing is given back.
struct Apart;

unsafe extern "C" {
    fn mmap(at: *mut u8, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> *mut u8;
}

// SAFETY: each allocation is a mapping of its own.
unsafe impl std::alloc::GlobalAlloc for Apart {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        // SAFETY: new private memory, wherever there is room.
        let at = unsafe { mmap(std::ptr::null_mut(), layout.size(), 3, 0x22, -1, 0) };
        match at.addr() {
            usize::MAX => std::ptr::null_mut(),
            _ => at,
        }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: std::alloc::Layout) {}
}

#[global_allocator]
static APART: Apart = Apart;

static mut LIST: Splay<()> = Splay::new();

/// Adds a range; it becomes one with those that it touches.
///
/// # Safety
/// One thread only, and not from a handler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchlist_add(addr: u64, len: u64) {
    // SAFETY: our caller's promise.
    let list = unsafe { &mut *&raw mut LIST };
    let (mut start, mut end) = (addr, addr + len);
    for (s, e, ()) in list.take_touching(start, end) {
        (start, end) = (start.min(s), end.max(e));
    }
    list.insert(start, end, ());
}

/// The thesis's `lookup_wp`: whether the address is watched.
///
/// # Safety
/// One thread only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn watchlist_holds(addr: u64) -> bool {
    // SAFETY: our caller's promise.
    unsafe { (*&raw mut LIST).lookup(addr) }.is_some()
}

#[unsafe(no_mangle)]
pub extern "C" fn watchlist_nodes() -> usize {
    // SAFETY: the list is not changed meanwhile.
    unsafe { (*&raw const LIST).len() }
}
