//! A short body before the one that supports all cases: for an access to a checked heap where the status flags are free
//! ([`super::flags`]). It changes them, and needs one register. A load's own needs no reload.
//!
//! ```text
//! page number → of the heap? ─▶ bits → any set? ─▶ the access, by its alias ─▶ behind it
//!                  no └────────────── yes └──▶ the body, with the state unchanged but for what is free
//! ```
//! Its constants of 64 bits follow it, because as immediates they would need a second register.

use core::mem::offset_of;

use ulpf_lib::AccessKind;
use ulpf_lib::ring::Area;

use super::fast_path::{Behind, behind};
use super::implicit::Access;
use super::registers::{of_address, own_register};
use super::types::{IDLE_START, Phase};
use super::writer::{Target, Writer};
use crate::access::Insn;
use crate::exec;

/// Largest access, in bytes, whose bits one comparison tests.
const LARGEST: u16 = 16;

/// Writes the body. `end`: the program's continuation, if the part is the last. Returns `None`, with nothing written, where
/// it is not supported.
pub fn access(
    w: &mut Writer,
    access: Access,
    a: u8,
    end: Option<u64>,
    target: Target,
) -> Option<Behind> {
    let Access::Of(insn) = access else {
        return None;
    };
    let distance = target.heap?;
    let mem = &insn.mem;
    let (writes, reads) = (mem.kind.writes(), mem.kind.reads());
    let one_table = target.tables.writes == target.tables.reads;
    let supported = !target.counts
        && !target.before_access
        && access.mask().is_none()
        && mem.segment == 0
        && mem.size <= LARGEST
        && (one_table || !(writes && reads));
    if !supported {
        return None;
    }
    let bits = match mem.kind {
        AccessKind::Read => target.tables.reads,
        _ => target.tables.writes,
    };
    w.attempt(|w| write(w, insn, a, end, (target, distance, bits)))
}

fn write(
    w: &mut Writer,
    insn: &Insn,
    a: u8,
    end: Option<u64>,
    (target, distance, bits): (Target, u64, u64),
) -> Option<Behind> {
    let (access, mem) = (Access::Of(insn), &insn.mem);
    let own = own_register(insn);
    let (a, before) = match own {
        Some(own) => (own, Phase::Own),
        None if of_address(mem) & 1 << a == 0 => (a, Phase::Address),
        None => return None,
    };
    // (A load that faults leaves its register as it was.)
    w.asm.save(offset_of!(Area, address), a);
    w.mark(Phase::Before);
    if !w.asm.address(a, mem) {
        return None;
    }
    w.asm.shift_right(a, 12);
    let whole = w.asm.add_constant(a);
    w.asm.compare_with_zero(a, 1);
    let elsewhere = w.asm.jump_if(EQUAL);
    w.asm.address(a, mem);
    w.asm.shift_right(a, 3);
    let near = w.asm.add_constant(a);
    w.asm.compare_with_zero(
        a,
        match mem.size {
            1 => 1,
            2..=8 => 2,
            _ => 4,
        },
    );
    let watched = w.asm.jump_if(NOT_EQUAL);
    w.asm.set(target.idle_count, IDLE_START);
    w.asm.address(a, mem);
    let alias = w.asm.add_constant(a);
    w.asm.put(exec::redirected(insn, a)?.bytes());
    w.mark(before);
    if own.is_none() {
        w.asm.load(a, offset_of!(Area, address));
        w.mark(Phase::Done);
    }
    let behind = behind(w, access, end, target)?;
    for (from, value) in [
        (whole, target.tables.whole),
        // (The heap and its alias begin at multiples of eight.)
        (near, bits.wrapping_add_signed(distance as i64 >> 3)),
        (alias, distance),
    ] {
        let here = w.asm.here();
        w.asm.aim(from, here)?;
        w.asm.put(&value.to_le_bytes());
    }
    for from in [elsewhere, watched] {
        let here = w.asm.here();
        w.asm.aim(from, here)?;
    }
    w.asm.load(a, offset_of!(Area, address));
    w.mark(before);
    Some(behind)
}

const EQUAL: u8 = 4;
const NOT_EQUAL: u8 = 5;
