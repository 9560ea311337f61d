//! What is found, and counted, for the command.

use core::sync::atomic::{AtomicU64, Ordering::*};

use ulpf_lib::ring::found::{FINDINGS_OFFSET, Findings};

use super::entries;
use crate::global::g;

/// What is found, for the command. Nobody listens any more when we have left; then children are forked who have not even the
/// memory for it.
pub fn findings() -> Option<&'static Findings> {
    if entries::asleep() {
        return None;
    }
    let base = g().shared.load(Relaxed) as u64;
    // SAFETY: within the shared area, which is mapped for good.
    (base != 0).then(|| unsafe { &*((base + FINDINGS_OFFSET) as *const Findings) })
}

/// A number that is counted up and down, under a lock.
pub fn count(what: &AtomicU64, by: i64) -> u64 {
    let now = what.load(Relaxed).wrapping_add(by as u64);
    what.store(now, Relaxed);
    now
}
