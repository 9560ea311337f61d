//! Code before the body of an access, if most pages are watched as a whole. A hit is counted here, in little code and
//! without a taken branch. All other accesses continue in the body with unchanged state.
//!
//! ```text
//! page of the first byte → whole? ─┬─▶ ++hits ─▶ alias ─▶ the access ─▶ (a store: as it was?) ─▶ behind it
//!                                  └─ no ─▶ the body
//! ```
//! An access that begins on such a page is watched by one watch in all bytes. They have one distance to their alias, even
//! if the access crosses into the next page ([`super::writer::Tables::whole`]).

use alloc::vec::Vec;
use core::mem::offset_of;

use ulpf_lib::AccessKind;
use ulpf_lib::ring::Area;

use super::asm::RCX;
use super::fast_path::{Behind, From, begin, behind, distance, island, watch};
use super::hits::{compare, compare_rest, make, silent};
use super::implicit::Access;
use super::types::{FS, Phase};
use super::value::{Value, store};
use super::writer::{Target, Writer, keep, restore};

/// Whether it may be such an access.
pub fn may_count(access: &Access) -> bool {
    let mem = access.mem();
    access.mask().is_none() && mem.segment != FS
}

/// Writes the count and the access. `end`: the program's continuation, if the body has nothing more to do. Returns `None`,
/// with nothing written, for an access that it does not support.
pub fn count(
    w: &mut Writer,
    access: Access,
    registers: (u8, u8),
    end: Option<u64>,
    target: Target,
) -> Option<Behind> {
    if !target.whole || !may_count(&access) {
        return None;
    }
    let mem = access.mem();
    let of_address = |r: u8| mem.base == r || mem.index == r;
    if !of_address(RCX) && !of_address(registers.0) {
        let a = registers.0;
        let done = w.attempt(|w| match Value::of(&access) {
            _ if mem.kind == AccessKind::Read => load(w, access, a, end, target),
            Some(value) => store(w, access, (value, a), end, target),
            None => None,
        });
        if done.is_some() {
            return done;
        }
    }
    match access {
        Access::Of(_) => w.attempt(|w| any(w, access, registers, end, target)),
        Access::Implicit(..) => None,
    }
}

/// A load whose address can be computed twice: two registers are enough.
fn load(w: &mut Writer, access: Access, a: u8, end: Option<u64>, target: Target) -> Option<Behind> {
    let mem = access.mem();
    let none = begin(w, access, a, target)?;
    distance(w, a, target);
    w.asm.address(a, mem);
    w.asm.add_rcx(a);
    w.asm.load(RCX, offset_of!(Area, rcx));
    access.make(w, a, Phase::AskedTallied)?;
    access.mark(w, Phase::AskedTallied);
    w.asm.load(a, offset_of!(Area, address));
    w.mark(Phase::Done);
    let behind = behind(w, access, end, target)?;
    w.asm.aim_short(none)?;
    w.asm.load(RCX, offset_of!(Area, rcx));
    w.asm.load(a, offset_of!(Area, address));
    w.mark(Phase::Asked);
    Some(behind)
}

/// Any such access, with all three registers.
fn any(
    w: &mut Writer,
    access: Access,
    (a, b): (u8, u8),
    end: Option<u64>,
    target: Target,
) -> Option<Behind> {
    let mem = access.mem();
    keep(w, a, b);
    if !w.asm.address(a, mem) {
        return None;
    }
    w.asm.ecx(12);
    w.asm.shift(a);
    let short = watch(w, mem.kind, b, target);
    let mut none = From::Short(short);
    if mem.kind != AccessKind::Read && mem.size > 8 {
        none = From::Long(island(w, [short], Some(Phase::Saved))?);
    }
    w.asm.save(offset_of!(Area, tally), RCX);
    w.asm.save(target.idle_count, RCX);
    w.asm.count_at_rcx(offset_of!(Area, hits), b);
    w.mark(Phase::Saved);
    distance(w, b, target);
    w.asm.add_rcx(a);
    if mem.kind == AccessKind::Read {
        make(w, access, (a, b), Phase::Tallied)?;
        let behind = behind(w, access, end, target)?;
        none.aim(w)?;
        restore(w, a, b);
        w.mark(Phase::Saved);
        return Some(behind);
    }
    let same = compare(w, access, (a, b))?;
    let back = w.asm.here();
    restore(w, a, b);
    w.mark(Phase::Rest);
    let behind = behind(w, access, end, target)?;
    none.aim(w)?;
    restore(w, a, b);
    w.mark(Phase::Saved);
    let trampoline = w.asm.jmp();
    w.mark(Phase::Before);
    w.asm.aim_short(same)?;
    let mut changed = Vec::new();
    compare_rest(w, access, (a, b), &mut changed)?;
    silent(w, b);
    changed.push(w.asm.jmp());
    for from in changed {
        w.asm.aim(from, back)?;
    }
    w.mark(Phase::Rest);
    From::Long(trampoline).aim(w)?;
    Some(behind)
}
