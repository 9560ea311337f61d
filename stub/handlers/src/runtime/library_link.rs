//! The link to the library by which the program watches itself: its presence, and its pages (`ulpf_lib::library_abi`).

use core::sync::atomic::{AtomicPtr, Ordering::*};

use ulpf_lib::library_abi::{AbiHeader, AbiTable, MAGIC, VERSION};
use ulpf_lib::{AliasAddr, PAGE_SIZE, TargetAddr};

use super::memory;

static TABLE: AtomicPtr<AbiTable> = AtomicPtr::new(core::ptr::null_mut());

pub fn abi_table() -> Option<&'static AbiTable> {
    // SAFETY: in the library's data, as its header says; a library with guards is never unloaded.
    unsafe { TABLE.load(Acquire).as_ref() }
}

/// Checks whether this handler of SIGSEGV, which the program has installed, is the library's.
pub fn look(handler: u64) {
    const SIZE: u64 = size_of::<AbiHeader>() as u64;
    let Some(at) = handler.checked_sub(SIZE).filter(|_| handler > PAGE_SIZE) else {
        return;
    };
    let Some(header) =
        memory::get::<AbiHeader>(at).filter(|c| (c.magic, c.version) == (MAGIC, VERSION))
    else {
        return;
    };
    let table = (handler - 8).wrapping_add_signed(header.table);
    if table % align_of::<AbiTable>() as u64 != 0
        || memory::get::<[u8; size_of::<AbiTable>()]>(table).is_none()
    {
        return;
    }
    TABLE.store(table as *mut AbiTable, Release);
    memory::put(table, &1u32);
}

/// Called at a detach, or in a forked child without us.
pub fn left() {
    let table = TABLE.swap(core::ptr::null_mut(), AcqRel);
    if !table.is_null() {
        memory::put(table as u64, &0u32);
    }
}

/// True if the program watches itself in a way that cannot see the accesses that we perform.
pub fn is_blind() -> bool {
    abi_table().is_some_and(|d| d.blind.load(Acquire) != 0)
}

/// The address at which the debugger may access memory that the library guards.
pub fn alias(addr: u64) -> Option<AliasAddr> {
    let page = abi_table()?.pages.entry(TargetAddr(addr));
    page.guard().and(page.alias(TargetAddr(addr)))
}
