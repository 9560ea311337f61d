//! Trampoline code for an access whose bits say that a watch may be near. Its cases are hits of one watch that only counts,
//! bits of neighbours, and hits that are accounted for elsewhere.

use alloc::vec;
use alloc::vec::Vec;
use core::mem::offset_of;

use ulpf_lib::ring::Area;

use super::asm::{Asm, R11, RCX};
use super::implicit::Access;
use super::mask::Mask;
use super::types::{LOCK, LOCKS, Phase, SEVERAL};
use super::writer::{Target, Writer, restore};

/// Some bit is set in the bytes that hold the access's bits.
pub struct Near {
    pub part: u8,
    /// A short branch that leads to such a jump.
    pub short: Option<usize>,
    /// A jump from there to here; `None` if this code follows the branch directly.
    pub from: Option<usize>,
    pub back: usize,
    pub bits: u64,
    pub size: u32,
    pub a: u8,
    pub b: u8,
    pub mask: Option<Mask>,
    /// A jump from where [`whole_page`] was asked before the bits.
    pub whole: Option<usize>,
}

/// Tests whether every access to the page is a hit of one watch, for an access of `size` bytes at the alias in `a`. Changes
/// `b`. Returns a jump that is taken if so, with the number of its tally in rcx, and short ones that are taken if not.
pub fn whole_page(
    asm: &mut Asm,
    (size, a, b): (u32, u8, u8),
    target: Target,
) -> Option<(usize, Vec<usize>)> {
    let mut none = Vec::new();
    if let Some(one_page) = on_one_page(asm, (size, a, b)) {
        none.push(asm.jmp_short());
        asm.aim_short(one_page)?;
    }
    asm.ecx(12);
    asm.shift(a);
    asm.constant(b, target.tables.tallies);
    asm.indexed(&[0x0f, 0xb6], false, b, 1, 0);
    none.push(asm.jrcxz());
    Some((asm.jmp(), none))
}

/// Tests whether both ends of the access lie on one page. Returns a short branch that is taken if so; `None` if they always
/// do.
fn on_one_page(asm: &mut Asm, (size, a, b): (u32, u8, u8)) -> Option<usize> {
    if size == 1 {
        return None;
    }
    asm.lea(b, a, size as i32 - 1);
    asm.ecx(12);
    asm.shift_by(false, b, b, RCX);
    asm.shift(a);
    asm.subtract_from_rcx(b);
    Some(asm.jrcxz())
}

/// Makes the access and counts it, with the number of its tally in rcx.
pub fn tally(w: &mut Writer, x: &Near, access: Access, back: usize) -> Option<()> {
    let writes = access.mem().kind.writes();
    w.part = x.part;
    let counted = match x.mask {
        Some(mask) => {
            mask.count(w, x.b)?;
            Phase::Runs
        }
        None => {
            w.asm.save(offset_of!(Area, tally), RCX);
            w.asm.count_at_rcx(offset_of!(Area, hits), x.b);
            w.mark(Phase::Saved);
            Phase::Tallied
        }
    };
    if !writes {
        make(w, access, (x.a, x.b), counted)?;
        return jump_back(w, back);
    }
    // Has it changed anything?
    let same = compare(w, access, (x.a, x.b))?;
    let mut changed = vec![w.asm.jmp()];
    w.asm.aim_short(same)?;
    compare_rest(w, access, (x.a, x.b), &mut changed)?;
    silent(w, x.b);
    let here = w.asm.here();
    for from in changed {
        w.asm.aim(from, here)?;
    }
    restore(w, x.a, x.b);
    w.mark(Phase::Rest);
    jump_back(w, back)
}

/// The words of an access of so many bytes: their offsets, and how many bytes are its.
fn words(size: u32) -> impl Iterator<Item = (u8, u32)> {
    (0..size)
        .step_by(8)
        .map(move |at| (at as u8, (size - at).min(8)))
}

/// Saves the bytes at the alias in [`Area::old`].
fn save_old(w: &mut Writer, a: u8, size: u32) {
    for (at, len) in words(size) {
        w.asm.peek(RCX, a, at, len);
        w.asm.save(offset_of!(Area, old) + usize::from(at), RCX);
    }
}

