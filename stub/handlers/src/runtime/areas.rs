//! Per-thread data of trampolines; gs points to it while the thread runs.

use core::sync::atomic::{AtomicBool, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_engine::patch::CLASS_WRITES;
use ulpf_lib::ring::Area;
use ulpf_lib::sys;
use ulpf_lib::sys::uapi::arch::*;

use super::thread::Current;
use crate::global::{g, machine, tables};

/// There are, or were, patches: threads may have their area in gs.
pub static SOME: AtomicBool = AtomicBool::new(false);
/// Some thread uses gs itself.
pub static GS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The area of this thread.
pub fn area(t: Current) -> Option<&'static Area> {
    g().areas().get(t.index.load(Relaxed) as usize)
}

/// The program's gs base, given the base in the CPU.
pub fn program_gs(t: Current, base: u64) -> u64 {
    match area(t) {
        Some(a) if base == a as *const Area as u64 => 0,
        _ => base,
    }
}

pub fn set_gs(base: u64) {
    // SAFETY: the program does not use gs, as far as this thread is concerned.
    unsafe {
        if machine().fsgsbase {
            core::arch::asm!("wrgsbase {}", in(reg) base, options(nomem, nostack, preserves_flags));
        } else {
            let _ = sys!(k::__NR_arch_prctl, ARCH_SET_GS, base);
        }
    }
}

pub fn gs() -> u64 {
    let mut base = 0u64;
    // SAFETY: reads this thread's own base.
    unsafe {
        if machine().fsgsbase {
            core::arch::asm!("rdgsbase {}", out(reg) base, options(nomem, nostack, preserves_flags));
        } else {
            let _ = sys!(k::__NR_arch_prctl, ARCH_GET_GS, &mut base as *mut u64);
        }
    }
    base
}

/// The distance from a page of this class to its alias, for stores.
pub fn distance(class: u64) -> u64 {
    let classes = tables().patches.tables.classes;
    if classes == 0 {
        return 0;
    }
    let at = classes.wrapping_add_signed(CLASS_WRITES.into()) + (class & 0xff) * 8;
    // SAFETY: in the page before the classes.
    unsafe { *(at as *const u64) }
}

/// Removes the area (its own, or its parent's) from the gs of the calling task.
pub fn disable() {
    if SOME.load(Relaxed) && is_area(gs()) {
        set_gs(0);
    }
}

/// True if this is the base of some thread's area.
pub fn is_area(base: u64) -> bool {
    g().areas().as_ptr_range().contains(&(base as *const Area))
}
