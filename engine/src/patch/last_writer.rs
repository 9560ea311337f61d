//! A store that leaves a record of itself instead of a count. The record has four bytes for each byte of the store, at a
//! constant distance from four times the byte's alias ([`ulpf_lib::last_writer`]).
//!
//! ```text
//! page of the first byte → whole? ─┬─▶ alias ─▶ the records ─▶ the store ─▶ behind it
//!                                  └─ no ─▶ the body
//! ```
//! The records come first: a thread that is interrupted before its store is rolled back, and writes both again.

use alloc::vec::Vec;
use core::mem::offset_of;

use ulpf_lib::last_writer::{CALLERS, RECORD, pair};
use ulpf_lib::ring::Area;

use super::asm::RCX;
use super::fast_path::{Behind, From, behind, distance, island, watch};
use super::hits::{Near, jump_back, make};
use super::implicit::Access;
use super::plan::Part;
use super::registers::of_address;
use super::types::{IDLE_START, Phase, WHOLE_DISTANCES, WHOLE_WRITES};
use super::whole_page::may_count;
use super::writer::{Target, Writer, Writers, keep, restore};
use crate::access::Insn;
use crate::exec;

/// A store, and how it is recorded.
#[derive(Clone, Copy)]
pub struct Recorded<'a> {
    pub access: Access<'a>,
    /// See [`super::Part::site`].
    pub site: u32,
    /// See [`super::Part::by_caller`].
    pub by_caller: bool,
}

