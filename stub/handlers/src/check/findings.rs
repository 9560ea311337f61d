//! The findings and counters that the command reads.

use core::sync::atomic::{AtomicU64, Ordering::*};

use ulpf_lib::ring::findings::{FINDINGS_OFFSET, Findings};

use super::entries;
use crate::global::g;

/// The findings in the shared area. `None` after a detach: the command does not read any more, and children forked then
/// do not even have the memory.
pub fn findings() -> Option<&'static Findings> {
    if entries::asleep() {
        return None;
    }
    let base = g().shared.load(Relaxed) as u64;
    // SAFETY: within the shared area, which is mapped for good.
    (base != 0).then(|| unsafe { &*((base + FINDINGS_OFFSET) as *const Findings) })
}

/// Adds `by` to a counter under a lock, and returns the sum.
pub fn count(what: &AtomicU64, by: i64) -> u64 {
    let now = what.load(Relaxed).wrapping_add(by as u64);
    what.store(now, Relaxed);
    now
}
