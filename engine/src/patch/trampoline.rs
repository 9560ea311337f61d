//! The code that a patch leads to.

use alloc::vec::Vec;
use core::mem::offset_of;

use ulpf_lib::ring::Area;

use super::alias::{alias, look_up};
use super::asm::{Asm, RCX};
use super::fast_path::{Behind, island};
use super::hits::{Near, closer, hit, make, tally, whole_page};
use super::implicit::Access;
use super::last_writer::{self, Recorded};
use super::lean;
use super::original::{self, jump_to, plain};
use super::out_of_block;
use super::plan::{Group, Part, What, is_masked_move};
use super::registers::{named, of_address, registers};
use super::types::{Mark, Phase};
use super::whole_page;
use super::writer::{Target, Writer, keep, restore};
use crate::access::Insn;

/// Code for one address, and what it means.
pub struct Trampoline {
    /// Its bytes.
    pub code: Vec<u8>,
    /// State of each stretch of them, ascending.
    pub marks: Vec<Mark>,
    /// Offset of each part's first instruction, where a thread continues that lands on its old place.
    pub parts: Vec<u16>,
    /// The address register of each part.
    pub address: Vec<u8>,
    /// The other register that each part uses, beside rcx.
    pub other: Vec<u8>,
    /// Offsets of `int3`s that leave the access to the stub's handler. Code behind one is reached only by executing it.
    pub looks: Vec<u16>,
    /// Where each part is done, if it is looked at, and its registers are back.
    pub after: Vec<u16>,
    /// Where a repeated part is executed as it is.
    pub native: Vec<u16>,
    /// Where each part goes on that has asked where its pointer leads.
    pub asked: Vec<u16>,
}

/// Second path of a checked part, for an access that is not to guarded memory.
struct Aside {
    part: u8,
    /// Short branches that lead to such a jump.
    shorts: Vec<usize>,
    /// A jump from there to here.
    from: Option<usize>,
    back: usize,
    a: u8,
    b: u8,
    /// A jump to what follows, from where the access was counted before.
    counted: Option<usize>,
    /// The page's class is still to be looked up; where the part goes on if it has one.
    found: Option<usize>,
}

/// Marks of a part, as a rule.
const MARKS: usize = 40;

impl Trampoline {
    /// Bytes that are enough for the code of nearly all that are made from such a group.
    pub fn length(group: &Group) -> usize {
        const LOOKED_AT: usize = 1100;
        const COPIED: usize = 24;
        let of = |part: &Part| match part.is_looked_at() {
            true => LOOKED_AT,
            false => COPIED,
        };
        group.parts.iter().map(of).sum()
    }

    /// It takes no more memory than it needs.
    pub fn shrink(&mut self) {
        self.code.shrink_to_fit();
        self.marks.shrink_to_fit();
        self.parts.shrink_to_fit();
        self.address.shrink_to_fit();
        self.other.shrink_to_fit();
        self.looks.shrink_to_fit();
        self.after.shrink_to_fit();
        self.native.shrink_to_fit();
        self.asked.shrink_to_fit();
    }

