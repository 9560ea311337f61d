//! Memory of the arena: what nobody has had, and what goes back to the system.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::sys;

use super::arena::{ARENA, CARVED, GRANULE, MAPPED, REFUSED, arena, lock};
use super::{entries, shadow};

/// What is free gives its memory back if it is as large: a freed block at once, neighbours when they are joined.
pub const GIVEN_BACK: u64 = 1 << 20;

/// There is no memory for it.
pub enum NoRoom {
    /// As long as the arena has not grown by so many bytes.
    Grow(u64),
    /// Nor ever will be.
    Never,
}

/// Memory for granules that nobody has had.
pub fn carve(granules: u64) -> Result<u64, NoRoom> {
    let _lock = lock();
    let at = CARVED.load(Relaxed);
    let end = at + granules * GRANULE;
    let more = end.saturating_sub(MAPPED.load(Relaxed));
    if more > 0 && !entries::asleep() {
        // (Whoever is asked for more than there can be says so.)
        return Err(match more < REFUSED.load(Relaxed) {
            true => NoRoom::Grow(more),
            false => NoRoom::Never,
        });
    }
    if more > 0 && (end > ARENA || !grow_alone(more)) {
        return Err(NoRoom::Never);
    }
    CARVED.store(end, Relaxed);
    Ok(at)
}

/// In a forked child nobody watches: it takes memory itself.
fn grow_alone(more: u64) -> bool {
    let mapped = MAPPED.load(Relaxed);
    let more = more.next_multiple_of(16 << 20).min(ARENA - mapped);
    let prot = k::PROT_READ | k::PROT_WRITE;
    let flags = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_FIXED | k::MAP_NORESERVE;
    let at = arena() + mapped;
    // SAFETY: address space that the heap has reserved.
    let done = unsafe { sys!(k::__NR_mmap, at, more, prot, flags, -1i64, 0) }.is_ok();
    if done {
        MAPPED.store(mapped + more, Relaxed);
    }
    done
}

/// Whole pages of a freed block go back to the system.
pub fn give_back(addr: u64, len: u64) {
    let from = addr.next_multiple_of(PAGE_SIZE);
    let to = (addr + len) & !(PAGE_SIZE - 1);
    if from >= to {
        return;
    }
    each_window(from, to - from, |at, n| {
        let reachable = shadow::reachable(at);
        let advice = match reachable == at {
            true => k::MADV_DONTNEED,
            false => k::MADV_REMOVE,
        };
        // SAFETY: memory of a block that has been freed.
        let _ = unsafe { sys!(k::__NR_madvise, reachable, n, advice) };
    });
}

/// Each window's alias is contiguous.
pub fn each_window(addr: u64, len: u64, mut f: impl FnMut(u64, u64)) {
    let (mut at, end) = (addr, addr + len);
    while at < end {
        let window = (at - arena()) / shadow::WINDOW * shadow::WINDOW + shadow::WINDOW + arena();
        let stop = end.min(window);
        f(at, stop - at);
        at = stop;
    }
}
