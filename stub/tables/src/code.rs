//! Data about the program's code for backtraces: where it is, and how it unwinds. The stub's task fills it in. framehop
//! allocates nothing while it unwinds, because its caches are made beforehand.

use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering::*};

use framehop::MustNotAllocateDuringUnwind;
use framehop::x86_64::{CacheX86_64, UnwinderX86_64};
use ulpf_lib::PAGE_SIZE;

use crate::backtrace_cache::Stacks;
use crate::rows::Rows;

pub type Unwinder = UnwinderX86_64<Vec<u8>, MustNotAllocateDuringUnwind>;
pub type Cache = CacheX86_64<MustNotAllocateDuringUnwind>;

/// Number of threads that can unwind at the same time.
const CACHES: usize = 16;
/// Number of pages without known code that are remembered, so that threads do not ask for them again.
const MOST_UNKNOWN: usize = 1024;

/// A file whose tables are loaded.
pub struct File {
    /// Its number in the tables: the address of its first mapping.
    pub start: u64,
    /// Its code, `[start, end)`.
    pub code: (u64, u64),
    /// A library that every program of its language has.
    pub runtime: bool,
    /// Functions of an allocator in it, `[start, end)`.
    pub allocator: Vec<(u64, u64)>,
}

impl File {
    pub fn meets(&self, start: u64, end: u64) -> bool {
        self.code.0 < end && start < self.code.1
    }
}

/// Over-reads of string functions: loads of more bytes than are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OverRead {
    None,
    /// Over-reads by vectors; a word is used at least in part.
    Vectors,
    /// Words, too, may be over-read entirely.
    Words,
}

pub struct Code {
    pub tables: Unwinder,
    /// Files whose unwind tables are in `tables`.
    pub files: Vec<File>,
    /// Executable ranges, `[start, end)`, ascending.
    pub executable: Vec<(u64, u64)>,
    /// Numbers of pages that a thread asked for and that contain no executable code, ascending.
    pub unknown: Vec<u64>,
    /// Files were taken out of `files`, and may still be mapped.
    pub forgotten: bool,
    /// Functions of the program itself that read strings, `[start, end)`: by words and vectors, or perhaps by vectors;
    /// see [`Code::sort`].
    pub strings: Vec<(u64, u64)>,
    pub vectors: Vec<(u64, u64)>,
    /// The code of runtime libraries that every program of a language has, `[start, end)`; see [`Code::sort`].
    runtime: Vec<(u64, u64)>,
    /// The functions of allocators, `[start, end)`, and the code of the files that contain them; see [`Code::sort`].
    allocator: Vec<(u64, u64)>,
    with_allocator: Vec<(u64, u64)>,
    caches: Vec<Slot>,
    /// Incremented at each change of the above.
    generation: u64,
}

/// Memory for one unwinding thread.
pub struct Memory {
    pub cache: Cache,
    pub rows: Rows,
    pub stacks: Stacks,
}

struct Slot {
    taken: AtomicBool,
    memory: UnsafeCell<Memory>,
}

// SAFETY: a slot's cache is its taker's alone.
unsafe impl Sync for Slot {}

/// A cache, until it is dropped.
pub struct TakenCache<'a>(&'a Slot);

impl Deref for TakenCache<'_> {
    type Target = Memory;
    fn deref(&self) -> &Memory {
        // SAFETY: `taken` is ours.
        unsafe { &*self.0.memory.get() }
    }
}

impl DerefMut for TakenCache<'_> {
    fn deref_mut(&mut self) -> &mut Memory {
        // SAFETY: `taken` is ours.
        unsafe { &mut *self.0.memory.get() }
    }
}

impl Drop for TakenCache<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Release);
    }
}

impl Default for Code {
    fn default() -> Code {
        Code::new()
    }
}

impl Code {
    pub fn new() -> Code {
        let slot = || Slot {
            taken: AtomicBool::new(false),
            memory: UnsafeCell::new(Memory {
                cache: Cache::new_in(),
                rows: Rows::new(),
                stacks: Stacks::new(),
            }),
        };
        Code {
            tables: Unwinder::new(),
            files: Vec::new(),
            executable: Vec::new(),
            unknown: Vec::new(),
            forgotten: false,
            strings: Vec::new(),
            vectors: Vec::new(),
            runtime: Vec::new(),
            allocator: Vec::new(),
            with_allocator: Vec::new(),
            caches: (0..CACHES).map(|_| slot()).collect(),
            generation: 1,
        }
    }

    /// Returns whether tables of code in `[start, end)` are known.
    pub fn touches(&self, start: u64, end: u64) -> bool {
        self.files.iter().any(|f| f.meets(start, end))
    }

    /// Files have come or gone.
    pub fn sort(&mut self) {
        self.generation += 1;
        let files = self.files.iter().filter(|f| f.runtime);
        self.runtime = files.map(|f| f.code).collect();
        self.runtime.sort_unstable();
        let functions = self.files.iter().flat_map(|f| &f.allocator);
        self.allocator = functions.copied().collect();
        self.allocator.sort_unstable();
        let files = self.files.iter().filter(|f| !f.allocator.is_empty());
        self.with_allocator = files.map(|f| f.code).collect();
        self.with_allocator.sort_unstable();
        self.strings.sort_unstable();
        self.vectors.sort_unstable();
    }

    /// Returns whether `at` is in a function of an allocator.
    pub fn is_allocator(&self, at: u64) -> bool {
        let n = self.allocator.partition_point(|r| r.1 <= at);
        self.allocator.get(n).is_some_and(|r| r.0 <= at)
    }

    /// Returns whether `at` is in a file that contains an allocator.
    pub fn is_near_allocator(&self, at: u64) -> bool {
        let n = self.with_allocator.partition_point(|r| r.1 <= at);
        self.with_allocator.get(n).is_some_and(|r| r.0 <= at)
    }

    /// Returns whether `at` is in a library that every program of its language has (`ulpf_lib::runtime_library`).
    pub fn is_runtime(&self, at: u64) -> bool {
        let n = self.runtime.partition_point(|r| r.1 <= at);
        self.runtime.get(n).is_some_and(|r| r.0 <= at)
    }

    /// How far loads at `at` may over-read.
    pub fn over_read(&self, at: u64) -> OverRead {
        let is_in = |ranges: &[(u64, u64)]| {
            let n = ranges.partition_point(|r| r.1 <= at);
            ranges.get(n).is_some_and(|r| r.0 <= at)
        };
        if self.is_runtime(at) || is_in(&self.strings) {
            return OverRead::Words;
        }
        match is_in(&self.vectors) {
            true => OverRead::Vectors,
            false => OverRead::None,
        }
    }

    /// Returns whether `at` can be a return address, or the address of an instruction.
    pub fn is_code(&self, at: u64) -> bool {
        let n = self.executable.partition_point(|r| r.1 < at);
        self.executable.get(n).is_some_and(|r| r.0 <= at)
    }

    /// Returns whether there may be new mappings that are not known here.
    pub fn may_be_new(&self, at: u64) -> bool {
        let page = at / PAGE_SIZE;
        self.unknown.len() < MOST_UNKNOWN && self.unknown.binary_search(&page).is_err()
    }

    /// A free cache; the search begins with the thread's own.
    pub fn cache(&self, thread: usize) -> Option<TakenCache<'_>> {
        let mut taken = (0..CACHES)
            .filter_map(|n| self.caches.get((thread + n) % CACHES))
            .find(|slot| !slot.taken.swap(true, Acquire))
            .map(TakenCache)?;
        taken.rows.settle(self.generation);
        taken.stacks.settle(self.generation);
        Some(taken)
    }
}
