//! Where a pointer came from that the program has just used in vain: the place in memory from which an instruction before has
//! loaded it.
//!
//! The code before the fault is decoded from each of its bytes on; most of these readings meet after a few instructions.
//! A load counts only if its place still holds the pointer. So the answer is true also where a reading is wrong, or a
//! register has changed since: this pointer lies there.
//!
//! A load that replaces the register of its own address (`p = p->next`) leaves no way back. Then the memory that has records is
//! searched for the pointer, and the place that was written last is the answer.

use core::sync::atomic::Ordering::Relaxed;

use ulpf_engine::access::Insn;
use ulpf_engine::access::insn::NO_REG;
use ulpf_engine::access::layout::Wrap;
use ulpf_engine::cpu::{Cpu, Gprs};
use ulpf_lib::addr::USER_END;
use ulpf_lib::last_writer::{LastWriter, Site};
use ulpf_lib::{AccessKind, PAGE_SIZE, TargetAddr, WatchRange};

use crate::engine;
use crate::global::g;
use crate::last_writer;
use crate::runtime::memory;
use crate::unwind;

/// Bytes of code before the instruction that are looked at.
const REACH: u64 = 96;
const RSP: u8 = 4;
/// Bytes of the longest instruction.
const LONGEST: usize = 15;

/// A pointer, and where it lies; or the word of a block's header that the program has overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    pub pointer: u64,
    pub place: u64,
}

/// The pointer by which the instruction at `pc` has accessed memory, or has been reached.
pub fn of(gprs: &Gprs, pc: u64) -> Option<Origin> {
    let mut code = [0; LONGEST];
    let code = memory::code(pc, &mut code);
    if code.is_empty() {
        return called(gprs, pc);
    }
    let insn = engine::decode(pc, code)?;
    // (A call or jump to no code faults itself where its target is no address at all.)
    if loads_a_word(&insn)
        && let Some(place) = place_of(gprs, &insn)
        && let Some(pointer) = word(place)
    {
        return Some(Origin { pointer, place });
    }
    let registers = [insn.mem.base, insn.mem.index];
    let mut used = registers.into_iter().filter(|r| *r != NO_REG && *r != RSP);
    let load = used.clone().find_map(|r| loaded(gprs, pc, gprs.get(r)));
    load.or_else(|| used.find_map(|r| found(gprs.get(r))))
}

/// The first header of glibc's heaps that its allocator has not written last: of the main one, then of those of other arenas.
pub fn of_header() -> Option<Origin> {
    let end = g().brk.load(Relaxed);
    let (mut main, mut found) = (None, None);
    each_recorded(TargetAddr(end.wrapping_sub(1)), 1, &mut |range| {
        main = Some(range)
    });
    if let Some(heap) = main {
        found = overwritten(heap.start.0, end);
    }
    each_recorded(TargetAddr(0), USER_END, &mut |range| {
        if found.is_none()
            && let Some((first, end)) = chunks_of_arena(range.start.0)
        {
            found = overwritten(first, end);
        }
    });
    found
}

/// Calls `visit` with the ranges that have records.
fn each_recorded(start: TargetAddr, len: u64, visit: &mut dyn FnMut(WatchRange)) {
    g().watchlist()
        .for_each_overlap(start, len, &mut |id, range: WatchRange, _| {
            if g().attributes(id).writers {
                visit(range);
            }
        });
}

/// The first chunk and the end of the heap of an arena that begins there (malloc/arena.c: `heap_info`, `new_heap`, and
/// `_int_new_arena`, which puts the arena's `malloc_state` into its first heap).
fn chunks_of_arena(start: u64) -> Option<(u64, u64)> {
    /// `HEAP_MAX_SIZE`: a heap begins at a multiple of it.
    const MOST: u64 = 64 << 20;
    /// `sizeof(struct malloc_state)` since glibc 2.27.
    const STATE: u64 = 0x898;
    if start == 0 || !start.is_multiple_of(MOST) {
        return None;
    }
    let (arena, before, size) = (word(start)?, word(start + 8)?, word(start + 16)?);
    // (`heap_info` has 32 bytes, and 48 since glibc 2.35.)
    let head = arena % MOST;
    if !matches!(head, 32 | 48) {
        return None;
    }
    let first = match before {
        0 => (start + head + STATE).next_multiple_of(16),
        _ => start + head,
    };
    (size <= MOST && first < start + size).then_some((first, start + size))
}

