//! The program's calls of functions that copy: do what they read and what they write overlap?
//!
//! ```text
//! the caller ─▶ its file's slot for memcpy ─▶ thunk n ── far apart ──────────────────────▶ the C library's memcpy
//!                                                └─ near ─▶ an entry (entries.rs) ─▶ look ──▲
//! ```

use super::entries::{self, Function};
use super::thunks::{self, FAR, HALF, Way};
use crate::runtime::memory;

/// The thunk for calls of the function at `to` that does this. By the stub's task, at rest.
pub fn add(does: Function, to: u64) -> Option<u64> {
    let counts = matches!(does, Function::Memcpy | Function::Mempcpy);
    let from = if counts { 0 } else { HALF };
    // (Each is for one function alone: who is interrupted in it, or comes by its entry, is known by it.)
    let is_mine = |n: usize| entries::of(thunks::thunk(n)).is_some_and(|f| f == does);
    let fits = |n: &usize| match thunks::leads_to(*n) {
        0 => true,
        before => before == to && is_mine(*n),
    };
    let n = (from..from + HALF).find(fits)?;
    let thunk = thunks::thunk(n);
    if thunks::leads_to(n) == 0 {
        entries::add(thunk, does, Some(to))?;
        let look = entries::entry_of(thunk)?;
        thunks::lead(n, Way { function: to, look });
    }
    Some(thunk)
}

/// Bytes of the string at `at`, without its end.
fn length(at: u64) -> u64 {
    memory::strlen(at, FAR).map_or(FAR as u64, |n| n as u64)
}

/// What such a call reads and writes, if that overlaps: to where, from where, and how many bytes are read.
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
