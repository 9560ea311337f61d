//! What a check of the heap finds (`ulpf check`): written by the program's threads, read by the command. Behind the
//! rings of the shared area; a report is written once, and from then on only its count changes.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::layout::{MAX_FRAMES, RINGS_END};

/// Where the [`Findings`] are, in bytes from the start of the shared area.
pub const FINDINGS_OFFSET: u64 = RINGS_END.next_multiple_of(4096);
/// How many different errors are told; of what comes later there is a number.
pub const REPORTS: usize = 1024;

/// How many reports answer a question at most.
pub const ASKED: usize = 256;
/// In the answer to who points to a block, [`Report::kind`]: memory at [`Report::addr`], which is in that block if it is in
/// one; else the register with that number less one, of the thread of [`Report::here`].
pub const IN_MEMORY: u32 = 0;

/// What is wrong.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Wrong {
    /// An access to memory of the allocator that is in no block.
    Outside = 1,
    /// An access to a block that has been freed.
    Freed,
    /// A block was freed that had been freed before.
    Twice,
    /// What was freed is not the beginning of a block.
    NoBlock,
    /// A block was freed by another function than belongs to the one that allocated it.
    Mismatch,
    /// A function was to copy between places that overlap.
    Overlap,
    /// An access to memory of which the program itself says that nobody may touch it.
    Poisoned,
    /// An access by a pointer to one block that lies in another one.
    Far,
    /// At the end: blocks to which nothing points any more.
    Lost,
    /// At the end: blocks to which only lost blocks point.
    LostWith,
    /// At the end: blocks of which only the inside is pointed to.
    PerhapsLost,
    /// At the end: blocks that were never freed, and could be.
    Reachable,
}

impl Wrong {
    /// All of them.
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

    /// The one with this number.
    pub fn of(number: u32) -> Option<Wrong> {
        Wrong::ALL.into_iter().find(|w| *w as u32 == number)
    }

    /// Which of [`Findings::left`].
    pub fn left(self) -> Option<usize> {
        (self as usize).checked_sub(Wrong::Lost as usize)
    }

    /// Is it about what an instruction or a system call has touched?
    pub fn is_access(self) -> bool {
        matches!(
            self,
            Wrong::Outside | Wrong::Freed | Wrong::Poisoned | Wrong::Far
        )
    }

    /// Is it about what a function was to free?
    pub fn is_free(self) -> bool {
        matches!(self, Wrong::Twice | Wrong::NoBlock | Wrong::Mismatch)
    }

    /// Is it about blocks that are there at the end?
    pub fn is_leak(self) -> bool {
        self >= Wrong::Lost
    }
}

/// Functions that copy, and may do anything if what they read and write overlaps.
pub const COPIES: [&str; 7] = [
    "memcpy", "mempcpy", "strcpy", "stpcpy", "strcat", "strncpy", "strncat",
];

/// By which kind of function a block was allocated, or freed.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// malloc and its relatives; free.
    Malloc = 0,
    /// `operator new`, `operator delete`.
    New,
    /// `operator new[]`, `operator delete[]`.
    NewArray,
    /// realloc, as it frees what it was given.
    Realloc,
    /// A program's own allocator, which has told of it (VALGRIND_MALLOCLIKE_BLOCK, VALGRIND_MEMPOOL_ALLOC and so on).
    Told,
}

impl By {
    /// The one with this number.
    pub fn of(number: u32) -> By {
        match number {
            1 => By::New,
            2 => By::NewArray,
            3 => By::Realloc,
            4 => By::Told,
            _ => By::Malloc,
        }
    }
}

/// By which function of an allocator memory was asked for.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Asked {
    /// Also `operator new`, as long as [`By`] says so.
    #[default]
    Malloc = 0,
    /// See its name, as of the others.
    Calloc,
    /// A block that had another size before.
    Realloc,
    /// `realloc(NULL, …)`
    ReallocOfNothing,
    /// Whatever it was given.
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
    /// The one with this number.
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

/// Who was where.
#[repr(C)]
#[derive(Default)]
pub struct Trace {
    /// The Linux thread; 0: not known.
    pub thread: AtomicU32,
    /// So many of `at` are known.
    pub frames: AtomicU32,
    /// Return addresses, the innermost first.
    pub at: [AtomicU64; MAX_FRAMES],
}

