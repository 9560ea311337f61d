//! Decides whether an access to checked memory is an error.

use core::sync::atomic::{AtomicU64, Ordering::*};

use ulpf_engine::access::{Class, Insn, NO_REG};
use ulpf_engine::cpu::Gprs;
use ulpf_lib::ring::findings::Wrong;

use ulpf_stub_tables::code::OverRead;

use super::blocks::Block;
use super::{arena, client_blocks, entries, lookup, old, regions, report, shadow};
use crate::cause::Cause;
use crate::runtime::events::Event;
use crate::runtime::memory;
use crate::runtime::thread::Current;
use crate::{engine, unwind};

/// `[start, end)` of functions of C libraries that copy. They read no byte beyond what they are asked for.
pub static COPIERS: [[AtomicU64; 2]; 32] = [const { [const { AtomicU64::new(0) }; 2] }; 32];

/// Adds one of these functions. Called by the stub's task with the world stopped.
pub fn add_copier((start, end): (u64, u64)) {
    let known = |c: &&[AtomicU64; 2]| {
        let at = c[0].load(Relaxed);
        at == 0 || at == start
    };
    if let Some([from, to]) = COPIERS.iter().find(known) {
        to.store(end, Relaxed);
        from.store(start, Relaxed);
    }
}

/// True if some of this code is in one of them.
fn copies(start: u64, end: u64) -> bool {
    COPIERS.iter().any(|[from, to]| {
        let from = from.load(Relaxed);
        from != 0 && from < end && start < to.load(Relaxed)
    })
}

/// True if all loads of this code may be over-reads, which are harmless if some byte of them is addressable
/// ([`is_over_read`]). Loads of one byte are not over-reads.
pub fn takes_over_read(start: u64, end: u64) -> bool {
    !copies(start, end)
        && [start, end - 1]
            .into_iter()
            .all(|pc| unwind::over_read(pc) != OverRead::None)
}

/// Reports the instruction's access, which overlaps checked memory, if it is an error. Returns the event to stop for.
pub fn access(t: Current, gprs: &Gprs, c: &Cause) -> Option<Event> {
    // (`predict` judged it before it was made.)
    if c.syscall.is_none() && t.own().predicted.get().pc == c.pc {
        return None;
    }
    let closed = wrong_byte(c).filter(|at| !is_its_own(t, gprs, c, *at))?;
    let (wrong, block) = nearest(closed);
    report::access(t, gprs, c, wrong, closed, block)
}

/// As [`access`]; also returns whether there is an error at all.
pub fn before_access(t: Current, gprs: &Gprs, c: &Cause) -> (bool, Option<Event>) {
    let Some(closed) = wrong_byte(c).filter(|at| !is_its_own(t, gprs, c, *at)) else {
        return (false, None);
    };
    let (wrong, block) = nearest(closed);
    (true, report::access(t, gprs, c, wrong, closed, block))
}

/// True if an allocator that served the program before, or a function called by it, uses its own memory.
fn is_its_own(t: Current, gprs: &Gprs, c: &Cause, closed: u64) -> bool {
    c.syscall.is_none()
        && entries::PASSES.load(Relaxed)
        && !arena::has(closed)
        && unwind::is_allocators(t, gprs, c.pc)
}

/// The first poisoned byte of an access, unless the access is harmless.
fn wrong_byte(c: &Cause) -> Option<u64> {
    let start = shadow::checked_from(c.addr.0, c.addr.0 + c.len);
    let len = c.len.saturating_sub(start - c.addr.0);
    // (It touches only its own books there.)
    if c.syscall.is_none() && old::is_allocators(c.pc) && !arena::has(start) {
        return None;
    }
    let closed = shadow::first_poisoned(start, len)?;
    let harmless = c.syscall.is_none() && !c.kind.writes() && is_harmless(c);
    (!harmless).then_some(closed)
}

/// True for an over-read ([`is_over_read`]), also if a mask selects only some of its bytes: with AVX-512 the end of one
/// string masks the comparison of the other.
fn is_harmless(c: &Cause) -> bool {
    if copies(c.pc, c.pc + 1) {
        return false;
    }
    // Only the remaining cases are decoded, since decoding costs more than the other tests.
    is_over_read(c)
        || c.len < WIDEST
            && is_addressable(c.addr.0.saturating_sub(VECTORS * WIDEST), c.addr.0 + WIDEST)
            && unwind::over_read(c.pc) != OverRead::None
            && is_masked(c.pc)
        || is_one_of_four(c)
        || is_search(c)
}

/// Vectors that string functions examine side by side, and the bytes of the widest one.
const VECTORS: u64 = 4;
const WIDEST: u64 = 64;

