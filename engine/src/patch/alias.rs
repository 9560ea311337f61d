//! The way from an access to its page's alias, with which every body begins.

use ulpf_lib::AccessKind;

use super::asm::RCX;
use super::implicit::Access;
use super::types::{CLASS_READS, CLASS_WRITES, FS, IDLE_START};
use super::writer::{Target, Writer, keep};

/// The three registers are in the area from here on, and `a` holds the alias of the access. A short branch that is taken if
/// its page has none, when rcx is zero. With an offset behind it, the branch says only that the page is not of
/// [`Target::heap`]: where it leads, [`look_up`] is still to be asked, and goes on at that offset.
pub fn alias(
    w: &mut Writer,
    access: Access,
    (a, b): (u8, u8),
    target: Target,
) -> Option<(usize, Option<usize>)> {
    keep(w, a, b);
    let asm = &mut w.asm;
    let mem = access.mem();
    if !asm.address(a, mem) {
        return None;
    }
    if mem.segment == FS {
        asm.fs_base();
        asm.add_rcx(a);
    }
    let Some(distance) = target.heap.filter(|_| access.mask().is_none()) else {
        return Some((look_up(w, access, (a, b), target), None));
    };
    // The address of what is loaded waits for no table: whether the guess was right is found out beside it.
    asm.ecx(12);
    asm.shift(a);
    asm.constant(b, target.tables.whole);
    asm.indexed(&[0x0f, 0xb6], false, b, 1, 0);
    let elsewhere = asm.jrcxz();
    asm.save(target.idle_count, RCX);
    asm.constant(RCX, distance);
    asm.add_rcx(a);
    Some((elsewhere, Some(asm.here())))
}

/// Converts the address of the access in `a` to its alias, by the class of its page. Returns a short branch that is taken if
/// it has none.
pub fn look_up(w: &mut Writer, access: Access, (a, b): (u8, u8), target: Target) -> usize {
    let (asm, mem) = (&mut w.asm, access.mem());
    // The last byte's page: an access that begins on the page before finds the bits there set, unless
    // it may go through this page's alias.
    let size = u32::from(mem.size);
    let last = if size > 1 {
        asm.lea(b, a, size as i32 - 1);
        b
    } else {
        a
    };
    asm.ecx(12);
    asm.shift(last);
    asm.constant(b, target.tables.classes);
    asm.indexed(&[0x0f, 0xb6], false, b, 1, 0);
    let distances = if mem.kind == AccessKind::Read {
        CLASS_READS
    } else {
        CLASS_WRITES
    };
    asm.indexed(&[0x8b], true, b, 8, distances);
    let not_ours = asm.jrcxz();
    asm.add_rcx(a);
    asm.set(target.idle_count, IDLE_START);
    not_ours
}
