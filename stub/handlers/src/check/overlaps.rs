//! Finds calls of copy functions whose source and destination overlap.
//!
//! ```text
//! the caller ─▶ its file's slot for memcpy ─▶ thunk n ── far apart ──────────────────────▶ the C library's memcpy
//!                                                └─ near ─▶ an entry (entries.rs) ─▶ look ──▲
//! ```

use super::entries::{self, Function};
use super::thunks::{self, FAR, HALF, Targets};
use crate::runtime::memory;

/// The thunk for calls of the function at `to`, which does this. Called by the stub's task with the world stopped.
pub fn add(does: Function, to: u64) -> Option<u64> {
    let counts = matches!(does, Function::Memcpy | Function::Mempcpy);
    let from = if counts { 0 } else { HALF };
    // (Each thunk serves one function only: a thread that is interrupted in it, or comes by its entry, shows which.)
    let is_mine = |n: usize| entries::of(thunks::thunk(n)).is_some_and(|f| f == does);
    let fits = |n: &usize| match thunks::leads_to(*n) {
        0 => true,
        before => before == to && is_mine(*n),
    };
    let n = (from..from + HALF).find(fits)?;
    let thunk = thunks::thunk(n);
    if thunks::leads_to(n) == 0 {
        let look = entries::entry(entries::add(thunk, does, Some(to))?);
        thunks::lead(n, Targets { function: to, look });
    }
    Some(thunk)
}

/// Length of the string at `at`, in bytes, without its end.
fn length(at: u64) -> u64 {
    memory::strlen(at, FAR).map_or(FAR as u64, |n| n as u64)
}

/// The destination, the source and the bytes read of such a call, if what it reads overlaps what it writes.
pub fn overlap(does: Function, [to, from, n]: [u64; 3]) -> Option<(u64, u64, u64)> {
    let (written, read) = match does {
        Function::Memcpy | Function::Mempcpy => (n, n),
        Function::Strcpy | Function::Stpcpy => (length(from) + 1, length(from) + 1),
        Function::Strncpy => (n, (length(from) + 1).min(n)),
        Function::Strcat => (length(to) + length(from) + 1, length(from) + 1),
        Function::Strncat => {
            let added = length(from).min(n);
            (length(to) + added + 1, (added + 1).min(n))
        }
        _ => return None,
    };
    // (Compilers copy a structure onto itself by memcpy, which is no harm.)
    let same = to == from && matches!(does, Function::Memcpy | Function::Mempcpy);
    let apart = to.saturating_add(written) <= from || from.saturating_add(read) <= to;
    (!same && !apart && read > 0 && written > 0).then_some((to, from, read))
}