impl<'a> Recorded<'a> {
    pub fn of(access: Access<'a>, part: &Part) -> Recorded<'a> {
        Recorded {
            access,
            site: part.site,
            by_caller: part.by_caller,
        }
    }
}

/// Writes the records of a store to the alias in `a`; changes `b` and rcx. The caller's record is looked up by the lower bits
/// of the return address. A caller that is not in the table is left to the stub's handler, which puts it there.
fn records(
    w: &mut Writer,
    (a, b): (u8, u8),
    of: Recorded,
    to: Writers,
    looks: &mut Vec<u16>,
) -> Option<()> {
    let size = u32::from(of.access.mem().size);
    match of.by_caller {
        false => w.asm.constant(b, pair(of.site, 0)),
        true => {
            w.asm.save(offset_of!(Area, alias), a);
            w.asm.return_address();
            w.asm.constant(b, CALLERS as u64 - 1);
            w.asm.extract(b, RCX, b);
            w.asm.constant(a, to.callers);
            // (Entries have 16 bytes.)
            w.asm.add_scaled(a, b, 8);
            w.asm.add_scaled(a, b, 8);
            w.asm.peek(b, a, 0, 8);
            w.asm.subtract_from_rcx(b);
            let known = w.asm.jrcxz();
            looks.push(w.asm.here() as u16);
            w.asm.trap();
            w.mark(Phase::Saved);
            w.asm.aim_short(known)?;
            w.asm.peek(b, a, 8, 8);
            w.asm.load(a, offset_of!(Area, alias));
        }
    }
    w.asm.load(RCX, offset_of!(Area, stamp));
    w.asm.add_rcx(b);
    w.asm.constant(RCX, to.records);
    w.asm.add_scaled(RCX, a, RECORD as u8);
    fill(w, RCX, b, size);
    w.mark(Phase::Saved);
    Some(())
}

/// Writes the records of `size` bytes to `[to]`; `from` has two of them.
fn fill(w: &mut Writer, to: u8, from: u8, size: u32) {
    for at in 0..size / 2 {
        w.asm.poke_at(to, at as i32 * 8, from, true);
    }
    if size % 2 == 1 {
        let last = (size - 1) as i32 * RECORD as i32;
        w.asm.poke_at(to, last, from, false);
    }
}

/// As [`store`], where the status flags are free ([`super::flags`]).
pub fn lean(
    w: &mut Writer,
    of: Recorded,
    registers: (u8, u8),
    end: Option<u64>,
    target: Target,
) -> Option<Behind> {
    let Access::Of(insn) = of.access else {
        return None;
    };
    if !target.whole || !may_count(&of.access) || of.by_caller || insn.mem.segment != 0 {
        return None;
    }
    w.attempt(|w| write_lean(w, (of, insn), registers, end, target))
}

fn write_lean(
    w: &mut Writer,
    (of, insn): (Recorded, &Insn),
    (a, b): (u8, u8),
    end: Option<u64>,
    target: Target,
) -> Option<Behind> {
    const EQUAL: u8 = 4;
    const SHIFT: u8 = RECORD.trailing_zeros() as u8;
    let (writers, mem) = (target.writers?, &insn.mem);
    if of_address(mem) & (1 << a | 1 << b) != 0 {
        return None;
    }
    // (rcx stays as it is. It is in the area because that is what the phase says.)
    keep(w, a, b);
    if !w.asm.address(a, mem) {
        return None;
    }
    w.asm.shift_right(a, 12);
    let whole = w.asm.add_constant(a);
    w.asm.peek(b, a, 0, 1);
    w.asm.test(b);
    let elsewhere = w.asm.jump_if(EQUAL);
    w.asm.set(target.idle_count, IDLE_START);
    let distances = w.asm.load_constant(a);
    w.asm.load_of_table(b, a);
    w.asm.address(a, mem);
    w.asm.add_scaled(a, b, 1);
    w.asm.load(b, offset_of!(Area, stamp));
    let record = w.asm.add_constant(b);
    // To the address of the records; then back to the alias.
    w.asm.shift_left(a, SHIFT);
    let there = w.asm.add_constant(a);
    fill(w, a, b, mem.size.into());
    let back = w.asm.subtract_constant(a);
    w.asm.shift_right(a, SHIFT);
    w.asm.load(b, offset_of!(Area, other));
    w.asm.put(exec::redirected(insn, a)?.bytes());
    w.mark(Phase::Saved);
    w.asm.load(a, offset_of!(Area, address));
    w.mark(Phase::Done);
    let behind = behind(w, of.access, end, target)?;
    let tables = target.tables.whole;
    for (uses, value) in [
        (&[whole][..], tables + WHOLE_WRITES),
        (&[distances], tables.wrapping_add_signed(WHOLE_DISTANCES)),
        (&[record], pair(of.site, 0)),
        (&[there, back], writers.records),
    ] {
        let here = w.asm.here();
        for from in uses {
            w.asm.aim(*from, here)?;
        }
        w.asm.put(&value.to_le_bytes());
    }
    let here = w.asm.here();
    w.asm.aim(elsewhere, here)?;
    w.asm.load(b, offset_of!(Area, other));
    w.asm.load(a, offset_of!(Area, address));
    w.mark(Phase::Saved);
    Some(behind)
}

/// Writes a store to a page that is watched as a whole. `end`: the program's continuation, if the body has nothing more to
/// do. Returns `None`, with nothing written, for a store that it does not support.
pub fn store(
    w: &mut Writer,
    of: Recorded,
    registers: (u8, u8),
    end: Option<u64>,
    target: Target,
    looks: &mut Vec<u16>,
) -> Option<Behind> {
    if !target.whole || !may_count(&of.access) || matches!(of.access, Access::Implicit(..)) {
        return None;
    }
    let before = looks.len();
    let done = w.attempt(|w| write(w, of, registers, end, target, looks));
    if done.is_none() {
        looks.truncate(before);
    }
    done
}

fn write(
    w: &mut Writer,
    of: Recorded,
    (a, b): (u8, u8),
    end: Option<u64>,
    target: Target,
    looks: &mut Vec<u16>,
) -> Option<Behind> {
    let (access, mem) = (of.access, of.access.mem());
    keep(w, a, b);
    if !w.asm.address(a, mem) {
        return None;
    }
    w.asm.ecx(12);
    w.asm.shift(a);
    let short = watch(w, mem.kind, b, target);
    let none = From::Long(island(w, [short], Some(Phase::Saved))?);
    w.asm.save(target.idle_count, RCX);
    distance(w, b, target);
    w.asm.add_rcx(a);
    records(w, (a, b), of, target.writers?, looks)?;
    make(w, access, (a, b), Phase::Saved)?;
    let behind = behind(w, access, end, target)?;
    none.aim(w)?;
    restore(w, a, b);
    w.mark(Phase::Saved);
    Some(behind)
}

/// Makes a store whose page was found to be watched as a whole later, in the body. `back`: where its part is done. `looks`:
/// see [`super::Trampoline::looks`].
pub fn tally(
    w: &mut Writer,
    x: &Near,
    of: Recorded,
    back: usize,
    target: Target,
    looks: &mut Vec<u16>,
) -> Option<()> {
    w.part = x.part;
    // (Its mask says which bytes it writes.)
    if x.mask.is_some() {
        looks.push(w.asm.here() as u16);
        w.asm.trap();
        w.mark(Phase::Saved);
        return Some(());
    }
    records(w, (x.a, x.b), of, target.writers?, looks)?;
    make(w, of.access, (x.a, x.b), Phase::Saved)?;
    jump_back(w, back)
}
