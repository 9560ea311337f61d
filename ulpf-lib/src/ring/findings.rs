//! Findings of a heap check (`ulpf check`), written by the program's threads and read by the command. They lie behind the
//! rings of the shared area. A report is written once; from then on only its count changes.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::layout::{MAX_FRAMES, RINGS_END};

/// Offset of the [`Findings`] in the shared area, in bytes.
pub const FINDINGS_OFFSET: u64 = RINGS_END.next_multiple_of(4096);
/// Maximum number of different errors that are reported; later ones are only counted.
pub const REPORTS: usize = 1024;

/// Maximum number of reports in the answer to a query.
pub const ASKED: usize = 256;
/// [`Report::kind`] of a pointer in memory, in the answer to the query for pointers to a block: the pointer is at
/// [`Report::addr`], and the report names the block there, if any. Any other kind is the number of a register plus one;
/// the register is of the thread of [`Report::here`].
pub const IN_MEMORY: u32 = 0;

/// Kind of an error.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Wrong {
    /// An out-of-block access: to memory of the allocator that is in no block.
    Outside = 1,
    /// An access to a freed block.
    Freed,
    /// A block was freed twice.
    Twice,
    /// The freed address is not the beginning of a block.
    NoBlock,
    /// A block was freed by a function that does not match the one that allocated it.
    Mismatch,
    /// A function was to copy between overlapping ranges.
    Overlap,
    /// An access to memory that the program itself has declared inaccessible by a client request.
    Poisoned,
    /// An access by a pointer to one block that lies in another one.
    Far,
    /// At the end: blocks without any pointer to them.
    Lost,
    /// At the end: blocks with pointers from lost blocks only.
    LostWith,
    /// At the end: blocks with pointers to their inside only.
    PerhapsLost,
    /// At the end: blocks that were never freed, but have pointers to them.
    Reachable,
}

impl Wrong {
    /// All kinds.
    pub const ALL: [Wrong; 12] = [
        Wrong::Outside,
        Wrong::Freed,
        Wrong::Twice,
        Wrong::NoBlock,
        Wrong::Mismatch,
        Wrong::Overlap,
        Wrong::Poisoned,
        Wrong::Far,
        Wrong::Lost,
        Wrong::LostWith,
        Wrong::PerhapsLost,
        Wrong::Reachable,
    ];

    /// The kind with this number.
    pub fn of(number: u32) -> Option<Wrong> {
        Wrong::ALL.into_iter().find(|w| *w as u32 == number)
    }

    /// Index into [`Findings::left`].
    pub fn left(self) -> Option<usize> {
        (self as usize).checked_sub(Wrong::Lost as usize)
    }

    /// Whether it is about an access of an instruction or a system call.
    pub fn is_access(self) -> bool {
        matches!(
            self,
            Wrong::Outside | Wrong::Freed | Wrong::Poisoned | Wrong::Far
        )
    }

    /// Whether it is about a call that frees.
    pub fn is_free(self) -> bool {
        matches!(self, Wrong::Twice | Wrong::NoBlock | Wrong::Mismatch)
    }

    /// Whether it is about blocks that exist at the end.
    pub fn is_leak(self) -> bool {
        self >= Wrong::Lost
    }
}

/// Functions that copy, and whose behaviour is undefined if source and destination overlap.
pub const COPIES: [&str; 7] = [
    "memcpy", "mempcpy", "strcpy", "stpcpy", "strcat", "strncpy", "strncat",
];

/// Allocation family: malloc, new, new[] and so on.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// malloc and its relatives; free.
    Malloc = 0,
    /// `operator new`, `operator delete`.
    New,
    /// `operator new[]`, `operator delete[]`.
    NewArray,
    /// realloc, as the function that frees its argument.
    Realloc,
    /// The program's own allocator, which has declared the block by a client request (VALGRIND_MALLOCLIKE_BLOCK,
    /// VALGRIND_MEMPOOL_ALLOC and so on).
    Client,
}

impl By {
    /// The family with this number.
    pub fn of(number: u32) -> By {
        match number {
            1 => By::New,
            2 => By::NewArray,
            3 => By::Realloc,
            4 => By::Client,
            _ => By::Malloc,
        }
    }
}

