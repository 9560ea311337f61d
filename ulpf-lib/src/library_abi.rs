//! Between a program that watches itself (`libulpf`) and a stub that watches the same program.
//!
//! The library's guards are protections that the program has set. So the stub serves the memory beneath them and passes
//! faults on them to the library, as to any handler. The library then performs the program's accesses elsewhere: at an
//! alias, in thunks. So the two sides exchange:
//! ```text
//!     library                                          stub
//!     AbiHeader, before the code of its SIGSEGV handler ──▶ reads it when the program installs that handler,
//!       with the address of the AbiTable                   or when it is loaded and finds it installed
//!     AbiTable::stub ◀──────────────────────────────────── a stub is present
//!     AbiTable::pages, changer, generation ──────────────▶ owner of a fault, and of a system call
//!     prctl(CALL, …) ────────────────────────────────▶ AccessReport: an access made elsewhere; original bytes of code
//! ```
//! A kernel without a stub does not know the operation [`CALL`] (EINVAL).

use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::guard::PageMap;

/// First argument of prctl(2), unknown to Linux; the second one is one of these:
pub const CALL: u64 = u32::from_le_bytes(*b"ulpf") as u64;
/// Does nothing and returns 0.
pub const HELLO: u64 = 1;
/// The third argument is the address of an [`AccessReport`]. Returns 1 if the thread is to stop for it, once it is back
/// in the program.
pub const TELL: u64 = 2;
/// Copies (to, from, length) of the program's memory, as the program sees it and without a hit: code without breakpoints
/// and patches, guarded memory. Returns the number of bytes.
pub const COPY: u64 = 3;
/// Returns 1 if the stub guards any of (address, length) against accesses of (kind), or has a debug register there; else
/// 0.
pub const CONCERNS: u64 = 4;
/// Writes the ranges that it has moved at or behind (address) to an array (address, elements) of [`Run`]. Returns their
/// number.
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

/// Data that the library shows to the stub.
#[repr(C)]
pub struct AbiTable {
    /// Nonzero if a stub serves this program. Written by the stub only.
    pub stub: AtomicU32,
    /// Nonzero if the back end is not page guards but one that misses accesses performed elsewhere.
    pub blind: AtomicU32,
    /// Thread pointer of the thread that changes guards, or single-steps with open pages, or 0.
    pub changer: AtomicU64,
    /// Number of changes so far.
    pub generation: AtomicU64,
    /// Guarded pages and their aliases.
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

/// Accesses of an instruction or a system call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AccessReport {
    /// The instruction, or the function that has made the call.
    pub pc: u64,
    /// The `ucontext_t` that is restored, with the registers after the instruction, or 0 for a system call.
    pub context: u64,
    /// The library's stack: a stop waits until the thread has left it, or has returned to `context`.
    pub stack: [u64; 2],
    /// Array of [`AccessRecord`].
    pub made: u64,
    /// Number of its elements.
    pub count: u64,
    /// Old bytes of all these accesses, one after the other, or 0 if not known.
    pub old: u64,
    /// The system call.
    pub nr: i64,
    /// Its six arguments.
    pub args: [u64; 6],
    /// The result, or a negative errno.
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