impl Trace {
    /// Notes it.
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

/// One error, at one place.
#[repr(C)]
#[derive(Default)]
pub struct Report {
    /// 1: it may be read. Written last.
    pub told: AtomicU32,
    /// A [`Wrong`].
    pub wrong: AtomicU32,
    /// How often it has happened; of leaks, how many blocks.
    pub count: AtomicU64,
    /// TSC.
    pub time: AtomicU64,
    /// What was accessed, or freed.
    pub addr: AtomicU64,
    /// Bytes of the access; of leaks, of all blocks together.
    pub len: AtomicU64,
    /// Of the access: an [`crate::AccessKind`]. Of a call that frees: a [`By`]; of one that copies: which of [`COPIES`].
    pub kind: AtomicU32,
    /// The number of the system call that made the access, plus 1; 0: the program itself.
    pub syscall: AtomicU32,
    /// Of what overlaps: where it is copied from.
    pub from: AtomicU64,
    /// The instruction, or the first one of the function that frees.
    pub pc: AtomicU64,
    /// Its callers.
    pub here: Trace,
    /// The block that is nearest: its first byte; 0: there is none.
    pub block: AtomicU64,
    /// Bytes that were asked for.
    pub size: AtomicU64,
    /// A [`By`].
    pub by: AtomicU32,
    /// An [`Asked`].
    pub asked: AtomicU32,
    /// Not 0: the block has been freed.
    pub freed: AtomicU32,
    /// Where it was allocated.
    pub allocated_at: Trace,
    /// Where it was freed.
    pub freed_at: Trace,
    /// Another block in which the access lies, by a pointer to this one: its first byte; 0: there is none.
    pub other: AtomicU64,
    /// Bytes that were asked for it.
    pub other_size: AtomicU64,
    /// Where it was allocated.
    pub other_allocated_at: Trace,
}

/// What is known of the blocks that a program had before its heap was checked.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Old {
    /// It had none: it is checked from its beginning.
    None = 0,
    /// Those of glibc's heaps, but not what has mappings of its own.
    Walked,
    /// The allocator is another one than glibc's, or a version of it that is not known.
    Unknown,
    /// What glibc keeps of its heaps does not fit together.
    Damaged,
    /// Some thread was always at work on it.
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

/// Threads take blocks from so many shelves: no two from the same one, if there are no more of them.
pub const SHELVES: usize = 8;

/// What is counted of the blocks of a shelf.
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

    /// The answer to a question, of so many reports; more than there is room for are none.
    pub fn answer(&self, told: u32) -> &[Report] {
        self.asked.get(..told as usize).unwrap_or(&self.asked)
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

/// All that has been found, and what there is.
#[repr(C)]
pub struct Findings {
    /// Not 0: the heap is checked.
    pub on: AtomicU32,
    /// Not 0: the program came to its end, and its blocks have been looked at.
    pub searched: AtomicU32,
    /// Errors, those included that have happened before.
    pub errors: AtomicU64,
    /// Errors that no report was left for.
    pub untold: AtomicU64,
    /// Bytes in blocks at most; where several threads allocate, by up to 4 KiB for each of the [`SHELVES`] less.
    pub most: AtomicU64,
    /// By the shelf that a block is from: its own, whoever frees it.
    pub counts: [Counts; SHELVES],
    /// What the freed blocks take that are kept (the quarantine), in bytes; those that a shelf has freed of late come later.
    pub kept: AtomicU64,
    /// Functions of allocators that are served here.
    pub functions: AtomicU64,
    /// What is known of blocks that the program had before: an [`Old`].
    pub old: AtomicU64,
    /// So many of these blocks are watched, and so many bytes of them.
    pub old_blocks: [AtomicU64; 2],
    /// Blocks that are left at the end, and their bytes, of places that no report was left for: lost ones, those lost
    /// with them, perhaps lost, reachable.
    pub left: [[AtomicU64; 2]; 4],
    /// In the order in which they were found.
    pub reports: [Report; REPORTS],
    /// The answer to the last question of a debugger's.
    pub asked: [Report; ASKED],
}

/// Bytes of the whole area, most of them a hole.
pub const SHARED_LEN: u64 = FINDINGS_OFFSET + FINDINGS_LEN;
/// Bytes of [`Findings`].
pub const FINDINGS_LEN: u64 = (size_of::<Findings>() as u64).next_multiple_of(4096);