/// The allocator's function that was called.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Asked {
    /// Also `operator new`, if [`By`] says so.
    #[default]
    Malloc = 0,
    /// See its name; the same holds for the others.
    Calloc,
    /// Called for a block of another size.
    Realloc,
    /// `realloc(NULL, …)`
    ReallocOfNothing,
    /// With any argument.
    Reallocarray,
    /// Also aligned_alloc, which is the same function in some libraries.
    Memalign,
    /// See its name.
    PosixMemalign,
    /// See its name.
    Valloc,
    /// See its name.
    Pvalloc,
}

impl Asked {
    /// The function with this number.
    pub fn of(number: u32) -> Asked {
        const ALL: [Asked; 9] = [
            Asked::Malloc,
            Asked::Calloc,
            Asked::Realloc,
            Asked::ReallocOfNothing,
            Asked::Reallocarray,
            Asked::Memalign,
            Asked::PosixMemalign,
            Asked::Valloc,
            Asked::Pvalloc,
        ];
        let known = ALL.into_iter().find(|a| *a as u32 == number);
        known.unwrap_or_default()
    }
}

/// A thread and its call stack.
#[repr(C)]
#[derive(Default)]
pub struct Trace {
    /// The Linux thread, or 0 if not known.
    pub thread: AtomicU32,
    /// Number of valid entries of `at`.
    pub frames: AtomicU32,
    /// Return addresses, the innermost first.
    pub at: [AtomicU64; MAX_FRAMES],
}

impl Trace {
    /// Stores both.
    pub fn note(&self, thread: u32, frames: &[u64]) {
        for (to, from) in self.at.iter().zip(frames) {
            to.store(*from, Ordering::Relaxed);
        }
        let known = frames.len().min(MAX_FRAMES) as u32;
        self.frames.store(known, Ordering::Relaxed);
        self.thread.store(thread, Ordering::Relaxed);
    }

    /// The return addresses.
    pub fn callers(&self) -> impl Iterator<Item = u64> + '_ {
        let known = self.frames.load(Ordering::Relaxed) as usize;
        let all = self.at.iter().take(known.min(MAX_FRAMES));
        all.map(|at| at.load(Ordering::Relaxed))
    }
}

/// One error at one place.
#[repr(C)]
#[derive(Default)]
pub struct Report {
    /// 1 if the report may be read. Written last.
    pub published: AtomicU32,
    /// A [`Wrong`].
    pub wrong: AtomicU32,
    /// Number of occurrences; for leaks, number of blocks.
    pub count: AtomicU64,
    /// TSC.
    pub time: AtomicU64,
    /// The accessed or freed address.
    pub addr: AtomicU64,
    /// Bytes of the access; for leaks, of all blocks together.
    pub len: AtomicU64,
    /// For an access: an [`crate::AccessKind`]. For a call that frees: a [`By`]. For one that copies: index into
    /// [`COPIES`].
    pub kind: AtomicU32,
    /// The number of the system call that made the access, plus 1; 0 for the program itself.
    pub syscall: AtomicU32,
    /// For overlapping copies: the source.
    pub from: AtomicU64,
    /// The instruction, or the first one of the freeing function.
    pub pc: AtomicU64,
    /// Its callers.
    pub here: Trace,
    /// First byte of the nearest block, or 0 without one.
    pub block: AtomicU64,
    /// Requested bytes.
    pub size: AtomicU64,
    /// A [`By`].
    pub by: AtomicU32,
    /// An [`Asked`].
    pub asked: AtomicU32,
    /// Nonzero if the block has been freed.
    pub freed: AtomicU32,
    /// Stack of its allocation.
    pub allocated_at: Trace,
    /// Stack of its free.
    pub freed_at: Trace,
    /// For an access by a pointer to this block: first byte of the other block that it hits, or 0.
    pub other: AtomicU64,
    /// Its requested bytes.
    pub other_size: AtomicU64,
    /// Stack of its allocation.
    pub other_allocated_at: Trace,
}

/// Knowledge about blocks that a program had before its heap was checked.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Old {
    /// It had none: it is checked from its beginning.
    None = 0,
    /// The blocks of glibc's heaps are known, but not those with mappings of their own.
    Walked,
    /// The allocator is not glibc's, or a version of it that is not known.
    Unknown,
    /// glibc's records of its heaps are inconsistent.
    Damaged,
    /// Some thread was always working on the heap.
    Busy,
    /// Their memory cannot be watched.
    Unwatched,
}

