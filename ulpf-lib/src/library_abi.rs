//! Between a program that watches itself (`libulpf`) and a stub that watches the same program.
//!
//! The library's guards are protections that the program has set, so the stub serves whatever lies beneath them and
//! hands faults on them to the library, as to any handler. What the library then does in the program's
//! stead, it does elsewhere: at an alias, in thunks. So each side has something to tell the other:
//! ```text
//!  library                                          stub
//!  AbiHeader, before the code of its SIGSEGV handler ──▶ reads it when the program installs that handler,
//!    where the AbiTable is                              or when it comes and finds it installed
//!  AbiTable::stub ◀──────────────────────────────────── there is one
//!  AbiTable::pages, changer, generation ──────────────▶ whose fault is this, and whose system call?
//!  prctl(CALL, …) ────────────────────────────────▶ AccessReport: an access that was made elsewhere; what stands in code
//! ```
//! To a kernel without a stub [`CALL`] is no operation that it knows (EINVAL).

use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::guard::PageMap;

/// First argument of prctl(2), unknown to Linux; the second one is one of these:
pub const CALL: u64 = u32::from_le_bytes(*b"ulpf") as u64;
/// Nothing but the answer 0.
pub const HELLO: u64 = 1;
/// The third is the address of a [`AccessReport`]. 1: the thread is to stop for it, once it is back in the program.
pub const TELL: u64 = 2;
/// Copies (to, from, length) of the program's memory, as the program knows it and without a hit: code without
/// breakpoints and patches, guarded memory. How many bytes.
pub const COPY: u64 = 3;
/// Does the stub guard any of (address, length) against accesses of (kind), or has it a debug register there?
/// 1 or 0.
pub const CONCERNS: u64 = 4;
/// Writes what it has moved at or behind (address) to an array (address, elements) of [`Run`]. How many.
pub const RUNS: u64 = 5;

/// Lies before the first instruction of the library's handler of SIGSEGV.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AbiHeader {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`VERSION`].
    pub version: u64,
    /// The [`AbiTable`]'s address less that of this word.
    pub table: i64,
}

/// [`AbiHeader::magic`].
pub const MAGIC: u64 = u64::from_le_bytes(*b"ulpfdoor");
/// Of everything in this file, and of [`PageMap`].
pub const VERSION: u64 = 1;

/// What the library shows.
#[repr(C)]
pub struct AbiTable {
    /// Not 0: a stub serves this program. Written by the stub only.
    pub stub: AtomicU32,
    /// Not 0: no page guards, but something that does not see what is performed elsewhere.
    pub blind: AtomicU32,
    /// Thread pointer of the thread that changes guards, or makes a step with open pages; 0: nobody does.
    pub changer: AtomicU64,
    /// Changes so far.
    pub generation: AtomicU64,
    /// What is guarded, and where its alias is.
    pub pages: PageMap,
}

impl AbiTable {
    /// No stub, no guards, no changes.
    pub const fn new() -> AbiTable {
        AbiTable {
            stub: AtomicU32::new(0),
            blind: AtomicU32::new(0),
            changer: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            pages: PageMap::new(),
        }
    }
}

impl Default for AbiTable {
    fn default() -> AbiTable {
        AbiTable::new()
    }
}

/// What an instruction, or a system call, has done.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AccessReport {
    /// The instruction, or the function that has made the call.
    pub pc: u64,
    /// The `ucontext_t` that is returned to, with the registers after the instruction; 0: a system call.
    pub context: u64,
    /// The library's stack: a stop waits until the thread has left it, or has returned to `context`.
    pub stack: [u64; 2],
    /// [`AccessRecord`], so many.
    pub made: u64,
    /// How many.
    pub count: u64,
    /// What stood in all of these before, one behind the other; 0: not known.
    pub old: u64,
    /// System call, its arguments and result.
    pub nr: i64,
    /// Its six arguments.
    pub args: [u64; 6],
    /// A number, or a negative errno.
    pub result: i64,
}

/// One access.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct AccessRecord {
    /// First byte.
    pub addr: u64,
    /// In bytes.
    pub len: u64,
    /// [`crate::AccessKind`]
    pub kind: u64,
}

/// Pages that the stub has moved, or guarded where they are.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Run {
    /// First address, of a page.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// `PROT_*` as the program knows them, and [`SHARED`].
    pub flags: u64,
}

/// The program itself shares this memory.
pub const SHARED: u64 = 1 << 8;
