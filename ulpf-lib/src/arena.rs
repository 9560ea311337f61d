//! A heap of our own inside the watched program: chunks from mmap, and a free list for each size, which is a power of two
//! or three fourths of one. A block larger than a mebibyte has a mapping of its own, which returns to the system.
//!
//! The lock is held for a few dozen instructions at a time, and never by a thread that waits for another one. Callers
//! make sure that no signal handler of the program runs meanwhile.
#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{null_mut, write_bytes};

use crate::place;
use crate::sync::lock::Lock;
use crate::sys;
use linux_raw_sys::general as k;

const CLASSES: usize = 33; // 16, 32, 48, 64, 96 … 1 MiB
const CHUNK: usize = 4 << 20;
const SMALLEST: usize = 16;
const MOST_ALIGN: usize = 4096;

struct Lists {
    free: [*mut u8; CLASSES],
    next: *mut u8,
    end: *mut u8,
}

/// A heap; see the head of the module.
pub struct Arena {
    lock: Lock,
    lists: core::cell::UnsafeCell<Lists>,
}

// SAFETY: `lists` is only touched while `lock` is held.
unsafe impl Sync for Arena {}

impl Arena {
    /// An empty one: the first allocation takes memory from the system.
    pub const fn new() -> Arena {
        Arena {
            lock: Lock::open(),
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

/// Unmaps memory of [`map_anonymous`].
pub fn unmap_anonymous(at: *mut u8, len: usize) {
    place::unmap(at as u64, len as u64);
}

/// As [`map_anonymous`], for memory whose owner keeps a list of it.
pub fn map_unlisted(len: usize) -> *mut u8 {
    // Away from the program's memory, because a neighbour of a watched page is moved with it. Hints recur after a while.
    // If one is taken, the kernel places the mapping among the program's own. The obstacle may be large, so each further
    // step is longer.
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
            place::note_outside(at, len as u64);
            return at as *mut u8;
        }
        // SAFETY: just mapped.
        let _ = unsafe { sys!(k::__NR_munmap, at, len) };
    }
    null_mut()
}

/// Blocks of one size.
struct Class {
    /// Index of the free list.
    number: usize,
    bytes: usize,
    /// Alignment of their addresses.
    align: usize,
}

impl Class {
    /// `None` if the block has a mapping of its own.
    fn of(layout: Layout) -> Option<Class> {
        let size = layout.size().max(SMALLEST);
        let whole = size.max(layout.align()).next_power_of_two();
        let number = (whole.trailing_zeros() - SMALLEST.trailing_zeros()) as usize * 2;
        let (part, quarter) = (whole / 4 * 3, whole / 4);
        let class = match size <= part && quarter >= layout.align().max(SMALLEST) {
            true => Class {
                number: number - 1,
                bytes: part,
                align: quarter.min(MOST_ALIGN),
            },
            false => Class {
                number,
                bytes: whole,
                align: whole.min(MOST_ALIGN),
            },
        };
        (class.number < CLASSES && layout.align() <= MOST_ALIGN).then_some(class)
    }
}

impl Arena {
    fn with<R>(&self, f: impl FnOnce(&mut Lists) -> R) -> R {
        let _locked = self.lock.lock();
        // SAFETY: the lock is ours.
        f(unsafe { &mut *self.lists.get() })
    }

    /// Frees the lock of a holder that has failed. Waits some tenths of a second for a live holder to release it.
    pub fn free_lock(&self) {
        self.lock.free_if_stuck();
    }

