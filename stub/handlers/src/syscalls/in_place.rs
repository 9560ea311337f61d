//! Calls that change memory of ours without moving it.
//!
//! * The thread serves mprotect to the protection that the memory has: nothing changes.
//! * The thread serves madvise(MADV_FREE): the content may stay, and does.
//! * The stub's task serves any other mprotect, madvise(MADV_DONTNEED) and munmap, with one stop, without copies.
//!
//! All other calls give the memory back, make the call, and move it again (`mappings.rs`): with copies, and two stops.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::TargetAddr;

use super::call::Args;
use crate::breakpoints;
use crate::edits;
use crate::global::g;
use crate::runtime::debug_registers;
use crate::runtime::events::{Change, Request};
use crate::runtime::frame::UContext;
use crate::runtime::mapped::{CHANGES, Mapped};
use crate::runtime::park;
use crate::runtime::thread::Current;
use crate::unwind;
use crate::uring::queries;

/// `Some(None)`: MADV_FREE.
fn change(nr: u64, a: &Args) -> Option<Option<Change>> {
    const DATA: u64 = (k::PROT_READ | k::PROT_WRITE) as u64;
    match nr as u32 {
        k::__NR_mprotect if a[2] & !DATA == 0 => Some(Some(Change::Protect(a[2] as u8))),
        k::__NR_madvise if a[2] == k::MADV_DONTNEED.into() => Some(Some(Change::Discard)),
        k::__NR_madvise if a[2] == k::MADV_FREE.into() => Some(None),
        k::__NR_munmap => Some(Some(Change::Unmap)),
        _ => None,
    }
}

/// Serves a call about `[start, end)`, and returns its result. `None` if that needs more; then nothing has changed
/// beyond what the call itself would change.
pub fn serve(
    t: Current,
    uc: &mut UContext,
    nr: u64,
    a: &Args,
    start: u64,
    end: u64,
) -> Option<i64> {
    let change = change(nr, a)?;
    if a[0] != start || !is_plain(start, end) {
        return None;
    }
    let change = match change {
        None => return Some(0),
        Some(Change::Protect(prot)) if has_prot(start, end, prot) => return Some(0),
        Some(change) => change,
    };
    t.own().changed_in_place.set(false);
    if change == Change::Unmap {
        t.own().mapped.set(Mapped::by(nr, a, 0, 0));
    }
    park::request(t, uc, Request::ChangeInPlace { start, end, change });
    CHANGES.fetch_add(1, SeqCst);
    let changed = t.own().changed_in_place.take();
    if !changed {
        t.own().mapped.take();
    }
    changed.then_some(0)
}

fn has_prot(start: u64, end: u64, prot: u8) -> bool {
    g().guards().has_prot(TargetAddr(start), end - start, prot)
}

/// True for private anonymous memory, all of it moved, that only watches refer to.
fn is_plain(start: u64, end: u64) -> bool {
    start < end
        && g().guarded()
        && g().guards().can_change(TargetAddr(start), end - start)
        && !debug_registers::any_in(start, end)
        && !breakpoints::waits_in(start, end)
        && !edits::touch_mappings(start, end)
        && !unwind::touches(start, end)
        && !queries::in_use(start, end)
}
