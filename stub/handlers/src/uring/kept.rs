//! Old values of watched bytes that a request may write to, kept while it is in flight.

use ulpf_lib::TargetAddr;

use crate::global::g;
use crate::syscalls::scratch::Kept;

/// Saves old values in a new mapping; 0 if no byte is watched.
pub fn keep(spans: &mut dyn Iterator<Item = (u64, u64)>) -> u64 {
    let mut kept = 0;
    for (at, len) in spans {
        if !watched(at, len) {
            continue;
        }
        if kept == 0 {
            kept = ulpf_lib::arena::map_anonymous(Kept::APART) as u64;
        }
        if kept == 0 {
            return 0;
        }
        // SAFETY: a mapping of that size, of our own.
        unsafe { Kept::extend_apart(kept, at, len) };
    }
    kept
}

pub fn free(kept: u64) {
    ulpf_lib::arena::unmap_anonymous(kept as *mut u8, Kept::APART);
}

/// True if some byte of it is watched.
pub fn watched(at: u64, len: u64) -> bool {
    len != 0 && at.checked_add(len).is_some() && g().watchlist().any_overlap(TargetAddr(at), len)
}