/// True if some byte of `[from, to)` is addressable.
fn is_addressable(from: u64, to: u64) -> bool {
    let from = shadow::checked_from(from, to);
    shadow::first_addressable(from, to.saturating_sub(from)).is_some()
}

/// True for the over-reads of string functions. An aligned word or vector with some addressable bytes crosses into no
/// other page. String functions search up to four vectors side by side for an end in the addressable part. They align
/// one string and also read the bytes before it; the other string, and the first vectors of each, may be unaligned.
/// Older functions load a vector by halves. The last byte of a string may be loaded as a word of two bytes, with the
/// byte behind it.
fn is_over_read(c: &Cause) -> bool {
    let (addr, len) = (c.addr.0, c.len);
    if len < 2 {
        return false;
    }
    let aligned = len.is_power_of_two() && addr.is_multiple_of(len);
    if aligned && len >= 8 && is_addressable(addr, addr + len) {
        return true;
    }
    let over_read = unwind::over_read(c.pc);
    if over_read == OverRead::None {
        return false;
    }
    let together = len * VECTORS;
    // strstr compares an aligned vector with the first character, and the one that begins a byte before it with the second.
    let beside = (addr + 1).is_multiple_of(len);
    match len {
        // It may be the last one.
        16.. if is_addressable(addr.saturating_sub(together - len), addr + len) => true,
        16.. if aligned || beside => {
            is_addressable(addr, (addr + 1) / together * together + together)
        }
        8 if over_read == OverRead::Words => is_addressable(addr.saturating_sub(len), addr + len),
        _ => is_addressable(addr, addr + len),
    }
}

/// True for one byte of an aligned word of four with some addressable bytes before it. The C versions of strspn and
/// strcspn examine four bytes before they ask which one was the end.
fn is_one_of_four(c: &Cause) -> bool {
    let word = c.addr.0 & !3;
    c.len == 1
        && is_addressable(word, c.addr.0)
        && unwind::over_read(c.pc) != OverRead::None
        && instruction(c.pc).is_some_and(|insn| {
            let (mem, layout) = (insn.mem, insn.layout);
            let movzx = layout.map == 1 && layout.opcode == 0xb6;
            movzx && mem.index == NO_REG && (mem.disp - c.addr.0 as i64) % 4 == 0
        })
}

/// True for a load of an aligned, partly addressable word of four bytes that is tested for a zero byte by arithmetic.
/// Compilers inline such a strlen in any function (GCC's -minline-all-stringops and -Os).
fn is_search(c: &Cause) -> bool {
    /// Bytes of code behind the load within which the mask of the bytes' highest bits must appear.
    const NEAR: usize = 48;
    const MASK: [u8; 4] = [0x80; 4];
    let addr = c.addr.0;
    c.len == 4
        && addr.is_multiple_of(4)
        && is_addressable(addr, addr + 4)
        && memory::code(c.pc, &mut [0; NEAR])
            .windows(MASK.len())
            .any(|bytes| bytes == MASK)
}

/// True if a mask selects the bytes of its operand that the instruction touches.
fn is_masked(pc: u64) -> bool {
    instruction(pc).is_some_and(|insn| insn.class == Class::MaskedEvex)
}

/// The program's original instruction at `pc`.
fn instruction(pc: u64) -> Option<Insn> {
    let mut bytes = [0u8; 15];
    engine::decode(pc, memory::code(pc, &mut bytes))
}

/// The block that the byte belongs to: the freed block that contains it, or the nearest block.
pub fn nearest(at: u64) -> (Wrong, Option<Block>) {
    let is_one = |b: &Block| b.size > 0 || b.allocated_at != 0;
    let here = lookup::near(at).filter(is_one);
    if let Some(b) = here
        && b.freed
        && b.has(at)
    {
        return (Wrong::Freed, here);
    }
    // Poisoned bytes inside a block in use, and in memory of no heap, were poisoned by client requests.
    let inside = here.filter(|b| !b.freed && b.has(at));
    if inside.is_some() || regions::is_requested(at) {
        return client_blocks::judge(at, inside);
    }
    let next = lookup::next(at).filter(is_one);
    let distance = |b: &Block| match at < b.start {
        true => b.start - at,
        false => at - (b.start + b.size) + 1,
    };
    // At equal distance, an access behind the block in use is more likely.
    let nearest = match (here, next) {
        (Some(a), Some(b)) if distance(&b) < distance(&a) && (!b.freed || a.freed) => Some(b),
        (Some(a), Some(b)) if a.freed && !b.freed && distance(&b) <= 16 => Some(b),
        (Some(a), _) => Some(a),
        (None, b) => b,
    };
    (Wrong::Outside, nearest)
}