/// The first header from `chunk` on that the allocator has not written last. A header is the size of its chunk, which leads to
/// the next one (malloc/malloc.c, "malloc_chunk details").
fn overwritten(mut chunk: u64, end: u64) -> Option<Origin> {
    const FLAGS: u64 = 7;
    const LEAST: u64 = 32;
    while chunk + LEAST <= end {
        let place = chunk + 8;
        let header = word(place)?;
        let writer = last_writer::of(place).and_then(last_writer::site_of);
        let by_program = |site: Site| !site.books && (site.called || !unwind::is_runtime(site.pc));
        if writer.is_some_and(by_program) {
            return Some(Origin {
                pointer: header,
                place,
            });
        }
        let size = header & !FLAGS;
        if size < LEAST || !size.is_multiple_of(16) {
            return None;
        }
        chunk = chunk.checked_add(size)?;
    }
    None
}

/// A call has led to `target`, where there is no code: the return address is on the stack.
fn called(gprs: &Gprs, target: u64) -> Option<Origin> {
    let back = word(gprs.rsp)?;
    loaded(gprs, back, target).or_else(|| found(target))
}

/// The place in memory with records that holds `pointer`; of several, the one that was written last.
fn found(pointer: u64) -> Option<Origin> {
    const LEAST: u64 = PAGE_SIZE;
    /// Some seconds.
    const MOST: u64 = 4 << 30;
    if pointer < LEAST {
        return None; // too many words are so small
    }
    let (mut best, mut left) = (None, MOST);
    each_recorded(TargetAddr(0), USER_END, &mut |range| {
        let len = range.len.min(left);
        left -= len;
        let pages = range.start.page().0..range.start.0 + len;
        for page in pages.step_by(PAGE_SIZE as usize) {
            look_at(page, pointer, &mut best);
        }
    });
    best.map(|(_, place)| Origin { pointer, place })
}

/// Looks for `pointer` on a page; `best` has the time (TSC) and the place that was written last.
fn look_at(page: u64, pointer: u64, best: &mut Option<(u64, u64)>) {
    let mut words = [[0; 8]; PAGE_SIZE as usize / 8];
    let bytes = words.as_flattened_mut();
    if memory::look(page, bytes) != bytes.len() {
        return;
    }
    for (place, word) in (page..).step_by(8).zip(words) {
        if u64::from_le_bytes(word) != pointer {
            continue;
        }
        let writer = last_writer::of(place).filter(|w| *w != LastWriter::NONE);
        let since = writer
            .and_then(last_writer::stamp_of)
            .map_or(0, |(_, since)| since);
        if best.is_none_or(|(before, _)| since > before) {
            *best = Some((since, place));
        }
    }
}

/// The last instruction before `end` that loads from a place which holds `pointer`.
fn loaded(gprs: &Gprs, end: u64, pointer: u64) -> Option<Origin> {
    let mut code = [0; REACH as usize + LONGEST];
    let from = end.saturating_sub(REACH);
    // (The page before may hold no code.)
    let from = match word(from) {
        Some(_) => from,
        None => from.max(end & !4095),
    };
    let code = memory::code(from, &mut code);
    (from..end).rev().find_map(|at| {
        let own = code.get((at - from) as usize..)?;
        let insn = engine::decode(at, own.get(..own.len().min(LONGEST))?)?;
        let place = place_of(gprs, &insn)
            .filter(|_| loads_a_word(&insn) && at + u64::from(insn.len) <= end)?;
        (word(place) == Some(pointer)).then_some(Origin { pointer, place })
    })
}

/// Whether it reads a pointer from memory: a move to a register, or an indirect call or jump.
fn loads_a_word(insn: &Insn) -> bool {
    let l = &insn.layout;
    if l.wrap != Wrap::Legacy || l.map != 0 || insn.mem.kind != AccessKind::Read {
        return false;
    }
    insn.mem.size == 8 && (l.opcode == 0x8b || l.opcode == 0xff && matches!(l.ext(), 2 | 4))
}

fn place_of(gprs: &Gprs, insn: &Insn) -> Option<u64> {
    if insn.mem.segment != 0 || !insn.layout.has_mem() {
        return None;
    }
    let mut gprs = *gprs;
    let cpu = Cpu {
        gprs: &mut gprs,
        fs_base: 0,
        gs_base: 0,
        xsave: core::ptr::null_mut(),
        xsave_len: 0,
    };
    Some(insn.effective(&cpu))
}

fn word(at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (memory::look(at, &mut bytes) == bytes.len()).then(|| u64::from_le_bytes(bytes))
}
