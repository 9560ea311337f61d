//! The memory that one input takes: bounded, so that growth is a failure long before the machine notices,
//! and given back even where the code keeps it.
//!
//! ```text
//!   | room for alignment | previous, next, size | what was asked for |
//!                        ^ Head, 32 bytes
//! ```
//! While an input is looked at, heads are chained, so that what is left at its end can be found.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

/// What one input, which has some kilobytes, may take at the same time.
pub const MOST: usize = 96 << 20;

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Heads are chained.
static CHAINING: AtomicBool = AtomicBool::new(false);

#[repr(C, align(32))]
struct Head {
    previous: *mut Head,
    next: *mut Head,
    size: usize,
    align: usize,
}

/// All chained heads, in a ring with this one.
struct Chain {
    locked: AtomicBool,
    first: UnsafeCell<*mut Head>,
}

// SAFETY: `first` is touched only by whoever has set `locked`.
unsafe impl Sync for Chain {}

static CHAIN: Chain = Chain {
    locked: AtomicBool::new(false),
    first: UnsafeCell::new(null_mut()),
};

impl Chain {
    fn with<R>(&self, f: impl FnOnce(&mut *mut Head) -> R) -> R {
        while self.locked.swap(true, Acquire) {
            std::hint::spin_loop();
        }
        // SAFETY: see `Sync` above.
        let done = f(unsafe { &mut *self.first.get() });
        self.locked.store(false, Release);
        done
    }

    /// SAFETY: `head` is a live allocation's that is not in the chain.
    unsafe fn add(&self, head: *mut Head) {
        self.with(|first| {
            // SAFETY: all heads in the chain are live, and the lock is held.
            unsafe {
                (*head).next = *first;
                if let Some(first) = first.as_mut() {
                    first.previous = head;
                }
            }
            *first = head;
        });
    }

    /// SAFETY: `head` is a live allocation's.
    unsafe fn remove(&self, head: *mut Head) {
        self.with(|first| {
            // SAFETY: as above; a head that is in no chain has no neighbours and is not the first.
            unsafe {
                let (previous, next) = ((*head).previous, (*head).next);
                if let Some(next) = next.as_mut() {
                    next.previous = previous;
                }
                match previous.as_mut() {
                    Some(previous) => previous.next = next,
                    None if *first == head => *first = next,
                    None => {}
                }
            }
        });
    }
}

fn layout(size: usize, align: usize) -> Option<(Layout, usize)> {
    let align = align.max(align_of::<Head>());
    let whole = size.checked_add(align)?;
    Some((Layout::from_size_align(whole, align).ok()?, align))
}

// SAFETY: memory is the system's, moved by a head that keeps the alignment.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, asked: Layout) -> *mut u8 {
        let Some((layout, before)) = layout(asked.size(), asked.align()) else {
            return null_mut();
        };
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
        // SAFETY: the layout has a size.
        let start = unsafe { System.alloc(layout) };
        if start.is_null() {
            return start;
        }
        // SAFETY: inside the new memory, which has `before` bytes more than was asked for.
        unsafe {
            let memory = start.add(before);
            let head = memory.cast::<Head>().sub(1);
            head.write(Head {
                previous: null_mut(),
                next: null_mut(),
                size: asked.size(),
                align: asked.align(),
            });
            if CHAINING.load(Relaxed) {
                CHAIN.add(head);
            }
            memory
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, _: Layout) {
        // SAFETY: `alloc` has put a head there.
        unsafe {
            let head = memory.cast::<Head>().sub(1);
            CHAIN.remove(head);
            free(head);
        }
    }
}

/// SAFETY: `head` is a live allocation's, and in no chain.
unsafe fn free(head: *mut Head) {
    // SAFETY: `alloc` has made it of this layout.
    unsafe {
        let (size, align) = ((*head).size, (*head).align);
        LIVE.fetch_sub(size, Relaxed);
        if let Some((layout, before)) = layout(size, align) {
            System.dealloc(head.add(1).cast::<u8>().sub(before), layout);
        }
    }
}

/// Looks at one input.
pub fn bounded(f: impl FnOnce()) {
    LIMIT.store(LIVE.load(Relaxed) + MOST, Relaxed);
    f();
    LIMIT.store(usize::MAX, Relaxed);
}

/// The same; what is still there afterwards is given back. The very first time it stays, because what is
/// made once for all inputs is made then.
pub fn bounded_and_forgotten(f: impl FnOnce()) {
    static SECOND: AtomicBool = AtomicBool::new(false);
    CHAINING.store(SECOND.swap(true, Relaxed), Relaxed);
    bounded(f);
    CHAINING.store(false, Relaxed);
    let mut head = CHAIN.with(|first| std::mem::replace(first, null_mut()));
    while !head.is_null() {
        // SAFETY: nothing of the code in question runs any more, and it has no threads.
        head = unsafe {
            let next = (*head).next;
            free(head);
            next
        };
    }
}
