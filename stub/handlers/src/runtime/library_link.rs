//! The library by which the program watches itself: whether it is there, and its pages (`ulpf_lib::door`).

use core::sync::atomic::{AtomicPtr, Ordering::*};

use ulpf_lib::door::{Card, Door, MAGIC, VERSION};
use ulpf_lib::{AliasAddr, PAGE_SIZE, TargetAddr};

use super::memory;

static DOOR: AtomicPtr<Door> = AtomicPtr::new(core::ptr::null_mut());

pub fn door() -> Option<&'static Door> {
    // SAFETY: in the library's data, as its card says; a library with guards is never unloaded.
    unsafe { DOOR.load(Acquire).as_ref() }
}

/// The program has this handler of SIGSEGV: is it the library's?
pub fn look(handler: u64) {
    const SIZE: u64 = size_of::<Card>() as u64;
    let Some(at) = handler.checked_sub(SIZE).filter(|_| handler > PAGE_SIZE) else {
        return;
    };
    let Some(card) = memory::get::<Card>(at).filter(|c| (c.magic, c.version) == (MAGIC, VERSION))
    else {
        return;
    };
    let door = (handler - 8).wrapping_add_signed(card.door);
    if door % align_of::<Door>() as u64 != 0
        || memory::get::<[u8; size_of::<Door>()]>(door).is_none()
    {
        return;
    }
    DOOR.store(door as *mut Door, Release);
    memory::put(door, &1u32);
}

/// We leave, or this is a forked child without us.
pub fn left() {
    let door = DOOR.swap(core::ptr::null_mut(), AcqRel);
    if !door.is_null() {
        memory::put(door as u64, &0u32);
    }
}

/// The program watches itself in a way that cannot see what we perform.
pub fn is_blind() -> bool {
    door().is_some_and(|d| d.blind.load(Acquire) != 0)
}

/// Where the debugger may touch what the library guards.
pub fn alias(addr: u64) -> Option<AliasAddr> {
    let page = door()?.pages.entry(TargetAddr(addr));
    page.guard().and(page.alias(TargetAddr(addr)))
}