    /// Takes a block, and returns whether its memory is fresh, and so zero.
    fn take(&self, layout: Layout) -> (*mut u8, bool) {
        let Some(class) = Class::of(layout) else {
            return (map_anonymous(whole_pages(layout)), true);
        };
        self.with(|l| {
            let head = l.free[class.number];
            if !head.is_null() {
                // SAFETY: a free block holds the pointer to the next one.
                l.free[class.number] = unsafe { *(head as *mut *mut u8) };
                return (head, false);
            }
            let mut aligned = (l.next as usize).next_multiple_of(class.align);
            let has_room = !l.next.is_null() && aligned + class.bytes <= l.end as usize;
            let left = if has_room { aligned } else { l.end as usize };
            l.keep_until(left);
            if !has_room {
                let chunk = map_anonymous(CHUNK);
                if chunk.is_null() {
                    (l.next, l.end) = (null_mut(), null_mut());
                    return (null_mut(), false);
                }
                l.end = chunk.wrapping_add(CHUNK);
                aligned = chunk as usize;
            }
            l.next = (aligned + class.bytes) as *mut u8;
            (aligned as *mut u8, true)
        })
    }
}

impl Lists {
    /// Puts the rest before `end` on the free lists of smaller blocks.
    fn keep_until(&mut self, end: usize) {
        let mut at = self.next as usize;
        while at < end {
            // The largest power of two that is aligned here and fits.
            let fits = 1 << (end - at).ilog2();
            let bytes = (1 << at.trailing_zeros())
                .min(fits)
                .min(SMALLEST << (CLASSES / 2));
            let number = (bytes.trailing_zeros() - SMALLEST.trailing_zeros()) as usize * 2;
            // SAFETY: memory of ours that belongs to no block.
            unsafe { *(at as *mut *mut u8) = self.free[number] };
            self.free[number] = at as *mut u8;
            at += bytes;
        }
    }
}

/// Size of a block with a mapping of its own.
fn whole_pages(layout: Layout) -> usize {
    layout.size().max(layout.align()).next_multiple_of(4096)
}

// SAFETY: blocks are disjoint, aligned as their class says (at most to a page), and live until freed.
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
        let Some(Class { number, .. }) = Class::of(layout) else {
            return unmap_anonymous(p, whole_pages(layout));
        };
        self.with(|l| {
            // SAFETY: the block is ours again and at least 16 bytes long.
            unsafe { *(p as *mut *mut u8) = l.free[number] };
            l.free[number] = p;
        });
    }
}

impl Arena {
    /// malloc(3) for capstone; the 16 bytes before the block hold its size.
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

    /// Requested bytes of a block from [`Arena::c_malloc`].
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Numbers that look random, the same each time.
    fn numbers(mut seed: u64) -> impl FnMut(u64) -> usize {
        move |below| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            ((seed >> 33) % below) as usize
        }
    }

    #[test]
    fn blocks_are_aligned_apart_and_keep_what_is_in_them() {
        let (heap, mut number) = (Arena::new(), numbers(1));
        let mut blocks: Vec<(*mut u8, Layout, u8)> = Vec::new();
        for turn in 0..30_000 {
            if blocks.len() > 500 || (!blocks.is_empty() && number(3) == 0) {
                let (at, layout, fill) = blocks.swap_remove(number(blocks.len() as u64));
                // SAFETY: a block of that size.
                let bytes = unsafe { core::slice::from_raw_parts(at, layout.size()) };
                assert!(bytes.iter().all(|b| *b == fill), "{layout:?}");
                // SAFETY: of this heap, with this layout.
                unsafe { heap.dealloc(at, layout) };
                continue;
            }
            let most = 1 << number(12);
            let size = 1 + number(most);
            let size = if number(500) == 0 { size << 11 } else { size };
            let layout = Layout::from_size_align(size, 1 << number(13)).unwrap();
            let zeroed = number(2) == 0;
            // SAFETY: not empty.
            let at = unsafe {
                match zeroed {
                    true => heap.alloc_zeroed(layout),
                    false => heap.alloc(layout),
                }
            };
            assert!(!at.is_null() && (at as usize).is_multiple_of(layout.align()));
            // SAFETY: a new block of that size, which is not shared.
            let bytes = unsafe { core::slice::from_raw_parts_mut(at, size) };
            assert!(!zeroed || bytes.iter().all(|b| *b == 0), "{layout:?}");
            bytes.fill(turn as u8);
            blocks.push((at, layout, turn as u8));
        }
    }

    #[test]
    fn what_is_left_before_an_aligned_block_is_used() {
        let heap = Arena::new();
        let small = Layout::from_size_align(16, 16).unwrap();
        let large = Layout::from_size_align(4096, 8).unwrap();
        // SAFETY: not empty.
        let [first, page] = [small, large].map(|layout| unsafe { heap.alloc(layout) } as usize);
        assert_eq!(page, (first + 16).next_multiple_of(4096));
        // As many as fit between both.
        let between: Vec<usize> = [16, 32, 64, 128, 256, 512, 1024, 2048]
            .map(|size| Layout::from_size_align(size, 16).unwrap())
            // SAFETY: not empty.
            .map(|layout| unsafe { heap.alloc(layout) } as usize)
            .into();
        assert!(
            between.iter().all(|at| (first..page).contains(at)),
            "{first:x} {page:x} {between:x?}"
        );
    }
}
