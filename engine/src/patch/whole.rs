//! What stands before the body of a load where most pages are watched as a whole: the load is counted on the way, without
//! a branch that is taken. What is anything else finds the body behind as if it had not been here.
//!
//! ```text
//! page of the last byte → distance ─┬▶ the first byte's is the same ─┬▶ a tally ─┬▶ ++hits, the load ─▶ behind it
//!                                   └──────── no, to the body ◀──────┴───────────┘
//! ```
//! Each of the three branches is taken if rcx is zero, and the first two lead to the next one.

use core::mem::offset_of;

use ulpf_lib::AccessKind;
use ulpf_lib::ring::Area;

use super::alias::alias;
use super::asm::RCX;
use super::hits::make;
use super::implicit::Access;
use super::original::jump_to;
use super::parts::{FS, Phase};
use super::writer::{Target, Writer, restore};

/// Where the load leads to that was counted: behind its instruction in the program, or (a jump to be aimed) in the body.
pub enum Behind {
    Program,
    Body(usize),
}

/// Is it such a load?
pub fn may_count(access: &Access) -> bool {
    let mem = access.mem();
    let plain = matches!(access, Access::Of(_)) && access.mask().is_none();
    plain && mem.kind == AccessKind::Read && mem.segment != FS
}

/// `None`: there is none for such an access, and nothing was written. `end`: where the program goes on, if the body does
/// nothing more.
pub fn count(
    w: &mut Writer,
    access: Access,
    (a, b): (u8, u8),
    end: Option<u64>,
    target: Target,
) -> Option<Behind> {
    if !target.whole || !may_count(&access) {
        return None;
    }
    let (at, marks) = (w.asm.here(), w.marks.len());
    let done = written(w, access, (a, b), end, target);
    if done.is_none() {
        w.asm.bytes.truncate(at);
        w.marks.truncate(marks);
    }
    done
}

fn written(
    w: &mut Writer,
    access: Access,
    (a, b): (u8, u8),
    end: Option<u64>,
    target: Target,
) -> Option<Behind> {
    let size = i32::from(access.mem().size);
    let not_ours = alias(w, access, (a, b), target)?;
    let asm = &mut w.asm;
    let no = match size {
        1 => not_ours,
        _ => {
            // One, or zero if it goes over to the next page.
            asm.lea(b, a, size - 1);
            asm.ecx(12);
            asm.shift_by(false, b, b, RCX);
            asm.shift(a);
            asm.not(b);
            asm.lea_sum(RCX, b, 2);
            asm.aim_short(not_ours)?;
            asm.jrcxz()
        }
    };
    asm.ecx(12);
    asm.shift(a);
    asm.constant(b, target.tables.tallies);
    asm.indexed(&[0x0f, 0xb6], false, b, 1, 0);
    asm.aim_short(no)?;
    let none = asm.jrcxz();
    asm.save(offset_of!(Area, tally), RCX);
    asm.count_at_rcx(offset_of!(Area, hits), b);
    w.mark(Phase::Saved);
    make(w, access, (a, b), Phase::Tallied)?;
    let behind = match end {
        Some(end) => {
            jump_to(&mut w.asm, target, end)?;
            Behind::Program
        }
        None => Behind::Body(w.asm.jmp()),
    };
    w.mark(Phase::After);
    w.asm.aim_short(none)?;
    restore(w, a, b);
    w.mark(Phase::Saved);
    Some(behind)
}
