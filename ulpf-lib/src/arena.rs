//! A heap of our own inside the watched program: chunks from mmap, one free list per power-of-two size. What is
//! larger than a mebibyte has a mapping of its own, and goes back to the system.
//!
//! The spin lock is held for a few dozen instructions at a time and never by a thread that waits for
//! somebody; callers see to it that no signal handler of the program runs meanwhile.
#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{null_mut, write_bytes};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::place;
use crate::sys;
use linux_raw_sys::general as k;

const CLASSES: usize = 17; // 16 B … 1 MiB
const CHUNK: usize = 4 << 20;
const SMALLEST: usize = 16;

struct Lists {
    free: [*mut u8; CLASSES],
    next: *mut u8,
    end: *mut u8,
}

/// A heap; see the head of the module.
pub struct Arena {
    taken: AtomicBool,
    lists: core::cell::UnsafeCell<Lists>,
}

// SAFETY: `lists` is only touched while `taken` is held.
unsafe impl Sync for Arena {}

impl Arena {
    /// An empty one: the first allocation takes memory from the system.
    pub const fn new() -> Arena {
        Arena {
            taken: AtomicBool::new(false),
            lists: core::cell::UnsafeCell::new(Lists {
                free: [null_mut(); CLASSES],
                next: null_mut(),
                end: null_mut(),
            }),
        }
    }
}

impl Default for Arena {
    fn default() -> Arena {
        Arena::new()
    }
}

/// Anonymous private memory, on the list of [`crate::place`]; null when the kernel refuses (RLIMIT_AS,
/// overcommit).
pub fn map_anonymous(len: usize) -> *mut u8 {
    let at = map_unlisted(len);
    if !at.is_null() {
        place::add(at as u64, len as u64);
    }
    at
}

/// Takes what [`map_anonymous`] has made away again.
pub fn unmap_anonymous(at: *mut u8, len: usize) {
    place::unmap(at as u64, len as u64);
}

/// As [`map_anonymous`], for what its owner has a list of.
pub fn map_unlisted(len: usize) -> *mut u8 {
    // Away from the program's memory: a neighbour of a watched page is moved with it. Hints come round
    // again after a while, and where one is taken the kernel puts us among the program's own mappings. What
    // is in the way may be large: each further step is longer.
    const HINTS: u32 = 16;
    for hint in 1..=HINTS {
        // SAFETY: a fresh mapping; the address is a hint.
        let got = unsafe {
            sys!(
                k::__NR_mmap,
                place::hint((len as u64) << hint.min(12)),
                len,
                k::PROT_READ | k::PROT_WRITE,
                k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_NORESERVE,
                -1i64,
                0
            )
        };
        let Ok(at) = got else { break };
        if place::memory().contains(&at) || hint == HINTS {
            return at as *mut u8;
        }
        // SAFETY: just mapped.
        let _ = unsafe { sys!(k::__NR_munmap, at, len) };
    }
    null_mut()
}

fn class_of(size: usize) -> usize {
    (size.max(SMALLEST).next_power_of_two().trailing_zeros() - SMALLEST.trailing_zeros()) as usize
}

impl Arena {
    fn with<R>(&self, f: impl FnOnce(&mut Lists) -> R) -> R {
        while self.taken.swap(true, Ordering::Acquire) {
            core::hint::spin_loop();
        }
        // SAFETY: the lock is ours.
        let r = f(unsafe { &mut *self.lists.get() });
        self.taken.store(false, Ordering::Release);
        r
    }

    /// A block, and whether it is memory that nobody has had, so zero.
    fn take(&self, layout: Layout) -> (*mut u8, bool) {
        let size = layout.size().max(layout.align());
        let class = class_of(size);
        if class >= CLASSES || layout.align() > 4096 {
            return (map_anonymous(size.next_multiple_of(4096)), true);
        }
        let bytes = SMALLEST << class;
        self.with(|l| {
            let head = l.free[class];
            if !head.is_null() {
                // SAFETY: a free block holds the pointer to the next one.
                l.free[class] = unsafe { *(head as *mut *mut u8) };
                return (head, false);
            }
            let aligned = (l.next as usize).next_multiple_of(bytes.min(4096));
            if l.next.is_null() || aligned + bytes > l.end as usize {
                let chunk = map_anonymous(CHUNK);
                if chunk.is_null() {
                    return (null_mut(), false);
                }
                l.next = chunk;
                l.end = chunk.wrapping_add(CHUNK);
            } else {
                l.next = aligned as *mut u8;
            }
            let block = l.next;
            l.next = block.wrapping_add(bytes);
            (block, true)
        })
    }
}

// SAFETY: blocks are disjoint, aligned to their power-of-two size (at most a page), and live until freed.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.take(layout).0
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (block, zero) = self.take(layout);
        if !zero && !block.is_null() {
            // SAFETY: a new block of that size.
            unsafe { write_bytes(block, 0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        let size = layout.size().max(layout.align());
        let class = class_of(size);
        if class >= CLASSES || layout.align() > 4096 {
            return unmap_anonymous(p, size.next_multiple_of(4096));
        }
        self.with(|l| {
            // SAFETY: the block is ours again and at least 16 bytes long.
            unsafe { *(p as *mut *mut u8) = l.free[class] };
            l.free[class] = p;
        });
    }
}

impl Arena {
    /// malloc(3) for capstone: the size stands in 16 bytes before the block.
    pub fn c_malloc(&self, size: usize) -> *mut u8 {
        let total = size + 16;
        // SAFETY: nonzero size, valid alignment.
        let p = unsafe { self.alloc(Layout::from_size_align_unchecked(total, 16)) };
        if p.is_null() {
            return p;
        }
        // SAFETY: the block is at least 16 bytes long.
        unsafe { *(p as *mut usize) = total };
        p.wrapping_add(16)
    }

    /// As free(3); `p` is null or from [`Arena::c_malloc`], and is not used again.
    pub fn c_free(&self, p: *mut u8) {
        if p.is_null() {
            return;
        }
        let base = p.wrapping_sub(16);
        // SAFETY: made by `c_malloc`.
        unsafe {
            self.dealloc(
                base,
                Layout::from_size_align_unchecked(*(base as *mut usize), 16),
            )
        };
    }

    /// Bytes of a block from [`Arena::c_malloc`], as they were asked for.
    pub fn c_size(&self, p: *mut u8) -> usize {
        // SAFETY: made by `c_malloc`.
        unsafe { *(p.wrapping_sub(16) as *mut usize) - 16 }
    }

    /// As [`Arena::c_malloc`], filled with zeroes.
    pub fn c_zeroed(&self, size: usize) -> *mut u8 {
        let p = self.c_malloc(size);
        if !p.is_null() {
            // SAFETY: `size` bytes are ours.
            unsafe { write_bytes(p, 0, size) };
        }
        p
    }
}
