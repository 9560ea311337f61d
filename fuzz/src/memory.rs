//! The memory that one input takes: bounded, so that growth is a failure long before the machine notices.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// Maximum memory in use at one time for one input, which has some kilobytes.
pub const MOST: usize = 96 << 20;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

// SAFETY: memory is the system's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, asked: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(asked.size(), Relaxed) + asked.size();
        let limit = LIMIT.load(Relaxed);
        if live > limit && LIMIT.swap(usize::MAX, Relaxed) == limit {
            eprintln!(
                "One input takes more than {} MiB of memory; the last piece has {} bytes.",
                MOST >> 20,
                asked.size()
            );
            std::process::abort();
        }
        // SAFETY: the caller's layout.
        let memory = unsafe { System.alloc(asked) };
        if memory.is_null() {
            LIVE.fetch_sub(asked.size(), Relaxed);
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: `alloc` has made it of this layout.
        unsafe { System.dealloc(memory, layout) };
    }
}

/// Looks at one input.
pub fn bounded(f: impl FnOnce()) {
    LIMIT.store(LIVE.load(Relaxed) + MOST, Relaxed);
    f();
    LIMIT.store(usize::MAX, Relaxed);
}
