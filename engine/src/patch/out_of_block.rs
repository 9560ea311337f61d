//! Code before the body of an indexed access, when out-of-block accesses are checked. An access is in order if it lies near
//! its pointer, in the pointer's block by the heap's tables, or in no checked heap. For all others the trampoline calls
//! [`Area::entry`], without a signal.
//!
//! ```text
//! address - pointer ─┬─ near ────────────────────────────────────────────▶ the body
//!                    └─▶ both in the heap? ─▶ one owner? ─▶ one slot? ─yes▶ the body
//!                                      no ──▶ the body      └─ no ─▶ Area::entry ▶ the body
//! ```

use core::mem::offset_of;

use ulpf_lib::ring::Area;

use super::asm::{R11, RCX};
use super::types::{ARENA_BITS, Blocks, GRANULE_BITS, Phase};
use super::writer::{Target, Writer, keep, restore};
use crate::access::{Class, Insn, NO_REG};

/// As a power of two: no redzone between blocks is smaller, and slots begin at its multiples.
const LINE_BITS: u32 = 4;
const RSP: u8 = 4;

/// Whether such an operand may lead from one block to another one. (Without an index, the distance from the pointer is a
/// constant of the program's code.)
fn may_leave_block(insn: &Insn) -> bool {
    let mem = &insn.mem;
    let indexed = mem.base != NO_REG && mem.base != RSP && mem.index != NO_REG;
    indexed && mem.segment == 0 && !matches!(insn.class, Class::Gather | Class::Scatter)
}

/// Writes the check if it is wanted. Returns the offset where the thread continues after the call.
pub fn ask(w: &mut Writer, insn: &Insn, (a, b): (u8, u8), target: Target) -> Option<u16> {
    let Some(blocks) = target.asking.filter(|_| may_leave_block(insn)) else {
        return Some(w.asm.here() as u16);
    };
    let mem = &insn.mem;
    keep(w, a, b);
    if !w.asm.address(a, mem) {
        return None;
    }
    match mem.base {
        base if base == a => w.asm.load(b, offset_of!(Area, address)),
        base => w.asm.lea(b, base, 0),
    }
    const NEAR: i32 = 1 << LINE_BITS;
    w.asm.less_itself(b, a, NEAR);
    w.asm.ecx(LINE_BITS + 1);
    w.asm.shift(b);
    let near = w.asm.jrcxz();
    let far = w.asm.jmp_short();
    w.asm.aim_short(near)?;
    restore(w, a, b);
    w.mark(Phase::Saved);
    let trampoline = w.asm.jmp();
    w.mark(Phase::Before);
    w.asm.aim_short(far)?;
    w.asm.save(offset_of!(Area, r11), R11);
    w.mark(Phase::Saved);
    w.asm.less_itself(b, a, NEAR);
    let (outside, same, other) = compare(w, (a, b), blocks)?;
    // Another one.
    let here = w.asm.here();
    for from in other {
        w.asm.aim(from, here)?;
    }
    let part = target.step * u64::from(w.part);
    w.asm
        .save_constant(offset_of!(Area, hit), target.asks + part);
    w.asm.load(R11, offset_of!(Area, r11));
    w.mark(Phase::Closer);
    restore(w, a, b);
    w.mark(Phase::Saved);
    w.asm.jump_through(offset_of!(Area, entry));
    w.mark(Phase::Before);
    let here = w.asm.here();
    for from in outside.into_iter().chain(same) {
        w.asm.aim(from, here)?;
    }
    w.asm.load(R11, offset_of!(Area, r11));
    w.mark(Phase::Closer);
    restore(w, a, b);
    w.mark(Phase::Saved);
    let here = w.asm.here();
    w.asm.aim(trampoline, here)?;
    Some(here as u16)
}

type Branches = alloc::vec::Vec<usize>;

/// Of an address in `a` and a pointer in `b`: jumps that are taken if one is in no heap, if both are in one block, if not.
fn compare(
    w: &mut Writer,
    (a, b): (u8, u8),
    blocks: Blocks,
) -> Option<(Branches, Branches, Branches)> {
    let asm = &mut w.asm;
    let (mut outside, mut same, mut other) = (Branches::new(), Branches::new(), Branches::new());
    asm.constant(R11, blocks.heap.wrapping_neg());
    for (register, without) in [(a, &mut outside), (b, &mut other)] {
        asm.add_scaled(register, R11, 1);
        asm.ecx(ARENA_BITS);
        asm.shift(register);
        without.push(asm.jump_unless_zero()?);
    }
    // The owners.
    asm.constant(R11, blocks.owners);
    for register in [b, a] {
        asm.ecx(GRANULE_BITS);
        asm.shift(register);
        asm.indexed(&[0x8b], false, R11, 4, 0);
        if register == b {
            asm.save(offset_of!(Area, value), RCX);
        }
    }
    asm.load(R11, offset_of!(Area, value));
    asm.subtract_from_rcx(R11);
    other.push(asm.jump_unless_zero()?);
    asm.lea(RCX, R11, 0);
    same.push(asm.jump_unless_zero()?);
    // The slots, if the granule is the same.
    for register in [b, a] {
        asm.ecx(GRANULE_BITS);
        asm.shift(register);
        if register == b {
            asm.lea(R11, RCX, 0);
        }
    }
    asm.subtract_from_rcx(R11);
    other.push(asm.jump_unless_zero()?);
    asm.constant(R11, blocks.lines);
    for register in [b, a] {
        asm.ecx(LINE_BITS);
        asm.shift(register);
        asm.indexed(&[0x0f, 0xb7], false, R11, 2, 0);
        if register == b {
            asm.lea(b, RCX, 0);
        }
    }
    asm.subtract_from_rcx(b);
    other.push(asm.jump_unless_zero()?);
    same.push(asm.jmp());
    w.mark(Phase::Closer);
    Some((outside, same, other))
}