/// Makes a counted store. Returns a short branch that is taken if it has not changed its first eight bytes; of the others
/// [`compare_rest`] tells.
pub fn compare(w: &mut Writer, access: Access, (a, b): (u8, u8)) -> Option<usize> {
    let size = u32::from(access.mem().size);
    if size <= 8 {
        w.asm.peek(b, a, 0, size);
    } else {
        save_old(w, a, size);
    }
    make_with_rcx(w, access, a)?;
    if size > 8 {
        w.asm.load(b, offset_of!(Area, old));
    }
    w.asm.peek(RCX, a, 0, size.min(8));
    w.asm.subtract_from_rcx(b);
    let same = w.asm.jrcxz();
    w.mark(Phase::Compare);
    Some(same)
}

/// Of a store that has not changed its first eight bytes. Adds jumps that are taken if it has changed others.
pub fn compare_rest(
    w: &mut Writer,
    access: Access,
    (a, b): (u8, u8),
    changed: &mut Vec<usize>,
) -> Option<()> {
    for (at, len) in words(access.mem().size.into()).skip(1) {
        w.asm.load(b, offset_of!(Area, old) + usize::from(at));
        w.asm.peek(RCX, a, at, len);
        w.asm.subtract_from_rcx(b);
        let same = w.asm.jrcxz();
        changed.push(w.asm.jmp());
        w.asm.aim_short(same)?;
    }
    Some(())
}

/// Up to here it has been found out that a store has changed nothing, which is counted now.
pub fn silent(w: &mut Writer, b: u8) {
    w.mark(Phase::Compare);
    w.asm.load(RCX, offset_of!(Area, tally));
    w.asm.count_at_rcx(offset_of!(Area, silent), b);
    w.mark(Phase::Silent);
}

/// The access, with the program's rcx if it needs that; what it makes of it is in the area then.
fn make_with_rcx(w: &mut Writer, access: Access, a: u8) -> Option<()> {
    let named = access.named() & 1 << RCX != 0 && !access.takes_rcx();
    if named {
        w.asm.load(RCX, offset_of!(Area, rcx));
    }
    access.make(w, a, Phase::Tallied)?;
    access.mark(w, Phase::Tallied);
    if named {
        w.asm.save(offset_of!(Area, rcx), RCX);
        w.mark(Phase::Fresh);
    }
    Some(())
}

/// Writes the access, counted as `counted` says, and restores the program's registers.
pub fn make(w: &mut Writer, access: Access, (a, b): (u8, u8), counted: Phase) -> Option<()> {
    w.asm.load(RCX, offset_of!(Area, rcx));
    w.asm.load(b, offset_of!(Area, other));
    access.make(w, a, counted)?;
    access.mark(w, counted);
    if access.takes_rcx() {
        w.asm.load(RCX, offset_of!(Area, rcx));
        w.mark(Phase::Rest);
    }
    w.asm.load(a, offset_of!(Area, address));
    w.mark(Phase::Done);
    Some(())
}

pub fn jump_back(w: &mut Writer, back: usize) -> Option<()> {
    let from = w.asm.jmp();
    w.asm.aim(from, back)?;
    w.mark(Phase::After);
    Some(())
}