    /// `None`: something is out of reach.
    pub fn new(group: &Group, target: Target) -> Option<Trampoline> {
        let n = group.parts.len();
        let mut w = Writer {
            asm: Asm {
                bytes: Vec::with_capacity(Trampoline::length(group)),
            },
            marks: Vec::with_capacity(MARKS * n),
            part: 0,
        };
        let mut trampoline = Trampoline {
            code: Vec::new(),
            marks: Vec::new(),
            parts: Vec::with_capacity(n),
            address: Vec::with_capacity(n),
            other: Vec::with_capacity(n),
            looks: Vec::new(),
            after: Vec::with_capacity(n),
            native: Vec::with_capacity(n),
            asked: Vec::with_capacity(n),
        };
        let mut asides = Vec::new();
        let mut near = Vec::new();
        let mut branches = Vec::new();
        for (n, part) in group.parts.iter().enumerate() {
            w.part = n as u8;
            trampoline.parts.push(w.asm.here() as u16);
            let (mut a, mut b, mut after, mut native, mut asked) = (0, 0, 0, 0, 0);
            match &part.what {
                What::Checked(_) | What::Implicit(_) => {
                    let access = part.access()?;
                    // (Then the address can be computed again.)
                    let apart = access.named() | of_address(access.mem());
                    (a, b) = registers(apart).or_else(|| registers(access.named()))?;
                    let is_last = n + 1 == group.parts.len();
                    let end = is_last.then(|| group.end());
                    if let What::Checked(insn) = &part.what {
                        asked = out_of_block::ask(&mut w, insn, (a, b), target)?;
                    }
                    let records = target.writers.is_some() && access.mem().kind.writes();
                    let counted = match group.has_free_flags(n) {
                        true if records => {
                            let of = Recorded::of(access, part);
                            last_writer::lean(&mut w, of, (a, b), end, target)
                        }
                        true => lean::access(&mut w, access, a, end, target),
                        false => None,
                    };
                    let counted = counted.or_else(|| match records {
                        true => last_writer::store(
                            &mut w,
                            Recorded::of(access, part),
                            (a, b),
                            end,
                            target,
                            &mut trampoline.looks,
                        ),
                        false => whole_page::count(&mut w, access, (a, b), end, target),
                    });
                    // Else the page is asked whether it is whole before the bits are.
                    let asks = target.whole && counted.is_none();
                    let mut aside = checked(&mut w, access, (a, b), (target, asks), &mut near)?;
                    if let Some(Behind::Trampoline(from)) = counted {
                        aside.counted = Some(from);
                    }
                    after = aside.back as u16;
                    if let What::Implicit(i) = &part.what {
                        original::follow(&mut w, i, target)?;
                    }
                    // Rare paths go behind a jump that is needed anyway, if one is near.
                    let rest = group.parts.get(n + 1..).unwrap_or(&[]);
                    if !ends_soon(rest) {
                        islands(&mut w, &mut aside, &mut near, Some(Phase::After))?;
                    }
                    asides.push(aside);
                }
                What::Repeated(insn) => {
                    (a, b) = registers(named(insn))?;
                    native = repeated(&mut w, group, (part, insn), (a, b), target)?;
                    after = w.asm.here() as u16;
                }
                _ => {
                    plain(&mut w, group, part, target)?;
                    let to = match part.what {
                        What::Jump(to) | What::If(_, to) => group.part(to),
                        _ => None,
                    };
                    branches.extend(to.map(|to| (w.asm.here(), to)));
                }
            }
            trampoline.address.push(a);
            trampoline.other.push(b);
            trampoline.after.push(after);
            trampoline.native.push(native);
            trampoline.asked.push(asked);
        }
        jump_to(&mut w.asm, target, group.end())?;
        w.mark(Phase::After);
        if let Some(aside) = asides.last_mut() {
            islands(&mut w, aside, &mut near, None)?;
        }
        // Loops stay here.
        for (from, to) in branches {
            w.asm.aim(from, usize::from(*trampoline.parts.get(to)?))?;
        }
        for x in &asides {
            w.part = x.part;
            if let Some(from) = x.counted {
                w.asm.aim(from, x.back)?;
            }
            if let Some(from) = x.from {
                let here = w.asm.here();
                w.asm.aim(from, here)?;
            }
            let part = group.parts.get(x.part as usize)?;
            if let Some(found) = x.found {
                let not_ours = look_up(&mut w, part.access()?, (x.a, x.b), target);
                let from = w.asm.jmp();
                w.asm.aim(from, found)?;
                w.asm.aim_short(not_ours)?;
            }
            w.asm.count_in_ecx(target.idle_count);
            w.asm.ecx_from_ch();
            let on = w.asm.jrcxz();
            w.asm.save_constant(
                offset_of!(Area, hit),
                target.leaving + target.step * u64::from(x.part),
            );
            restore(&mut w, x.a, x.b);
            w.mark(Phase::Saved);
            w.asm.jump_through(offset_of!(Area, entry));
            w.mark(Phase::Before);
            w.asm.aim_short(on)?;
            if let What::Implicit(i) = &part.what {
                if !original::implicit(&mut w, group, part, i, (x.a, x.b), target)? {
                    let from = w.asm.jmp();
                    w.asm.aim(from, x.back)?;
                    w.mark(Phase::After);
                }
                continue;
            }
            restore(&mut w, x.a, x.b);
            w.mark(Phase::Saved);
            let relative = match &part.what {
                What::Checked(i) => i.rip_relative_at().map_or(What::Copy, What::Relative),
                _ => What::Copy,
            };
            plain(
                &mut w,
                group,
                &Part {
                    what: relative,
                    ..*part
                },
                target,
            )?;
            let from = w.asm.jmp();
            w.asm.aim(from, x.back)?;
            w.mark(Phase::After);
        }
        for (n, part) in group.parts.iter().enumerate() {
            let Some(access) = part.access() else {
                continue;
            };
            let back = usize::from(*trampoline.after.get(n)?);
            let mut its: Vec<Near> = Vec::new();
            while let Some(at) = near.iter().position(|x| x.part as usize == n) {
                its.push(near.remove(at));
            }
            w.part = n as u8;
            let first = its.first_mut()?;
            let count = match first.whole {
                // (Pages of a checked heap have no tally.)
                None if !target.counts => None,
                Some(count) => Some(count),
                None => {
                    let here = w.asm.here();
                    w.asm.aim(first.from.take()?, here)?;
                    let access = (first.size, first.a, first.b);
                    let (count, none) = whole_page(&mut w.asm, access, target)?;
                    for from in none {
                        w.asm.aim_short(from)?;
                    }
                    Some(count)
                }
            };
            let over_read = target.over_read && !access.mem().kind.writes();
            let mut hits = Vec::new();
            for x in &its {
                closer(&mut w, x, over_read, &mut hits)?;
            }
            let here = w.asm.here();
            for from in hits {
                w.asm.aim(from, here)?;
            }
            hit(&mut w, its.first()?, access, target, &mut trampoline.looks)?;
            if let Some(count) = count {
                let here = w.asm.here();
                w.asm.aim(count, here)?;
                let first = its.first()?;
                match target.writers.is_some() && access.mem().kind.writes() {
                    true => {
                        let looks = &mut trampoline.looks;
                        let of = Recorded::of(access, part);
                        last_writer::tally(&mut w, first, of, back, target, looks)?;
                    }
                    false => tally(&mut w, first, access, back)?,
                }
            }
        }
        trampoline.code = w.asm.bytes;
        trampoline.marks = w.marks;
        Some(trampoline)
    }