impl Old {
    /// The one with this number.
    pub fn of(number: u64) -> Old {
        const ALL: [Old; 6] = [
            Old::None,
            Old::Walked,
            Old::Unknown,
            Old::Damaged,
            Old::Busy,
            Old::Unwatched,
        ];
        let known = ALL.into_iter().find(|old| *old as u64 == number);
        known.unwrap_or(Old::Unknown)
    }
}

/// Number of shards from which threads take blocks. Up to this number of threads, each has a shard of its own.
pub const SHARDS: usize = 8;

/// Counters of the blocks of a shard.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Counts {
    /// Blocks allocated since the beginning.
    pub allocated: AtomicU64,
    /// Blocks freed since the beginning.
    pub freed: AtomicU64,
    /// Bytes in blocks now.
    pub bytes: AtomicU64,
}

impl Findings {
    fn sum(&self, which: impl Fn(&Counts) -> &AtomicU64) -> u64 {
        let each = self.counts.iter().map(|c| which(c).load(Ordering::Relaxed));
        each.fold(0, u64::wrapping_add)
    }

    /// The answer to a query, which has `count` reports; a number beyond the room is clamped.
    pub fn answer(&self, count: u32) -> &[Report] {
        self.asked.get(..count as usize).unwrap_or(&self.asked)
    }

    /// Blocks allocated since the beginning.
    pub fn allocated(&self) -> u64 {
        self.sum(|c| &c.allocated)
    }

    /// Blocks freed since the beginning.
    pub fn freed(&self) -> u64 {
        self.sum(|c| &c.freed)
    }

    /// Bytes in blocks now.
    pub fn bytes(&self) -> u64 {
        self.sum(|c| &c.bytes)
    }
}

/// Allocators whose place cannot be taken: they have further records of their blocks, or entry points beside malloc's.
pub const UNREPLACED: [&str; 9] = [
    "the allocator of AddressSanitizer",
    "the allocator of ThreadSanitizer",
    "the allocator of MemorySanitizer",
    "the allocator of HWAddressSanitizer",
    "the allocator of LeakSanitizer",
    "the allocator of DataFlowSanitizer",
    "the allocator of Firefox (mozjemalloc)",
    "this tcmalloc (2.16 or later), which waits for its own malloc to begin",
    "the allocator of Chromium (PartitionAlloc)",
];

/// All findings and counters.
#[repr(C)]
pub struct Findings {
    /// Nonzero if the heap is checked.
    pub on: AtomicU32,
    /// Nonzero if the program came to its end and its blocks have been searched.
    pub searched: AtomicU32,
    /// Errors, including repeated ones.
    pub errors: AtomicU64,
    /// Errors for which no report was left.
    pub unreported: AtomicU64,
    /// Peak of the bytes in blocks. Where several threads allocate, it may be up to 4 KiB too low for each of the
    /// [`SHARDS`].
    pub most: AtomicU64,
    /// Indexed by the shard of a block, also if a thread of another shard frees it.
    pub counts: [Counts; SHARDS],
    /// Bytes of the freed blocks in the quarantine; recently freed blocks of a shard are added later.
    pub kept: AtomicU64,
    /// Number of intercepted allocator functions.
    pub functions: AtomicU64,
    /// An allocator whose place cannot be taken, so that nothing is checked: its number in [`UNREPLACED`], from 1. 0: none.
    pub unreplaced: AtomicU64,
    /// Knowledge about earlier blocks: an [`Old`].
    pub old: AtomicU64,
    /// Number of these blocks that are watched, and their bytes.
    pub old_blocks: [AtomicU64; 2],
    /// Blocks that are left at the end, and their bytes, of places for which no report was left: lost, lost with others,
    /// perhaps lost, reachable.
    pub left: [[AtomicU64; 2]; 4],
    /// In the order in which they were found.
    pub reports: [Report; REPORTS],
    /// The answer to the debugger's last query.
    pub asked: [Report; ASKED],
}

/// Bytes of the whole area, most of them a hole.
pub const SHARED_LEN: u64 = FINDINGS_OFFSET + FINDINGS_LEN;
/// Bytes of [`Findings`].
pub const FINDINGS_LEN: u64 = (size_of::<Findings>() as u64).next_multiple_of(4096);