/// Tests whether a set bit is one of the access's own, and adds a jump that is taken if so. With `over_read`: whether all of
/// the access's own are set.
pub fn closer(w: &mut Writer, x: &Near, over_read: bool, hits: &mut Vec<usize>) -> Option<()> {
    w.part = x.part;
    // Its bits may reach beyond 64 from the first one's byte on.
    if x.size == 64 {
        hits.extend(x.from);
        return Some(());
    }
    if let Some(from) = x.from {
        let here = w.asm.here();
        w.asm.aim(from, here)?;
    }
    w.asm.save(offset_of!(Area, r11), R11);
    w.mark(Phase::Saved);
    let asm = &mut w.asm;
    asm.r11(61);
    asm.rotate(x.a, 3);
    asm.shift_by(false, RCX, RCX, R11); // which bit is the first
    asm.r11(3);
    asm.shift_by(false, R11, x.a, R11);
    asm.constant(x.b, x.bits);
    asm.r11_indexed(x.b);
    asm.shift_by(false, R11, R11, RCX);
    let over_read = over_read && x.size > 1 && x.mask.is_none();
    if over_read {
        asm.not(R11);
    }
    match x.mask {
        Some(mask) => {
            mask.bytes(asm, x.b);
            asm.extract(RCX, R11, RCX);
        }
        None => {
            asm.ecx(64 - x.size);
            asm.shift_by(true, RCX, R11, RCX);
        }
    }
    asm.load(R11, offset_of!(Area, r11));
    w.mark(Phase::Closer);
    let none = w.asm.jrcxz();
    if over_read {
        // (Bits are also set before a page whose neighbour lies elsewhere.)
        if let Some(one_page) = on_one_page(&mut w.asm, (x.size, x.a, x.b)) {
            hits.push(w.asm.jmp());
            w.asm.aim_short(one_page)?;
        }
        let from = w.asm.jmp();
        w.asm.aim(from, x.back)?;
        w.asm.aim_short(none)?;
        hits.push(w.asm.jmp());
    } else {
        hits.push(w.asm.jmp());
        w.asm.aim_short(none)?;
        let from = w.asm.jmp();
        w.asm.aim(from, x.back)?;
    }
    w.mark(Phase::Saved);
    Some(())
}

/// The access is a hit, most likely: made here, it is accounted for by [`Area::entry`].
pub fn hit(
    w: &mut Writer,
    x: &Near,
    access: Access,
    target: Target,
    looks: &mut Vec<u16>,
) -> Option<()> {
    let asm = &mut w.asm;
    // (What a mask selects may be several hits.)
    if target.before_access || x.mask.is_some() {
        looks.push(asm.here() as u16);
        asm.trap();
        w.mark(Phase::Saved);
        return Some(());
    }
    // Bits are also set before a page whose neighbour lies elsewhere.
    if let Some(one_page) = on_one_page(asm, (x.size, x.a, x.b)) {
        looks.push(asm.here() as u16);
        asm.trap();
        asm.aim_short(one_page)?;
    }
    lock(w, x, target, looks)?;
    save_old(w, x.a, x.size);
    let asm = &mut w.asm;
    asm.save(offset_of!(Area, alias), x.a);
    asm.save_constant(
        offset_of!(Area, hit),
        target.hit + target.step * u64::from(x.part),
    );
    asm.load(RCX, offset_of!(Area, rcx));
    asm.load(x.b, offset_of!(Area, other));
    access.make(w, x.a, Phase::Locked)?;
    access.mark(w, Phase::Locked);
    if access.takes_rcx() {
        w.asm.load(RCX, offset_of!(Area, rcx));
        w.mark(Phase::HitSaved);
    }
    w.asm.load(x.a, offset_of!(Area, address));
    w.asm.jump_through(offset_of!(Area, entry));
    w.mark(Phase::Hit);
    Some(())
}

/// How often a trampoline tries to get a lock before it leaves the access to its handler, which may wait.
const ATTEMPTS: usize = 4;

/// Takes the lock of the page, if there is more than one thread. Exchanges change no flag.
fn lock(w: &mut Writer, x: &Near, target: Target, looks: &mut Vec<u16>) -> Option<()> {
    let asm = &mut w.asm;
    asm.constant(x.b, target.tables.locks);
    asm.peek_byte(x.b, SEVERAL);
    let alone = asm.jrcxz();
    asm.ecx(12);
    asm.shift(x.a);
    asm.ecx_from_cl();
    const { assert!(LOCKS == 256, "the lowest byte of the page's number") };
    asm.add_scaled_rcx(x.b, LOCK as u8);
    asm.ecx(1);
    w.mark(Phase::Saved);
    let asm = &mut w.asm;
    let mut got = Vec::new();
    for n in 0..ATTEMPTS {
        if n > 0 {
            asm.pause();
            asm.ecx(1);
        }
        asm.exchange_cl(x.b);
        got.push(asm.jrcxz());
    }
    looks.push(asm.here() as u16);
    asm.trap();
    for from in got {
        asm.aim_short(from)?;
    }
    w.mark(Phase::Locking);
    w.asm.aim_short(alone)
}
