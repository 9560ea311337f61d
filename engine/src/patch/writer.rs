//! Parameters of a trampoline, and its writer.

use alloc::vec::Vec;
use core::mem::offset_of;

use ulpf_lib::ring::Area;

use super::asm::{Asm, RCX};
use super::types::{Blocks, Mark, Phase};

/// Where a trampoline goes, and what it works with.
#[derive(Clone, Copy)]
pub struct Target {
    /// Where it lies.
    pub at: u64,
    /// Its word of [`Area::idle_count`], which counts accesses to pages without a guard in a row, from [`super::types::IDLE_START`] on. If
    /// the guarded page before them is watched as a whole, it counts on from the number of that page's tally. When the lower
    /// byte overflows, after [`super::IDLE_ROUND`] of them, the patch may not be worth its checks any more.
    pub idle_count: usize,
    /// [`Area::hit`] for a hit of the first part. `leaving` is the value for an overflow of `idle_count`; each further part
    /// adds `step`.
    pub hit: u64,
    /// See `hit`.
    pub leaving: u64,
    /// See `hit`; for an access that asks where its pointer leads (`asking`).
    pub asks: u64,
    /// See `hit`.
    pub step: u64,
    /// Hits are to be looked at before they are made: each costs an `int3`.
    pub before_access: bool,
    /// Accesses with an index ask first whether they lead out of the block of their pointer.
    pub asking: Option<Blocks>,
    /// A load is a hit only if all of its bits are set, because string functions over-read.
    pub over_read: bool,
    /// Most accesses are of a checked heap, at this distance to its alias, and [`Tables::whole`] says which.
    pub heap: Option<u64>,
    /// Most pages are watched as a whole, by watches that only count.
    pub whole: bool,
    /// Accesses that meet a guard and no watch are counted.
    pub counts: bool,
    /// Stores to pages that are watched as a whole leave a record (`last_writer.rs`), and are not counted.
    pub writers: Option<Writers>,
    /// Tables that it reads.
    pub tables: Tables,
}

/// Addresses of the trampolines' tables, the same for all of them.
#[derive(Clone, Copy, Default)]
pub struct Tables {
    /// A byte for each page number: its class. Before them the distances to the alias.
    pub classes: u64,
    /// Bits that say which stores (loads) concern a watch, one for each byte of the alias, less what
    /// an alias address / 8 adds.
    pub writes: u64,
    /// See `writes`.
    pub reads: u64,
    /// A byte for each page of the alias, less what its number adds: every access there is a hit of one
    /// watch that only counts, in this place of [`Area::hits`]. Zero: it is not so.
    pub tallies: u64,
    /// A byte for each page number, for loads; then the same for stores. Every access that begins on the page is a hit of
    /// one watch that only counts, in this place of [`Area::hits`], at this one's distance to the alias. Zero: that is not known.
    /// Where there is [`Target::heap`] it says instead that this page and the next one are of that, and is
    /// [`IDLE_START`](super::types::IDLE_START).
    pub whole: u64,
    /// [`super::LOCKS`] locks, and what follows them.
    pub locks: u64,
}

/// Addresses of the tables of last writers.
#[derive(Clone, Copy)]
pub struct Writers {
    /// The record of the byte whose alias is 0; that of any other is four times as far behind it.
    pub records: u64,
    /// The table of callers ([`ulpf_lib::last_writer::CALLERS`]).
    pub callers: u64,
}

/// A trampoline as it is written.
pub struct Writer {
    pub asm: Asm,
    pub marks: Vec<Mark>,
    pub part: u8,
}

impl Writer {
    /// What `write` returns. If that is `None`, nothing has been written.
    pub fn attempt<T>(&mut self, write: impl FnOnce(&mut Writer) -> Option<T>) -> Option<T> {
        let (at, marks) = (self.asm.here(), self.marks.len());
        let done = write(self);
        if done.is_none() {
            self.asm.bytes.truncate(at);
            self.marks.truncate(marks);
        }
        done
    }

    /// Marks the code since the last mark as `phase`.
    pub fn mark(&mut self, phase: Phase) {
        self.marks.push(Mark {
            end: self.asm.here() as u16,
            part: self.part,
            phase,
            moved: false,
        });
    }

    /// As [`Writer::mark`], and the stack pointer has moved.
    pub fn mark_moved(&mut self, phase: Phase) {
        self.mark(phase);
        if let Some(mark) = self.marks.last_mut() {
            mark.moved = true;
        }
    }
}

/// The three registers of a trampoline are in the area from here on.
pub fn keep(w: &mut Writer, a: u8, b: u8) {
    w.asm.save(offset_of!(Area, address), a);
    w.asm.save(offset_of!(Area, rcx), RCX);
    w.asm.save(offset_of!(Area, other), b);
    w.mark(Phase::Before);
}

/// The three registers are the program's again.
pub fn restore(w: &mut Writer, a: u8, b: u8) {
    w.asm.load(b, offset_of!(Area, other));
    w.asm.load(RCX, offset_of!(Area, rcx));
    w.asm.load(a, offset_of!(Area, address));
}