    /// Whether one of our `int3`s is at `offset`.
    pub fn traps(&self, offset: u16) -> bool {
        self.looks.contains(&offset)
    }

    /// State of the program at this offset; `None` behind the end.
    pub fn mark(&self, offset: u16) -> Option<&Mark> {
        self.marks.iter().find(|m| offset < m.end)
    }
}

/// Writes a string instruction, or a masked store, that [`Area::entry`] performs; for a masked store, [`Area::old`] is the
/// value and [`Area::value`] the mask. Behind that is the original instruction, for an access without a guard. Returns its
/// offset.
fn repeated(
    w: &mut Writer,
    group: &Group,
    (part, insn): (&Part, &Insn),
    (a, b): (u8, u8),
    target: Target,
) -> Option<u16> {
    keep(w, a, b);
    if is_masked_move(insn) {
        let l = &insn.layout;
        w.asm.save_vector(offset_of!(Area, old), l.reg, l.l);
        w.asm.rcx_from_mask(l.aaa, insn.element() <= 2);
        w.asm.save(offset_of!(Area, value), RCX);
    }
    w.asm.save_constant(
        offset_of!(Area, hit),
        target.hit + target.step * u64::from(w.part),
    );
    restore(w, a, b);
    w.mark(Phase::Saved);
    w.asm.jump_through(offset_of!(Area, entry));
    w.mark(Phase::Before);
    let native = w.asm.here() as u16;
    let copy = Part {
        what: insn.rip_relative_at().map_or(What::Copy, What::Relative),
        ..*part
    };
    plain(w, group, &copy, target)?;
    Some(native)
}

