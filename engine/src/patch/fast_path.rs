//! The short way of an access to a page that is watched as a whole (`whole_page.rs`): the steps that all such accesses take.

use core::mem::offset_of;

use ulpf_lib::AccessKind;
use ulpf_lib::ring::Area;

use super::asm::RCX;
use super::implicit::{Access, GoesOn};
use super::original::jump_to;
use super::types::{Phase, WHOLE_DISTANCES, WHOLE_WRITES};
use super::writer::{Target, Writer};

/// Continuation of a counted access: the next instruction in the program, or (a jump to be aimed) in the body.
pub enum Behind {
    Program,
    Trampoline(usize),
}

/// A branch to be aimed later.
pub enum From {
    Short(usize),
    Long(usize),
}

impl From {
    /// It leads to what is written next.
    pub fn aim(self, w: &mut Writer) -> Option<()> {
        match self {
            From::Short(from) => w.asm.aim_short(from),
            From::Long(from) => {
                let here = w.asm.here();
                w.asm.aim(from, here)
            }
        }
    }
}

/// Writes a jump to which short branches lead, with the registers in the area. `passed`: the phase on the straight path,
/// which has to step over it.
pub fn island(
    w: &mut Writer,
    shorts: impl IntoIterator<Item = usize>,
    passed: Option<Phase>,
) -> Option<usize> {
    if let Some(phase) = passed {
        w.asm.begin_nop();
        w.mark(phase);
    }
    for short in shorts {
        w.asm.aim_short(short)?;
    }
    let from = w.asm.jmp();
    w.mark(Phase::Saved);
    Some(from)
}

/// Writes the beginning of an access whose address can be computed twice, so that two registers are enough: it looks the page
/// up and counts the hit. Returns a short branch that is taken if no watch covers the whole page, or `None` if the address
/// cannot be computed.
pub fn begin(w: &mut Writer, access: Access, a: u8, target: Target) -> Option<usize> {
    let mem = access.mem();
    w.asm.save(offset_of!(Area, address), a);
    w.asm.save(offset_of!(Area, rcx), RCX);
    w.mark(Phase::Before);
    if !w.asm.address(RCX, mem) {
        return None;
    }
    w.asm.small(a, 12);
    w.asm.shift_by(false, RCX, RCX, a);
    let none = watch(w, mem.kind, a, target);
    w.asm.save(target.idle_count, RCX);
    w.asm.count_at_rcx(offset_of!(Area, hits), a);
    w.mark(Phase::Asked);
    Some(none)
}

/// Looks the watch up by the page's number in rcx. Returns a short branch that is taken if no watch covers the whole page.
pub fn watch(w: &mut Writer, kind: AccessKind, scratch: u8, target: Target) -> usize {
    let table = match kind {
        AccessKind::Read => target.tables.whole,
        _ => target.tables.whole + WHOLE_WRITES,
    };
    w.asm.constant(scratch, table);
    w.asm.indexed(&[0x0f, 0xb6], false, scratch, 1, 0);
    w.asm.jrcxz()
}

/// Its distance to the alias, to rcx.
pub fn distance(w: &mut Writer, scratch: u8, target: Target) {
    let distances = target.tables.whole.wrapping_add_signed(WHOLE_DISTANCES);
    w.asm.constant(scratch, distances);
    w.asm.indexed(&[0x8b], true, scratch, 8, 0);
}

pub fn behind(w: &mut Writer, access: Access, end: Option<u64>, target: Target) -> Option<Behind> {
    let goes_on = match access {
        Access::Of(_) => GoesOn::Behind,
        Access::Implicit(i, _) => i.goes_on(),
    };
    let end = match goes_on {
        GoesOn::Behind => end,
        GoesOn::At(to) => Some(to),
        GoesOn::Target => {
            w.asm.jump_through(offset_of!(Area, target));
            w.mark(Phase::After);
            return Some(Behind::Program);
        }
    };
    let behind = match end {
        Some(end) => {
            jump_to(&mut w.asm, target, end)?;
            Behind::Program
        }
        None => Behind::Trampoline(w.asm.jmp()),
    };
    w.mark(Phase::After);
    Some(behind)
}
