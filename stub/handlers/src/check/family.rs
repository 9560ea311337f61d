//! Allocation family of a block: malloc, new or new[].

use core::sync::atomic::{AtomicU64, Ordering::*};

use ulpf_lib::ring::findings::By;

/// Ranges of `operator new` and `operator new[]`, and the kind of each.
pub static NEWS: [[AtomicU64; 3]; 64] = [const { [const { AtomicU64::new(0) }; 3] }; 64];

/// Adds one of them. Called by the stub's task with the world stopped.
pub fn add_new((start, end): (u64, u64), by: By) {
    let free = |n: &&[AtomicU64; 3]| {
        let at = n[0].load(Relaxed);
        at == 0 || at == start
    };
    if let Some([from, to, kind]) = NEWS.iter().find(free) {
        to.store(end, Relaxed);
        kind.store(by as u64, Relaxed);
        from.store(start, Relaxed);
    }
}

/// The allocation family, given the callers of malloc.
pub fn by(callers: &[u64]) -> By {
    let of = |at: &u64| {
        let at = at.wrapping_sub(1);
        let all = NEWS.iter().take_while(|n| n[0].load(Relaxed) != 0);
        let mut all = all.filter(|n| n[0].load(Relaxed) <= at && at < n[1].load(Relaxed));
        all.next().map(|n| By::of(n[2].load(Relaxed) as u32))
    };
    // `operator new[]` calls `operator new`.
    let mut by = By::Malloc;
    for caller in callers {
        match of(caller) {
            Some(next) => by = next,
            None => break,
        }
    }
    by
}