fn checked(
    w: &mut Writer,
    access: Access,
    (a, b): (u8, u8),
    (target, asks): (Target, bool),
    near: &mut Vec<Near>,
) -> Option<Aside> {
    let part = w.part;
    let (not_ours, found) = alias(w, access, (a, b), target)?;
    let (mem, asm) = (access.mem(), &mut w.asm);
    let size = u32::from(mem.size);
    let mask = access.mask();
    let nothing = mask.map(|mask| {
        mask.elements(asm, b);
        asm.jrcxz()
    });
    let mut to_aside: Vec<usize> = [Some(not_ours), nothing].into_iter().flatten().collect();
    let mut aside = None;
    let mut first_asked = None;
    if asks {
        let (count, none) = whole_page(asm, (size, a, b), target)?;
        first_asked = Some(count);
        aside = go_aside(asm, &mut to_aside)?;
        for from in none {
            asm.aim_short(from)?;
        }
    }
    let (writes, reads) = (mem.kind.writes(), mem.kind.reads());
    let one_table = target.tables.writes == target.tables.reads;
    // The way that is taken mostly has no branch that is taken: each such costs more than a few instructions.
    // (Vectors and masks have several such questions.)
    let falls = !target.counts && size <= 16 && mask.is_none() && (one_table || !(writes && reads));
    for (wanted, bits) in [
        (writes, target.tables.writes),
        (reads && !(writes && one_table), target.tables.reads),
    ] {
        if !wanted {
            continue;
        }
        // (offset, opcode, 64 bits)
        let looks: &[(i32, &[u8], bool)] = match size {
            1 => &[(0, &[0x0f, 0xb6], false)],
            2..=8 => &[(0, &[0x0f, 0xb7], false)],
            10 | 16 => &[(0, &[0x8b], false)],
            32 => &[(0, &[0x8b], true)],
            _ => &[(0, &[0x8b], true), (8, &[0x0f, 0xb6], false)],
        };
        for (disp, op, wide) in looks {
            asm.ecx(3);
            asm.shift(a);
            asm.constant(b, bits);
            asm.indexed(op, *wide, b, 1, *disp);
            let (mut short, mut from, mut clear) = (None, None, None);
            if falls {
                asm.zero_unless_zero(size + 7);
                let near = asm.jrcxz();
                match access {
                    Access::Of(_) => short = Some(near),
                    // (They have too much code for short branches.)
                    Access::Implicit(..) => {
                        asm.begin_nop();
                        aside = go_aside(asm, &mut to_aside)?;
                        asm.begin_nop();
                        asm.aim_short(near)?;
                        from = Some(asm.jmp());
                    }
                }
            } else {
                clear = Some(asm.jrcxz());
                from = Some(asm.jmp());
            }
            near.push(Near {
                short,
                from,
                part,
                bits,
                size,
                a,
                b,
                mask,
                whole: first_asked.take(),
                back: 0,
            });
            if !falls {
                aside = aside.or(go_aside(asm, &mut to_aside)?);
            }
            if let Some(clear) = clear {
                asm.aim_short(clear)?;
            }
            let back = asm.here();
            near.last_mut()?.back = back;
        }
    }
    let mut phase = Phase::Saved;
    if target.counts {
        asm.load(RCX, offset_of!(Area, passed));
        asm.lea(RCX, RCX, 1);
        asm.save(offset_of!(Area, passed), RCX);
        w.mark(phase);
        phase = Phase::Counted;
    }
    make(w, access, (a, b), phase)?;
    Some(Aside {
        part: w.part,
        shorts: to_aside,
        from: aside,
        back: w.asm.here(),
        a,
        b,
        counted: None,
        found,
    })
}

/// Where these short branches lead: to a jump, if there are any.
fn go_aside(asm: &mut Asm, branches: &mut Vec<usize>) -> Option<Option<usize>> {
    if branches.is_empty() {
        return Some(None);
    }
    for from in branches.drain(..) {
        asm.aim_short(from)?;
    }
    Some(Some(asm.jmp()))
}

/// Whether the code that follows is short enough for short branches over it.
fn ends_soon(rest: &[Part]) -> bool {
    const LEAST_LEFT: usize = 20;
    let len = |p: &Part| match p.what {
        What::Copy | What::Relative(_) => Some(p.len.into()),
        What::Jump(_) | What::If(..) => Some(6),
        _ => None,
    };
    let len: Option<usize> = rest.iter().map(len).sum();
    len.is_some_and(|len| len <= LEAST_LEFT)
}

/// Writes the jumps to which an access's short branches lead, for paths that continue far away. `passed`: the phase on the
/// straight path, which has to step over them.
fn islands(
    w: &mut Writer,
    aside: &mut Aside,
    near: &mut [Near],
    passed: Option<Phase>,
) -> Option<()> {
    let before = core::mem::replace(&mut w.part, aside.part);
    if !aside.shorts.is_empty() {
        aside.from = Some(island(w, aside.shorts.drain(..), passed)?);
    }
    for x in near.iter_mut().filter(|x| x.part == aside.part) {
        if let Some(short) = x.short.take() {
            x.from = Some(island(w, [short], passed)?);
        }
    }
    w.part = before;
    Some(())
}
