//! Plans patches: the instructions that a jump displaces, and the addresses it may lead to.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use iced_x86::{Code, DecoderOptions, FlowControl, OpKind};

use super::implicit::{Access, GoesOn, Implicit};
use super::mask::Mask;
use super::registers;
use super::types::{FS, GS, JUMP, TRAPS, TRAPS_OR_RET};
use crate::access::layout::Pp;
use crate::access::{Class, Insn};

/// Why a site keeps its faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// An access that trampolines cannot make: implicit operands, masks, segments.
    Instruction,
    /// The code behind (or before) it cannot be moved: an indirect call, a system call, unknown bytes.
    Successor,
}

/// One displaced instruction.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its address.
    pub at: u64,
    /// Its bytes, 1 to 15.
    pub len: u8,
    /// Its treatment in the trampoline.
    pub what: What,
    /// Its number in the records of last writers ([`super::Target::writers`]).
    pub site: u32,
    /// Its function belongs to a runtime library, and the return address is on top of the stack: the caller is recorded
    /// instead.
    pub by_caller: bool,
}

impl Part {
    /// Where the next one begins.
    pub fn end(&self) -> u64 {
        self.at + u64::from(self.len)
    }

    /// Whether its access is checked.
    pub fn is_looked_at(&self) -> bool {
        matches!(
            self.what,
            What::Checked(_) | What::Implicit(_) | What::Repeated(_)
        )
    }

    /// The access that is looked at by the trampoline itself.
    pub fn access(&self) -> Option<Access<'_>> {
        match &self.what {
            What::Checked(insn) => Some(Access::Of(insn)),
            What::Implicit(i) => Some(Access::Implicit(i, self.end())),
            _ => None,
        }
    }

    /// The register that its load replaces as a whole.
    pub fn own_register(&self) -> Option<u8> {
        match &self.what {
            What::Checked(insn) => registers::own_register(insn),
            _ => None,
        }
    }

    /// Where the program goes on behind it, if it is known beforehand.
    pub fn goes_on(&self) -> Option<u64> {
        match &self.what {
            What::Implicit(i) if i.goes_on() == GoesOn::Target => None,
            _ => Some(self.next(0)),
        }
    }

    /// Where the program goes on, given [`ulpf_lib::ring::Area::target`].
    pub fn next(&self, target: u64) -> u64 {
        match &self.what {
            What::Implicit(i) => i.next(self.end(), target),
            _ => self.end(),
        }
    }

    /// See [`Group::spares_operands`].
    fn has_no_operand_to_read(&self, code: &[u8]) -> bool {
        const WORD: usize = 4;
        let mut decoder = iced_x86::Decoder::with_ip(64, code, self.at, DecoderOptions::NONE);
        let insn = decoder.decode();
        if is_poll(&insn) {
            return false;
        }
        match &self.what {
            // Where a conditional jump leads, and where data lies, they know.
            What::If(..) => return true,
            What::Relative(_) => return goes_on(self.at, code),
            What::Implicit(i) if matches!(i.goes_on(), GoesOn::At(_)) => return false,
            What::Checked(insn) | What::Repeated(insn) => return insn.rip_relative_at().is_none(),
            _ => {}
        }
        let constants = decoder.get_constant_offsets(&insn);
        let displaced = constants.displacement_size() >= WORD;
        let operand = constants.immediate_size() >= WORD && !is_arithmetic(&insn);
        !operand && (!displaced || goes_on(self.at, code))
    }

    /// Where a jump goes.
    fn leads_to(&self) -> Option<u64> {
        match self.what {
            What::Jump(to) | What::If(_, to) => Some(to),
            _ => None,
        }
    }
}

/// Whether the constant of the instruction is a number. (That of a move or a comparison may be an object or a class.)
fn is_arithmetic(insn: &iced_x86::Instruction) -> bool {
    use iced_x86::Mnemonic::{Add, And, Imul, Or, Sub, Test, Xor};
    matches!(insn.mnemonic(), Add | And | Imul | Or | Sub | Test | Xor)
}

/// Whether the instruction reads memory only to see whether that faults. HotSpot goes on behind such a poll at a safepoint,
/// and reads its first bytes to know how long it is.
fn is_poll(insn: &iced_x86::Instruction) -> bool {
    insn.mnemonic() == iced_x86::Mnemonic::Test
        && insn.op0_kind() == OpKind::Memory
        && insn.op1_kind() == OpKind::Register
}

/// Treatment of a displaced instruction.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// Its access is looked at.
    Checked(Insn),
    /// The same, of an access that no operand names, or that says where the program goes on.
    Implicit(Implicit),
    /// A `stos` or `movs`, repeated or not, or a store with an opmask. The code that accounts for hits performs it, or
    /// decides that it is executed as it is.
    Repeated(Insn),
    /// Copied as it is.
    Copy,
    /// Copied, with a new RIP-relative displacement at this offset.
    Relative(u8),
    /// A jump to this address.
    Jump(u64),
    /// A conditional jump: opcode 0F 80+n.
    If(u8, u64),
    /// A call of this address.
    Call(u64),
}

/// The displaced instructions, at least as many bytes as a jump has. If they begin a small loop, its other instructions
/// follow. Those stay in place, but a thread in the trampoline executes copies.
#[derive(Clone, Debug)]
pub struct Group {
    /// The instructions, by address.
    pub parts: Vec<Part>,
    /// Their bytes.
    pub bytes: Vec<u8>,
    /// Number of parts that are displaced.
    displaced: usize,
    /// See [`Group::punned`].
    pun: Option<Pun>,
    /// See [`Group::without_ret`].
    traps: bool,
    /// See [`Group::find_free_flags`]; a bit for each part.
    free_flags: u64,
}

/// A jump that keeps all bytes behind the first instruction, because one of them is a branch target. They are part of the
/// jump's distance (instruction punning).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pun {
    /// `e9` and the distance.
    Plain,
    /// The same behind a prefix that means nothing there (REX.W): so other bytes are part of the distance.
    Prefixed,
}

impl Pun {
    /// Bytes of the jump.
    pub fn jump_len(self) -> usize {
        JUMP + self.prefix()
    }

    fn prefix(self) -> usize {
        usize::from(self == Pun::Prefixed)
    }
}

impl Group {
    /// It takes no more memory than it needs.
    pub fn shrink(&mut self) {
        self.parts.shrink_to_fit();
        self.bytes.shrink_to_fit();
    }

    /// `insn` and what follows it; `code` are the bytes from there on. Of what follows, that is checked,
    /// too, for which `also` gives the decoded instruction.
    pub fn new(
        insn: &Insn,
        code: &[u8],
        also: &mut dyn FnMut(u64, &[u8]) -> Option<Insn>,
    ) -> Result<Group, Refusal> {
        Group::from(insn.pc, insn.pc, insn, code, also)
    }

    /// The same from `start` on, where an instruction begins, and up to the one at `last`, if there is one;
    /// `code` are the bytes from `start` on.
    pub fn from(
        start: u64,
        last: u64,
        insn: &Insn,
        code: &[u8],
        also: &mut dyn FnMut(u64, &[u8]) -> Option<Insn>,
    ) -> Result<Group, Refusal> {
        let looked = look(insn).ok_or(Refusal::Instruction)?;
        let mut parts = Vec::new();
        let mut at = start;
        while at < start + JUMP as u64 || at <= insn.pc.max(last) {
            let part = if at == insn.pc {
                Part {
                    at,
                    len: insn.len,
                    what: looked,
                    site: 0,
                    by_caller: false,
                }
            } else {
                let rest = code.get((at - start) as usize..);
                let rest = rest.ok_or(Refusal::Successor)?;
                let part = match is_padding(&parts, code, rest) {
                    true => Part {
                        at,
                        len: 1,
                        what: What::Copy,
                        site: 0,
                        by_caller: false,
                    },
                    false => hot_or_displaced(at, rest, also).ok_or(Refusal::Successor)?,
                };
                if at < insn.pc && at + u64::from(part.len) > insn.pc {
                    return Err(Refusal::Successor);
                }
                part
            };
            at += u64::from(part.len);
            parts.push(part);
        }
        let displaced = parts.len();
        let rest = code.get((at - start) as usize..).unwrap_or(&[]);
        let rest = loop_behind(&parts, at, insn.pc, rest, also);
        at = rest.last().map_or(at, Part::end);
        parts.extend(rest);
        let bytes = code.get(..(at - start) as usize);
        let bytes = bytes.ok_or(Refusal::Successor)?.to_vec();
        Ok(Group {
            parts,
            bytes,
            displaced,
            pun: None,
            traps: false,
            free_flags: 0,
        })
    }

    /// Plans a jump at `start` that displaces the instructions up to the branch at `branch` (`code` begins at `start`),
    /// without a checked access.
    pub fn of_branch(start: u64, branch: u64, code: &[u8]) -> Result<Group, Refusal> {
        let mut parts = Vec::new();
        let mut at = start;
        while at < start + JUMP as u64 || at <= branch {
            let rest = code.get((at - start) as usize..);
            let part = rest.and_then(|rest| displaced(at, rest));
            let part = part.filter(|p| at > branch || p.end() <= branch || at == branch);
            let part = part.ok_or(Refusal::Successor)?;
            at = part.end();
            parts.push(part);
        }
        let bytes = code.get(..(at - start) as usize);
        Ok(Group {
            bytes: bytes.ok_or(Refusal::Successor)?.to_vec(),
            displaced: parts.len(),
            parts,
            pun: None,
            traps: false,
            free_flags: 0,
        })
    }

    /// The same with such a jump. `None`: there is no room for its opcode, or not all of its bytes are the group's.
    pub fn punned(self, pun: Pun) -> Option<Group> {
        let own = usize::from(self.parts.first()?.len);
        // Of the longer one the last byte is not written.
        let written = pun == Pun::Plain || own <= JUMP;
        let fits = own > pun.prefix() && self.bytes.len() >= pun.jump_len() && written;
        fits.then_some(Group {
            pun: Some(pun),
            ..self
        })
    }

    /// The same with a jump that has a trap where a `ret` was, if it needs one.
    pub fn without_ret(self) -> Group {
        Group {
            traps: true,
            ..self
        }
    }

    /// How its jump leaves the bytes behind as they are, if it does.
    pub fn pun(&self) -> Option<Pun> {
        self.pun
    }

    fn prefix(&self) -> usize {
        self.pun.map_or(0, Pun::prefix)
    }

    /// The displaced instructions alone.
    pub fn displaced(mut self) -> Group {
        let len = self.displaced_end() - self.start();
        self.parts.truncate(self.displaced);
        self.bytes.truncate(len as usize);
        self
    }

    /// Behind what is displaced: the rest of its loop stays where it is.
    pub fn displaced_end(&self) -> u64 {
        let last = self.displaced.checked_sub(1);
        last.and_then(|n| self.parts.get(n)).map_or(0, Part::end)
    }

    /// Whether more than one instruction is displaced.
    pub fn is_relocated(&self) -> bool {
        self.displaced > 1
    }

    /// Whether a loop stays in the trampoline.
    pub fn loops(&self) -> bool {
        let mut parts = self.parts.iter();
        parts.any(|p| {
            let to = p.leads_to().filter(|to| *to <= p.at);
            to.is_some_and(|to| self.part(to).is_some())
        })
    }

    /// The part that begins at `at`.
    pub fn part(&self, at: u64) -> Option<usize> {
        self.parts.iter().position(|p| p.at == at)
    }

    /// Possible starts of groups for `insn` that displace nothing behind it, the nearest first. They are instructions that
    /// lead to it, found in its function (`code`, which begins at `start`).
    pub fn starts(insn: &Insn, start: u64, code: &[u8]) -> Vec<u64> {
        const MOST: usize = 4;
        let mut decoder = iced_x86::Decoder::with_ip(64, code, start, DecoderOptions::NONE);
        let mut before = VecDeque::new();
        while decoder.can_decode() && decoder.ip() < insn.pc {
            let at = decoder.ip();
            let i = decoder.decode();
            if i.is_invalid() {
                return Vec::new(); // data among the code
            }
            match i.flow_control() {
                FlowControl::Next | FlowControl::ConditionalBranch => before.push_back(at),
                _ => before.clear(),
            }
            if before.len() > JUMP + MOST {
                before.pop_front();
            }
        }
        if decoder.ip() != insn.pc {
            return Vec::new();
        }
        let enough = |at: &u64| insn.pc + u64::from(insn.len) - at >= JUMP as u64;
        before.into_iter().rev().filter(enough).take(MOST).collect()
    }

    /// The part that a jump to `pc` enters. Behind a [`skipped`] prefix it is the locked one.
    pub fn entered(&self, pc: u64) -> Option<usize> {
        self.parts.iter().position(|p| {
            let lock = (p.at - self.start()) as usize;
            let before = lock.checked_sub(2).and_then(|n| self.bytes.get(n..=lock));
            p.at == pc || p.at + 1 == pc && before.is_some_and(skipped)
        })
    }

    /// Whether the access of the instruction at `pc` is checked.
    pub fn checks(&self, pc: u64) -> bool {
        self.parts.iter().any(|p| p.at == pc && p.is_looked_at())
    }

    /// Asks where the status flags are free ([`super::flags`]): at the instruction that begins at this address.
    pub fn find_free_flags(&mut self, are_free: impl Fn(u64) -> bool) {
        let checked = |p: &Part| matches!(p.what, What::Checked(_));
        let parts = self.parts.iter().enumerate().take(64);
        self.free_flags = parts
            .filter(|(_, p)| checked(p) && are_free(p.at))
            .fold(0, |bits, (n, _)| bits | 1 << n);
    }

    /// Whether the status flags are known to be free at this part.
    pub(super) fn has_free_flags(&self, part: usize) -> bool {
        part < 64 && self.free_flags & 1 << part != 0
    }

    /// Whether it checks an access through fs. Then its trampoline needs `rdfsbase`.
    pub fn needs_fs_base(&self) -> bool {
        let fs = |a: Access| a.mem().segment == FS;
        self.parts.iter().any(|p| p.access().is_some_and(fs))
    }

    /// The first multiple of `step` from `at` on where a trampoline may lie.
    pub fn next(&self, at: u64, step: u64) -> Option<u64> {
        let prefix = self.prefix();
        let after = self.start() + (JUMP + prefix) as u64;
        let mut to = at.checked_next_multiple_of(step)?;
        loop {
            let distance = i32::try_from(to.wrapping_sub(after) as i64).ok()?;
            let bytes = distance.to_le_bytes();
            let wrong = |n: &usize| {
                self.only(*n + prefix)
                    .is_some_and(|only| !only.contains(&bytes[*n - 1]))
            };
            let Some(n) = (1..=4).rev().find(wrong) else {
                return Some(to);
            };
            if n == 1 && step > 1 {
                return None; // whose multiples have it or have not
            }
            // The higher bytes stay if there is a larger value for this one.
            let unit = 1i64 << (8 * (n - 1));
            let base = i64::from(distance) & !(256 * unit - 1);
            let only = self.only(n + prefix).unwrap_or(&[]);
            let larger = only.iter().find(|t| **t > bytes[n - 1]);
            let distance = base + larger.map_or(256, |t| i64::from(*t)) * unit;
            to = after
                .wrapping_add_signed(distance)
                .checked_next_multiple_of(step)?;
        }
    }

    /// Whether its jump spares the operands that code generators read back. These are targets of calls and unconditional
    /// jumps, polls, and constants of four bytes and more. Displacements do not count, except the access's own. Nor may the
    /// jump cover bytes behind an unconditional jump or a return, which can be anything.
    pub fn spares_operands(&self) -> bool {
        let start = self.start();
        let jump = match self.pun {
            Some(_) => 1,
            None => JUMP as u64,
        };
        let mut goes_on = true;
        self.parts.iter().take(self.displaced).all(|p| {
            let offset = p.at - start;
            let code = self.bytes.get(offset as usize..).unwrap_or(&[]);
            let own = code.get(..p.len.into()).unwrap_or(&[]);
            let fits = offset >= jump || goes_on && p.has_no_operand_to_read(own);
            goes_on &= may_go_on(p.at, own);
            fits
        })
    }

    /// Where the jump lies.
    pub fn start(&self) -> u64 {
        self.parts.first().map_or(0, |p| p.at)
    }
    /// Behind the last displaced instruction.
    pub fn end(&self) -> u64 {
        self.start() + self.bytes.len() as u64
    }

    /// Permitted values of the byte at offset `n` of the jump, ascending; `None` if any is. It traps where an instruction
    /// begins that may be a branch target. A `ret` stays: short functions end with one behind their last store, and jump
    /// there when there is nothing to be stored.
    fn only(&self, n: usize) -> Option<&[u8]> {
        const RET: u8 = 0xc3;
        if self.pun.is_some() {
            let own = usize::from(self.parts.first()?.len);
            return self.bytes.get(n..=n).filter(|_| n >= own);
        }
        let part = self.parts.get(self.entered(self.start() + n as u64)?)?;
        if self.bytes.get(n) != Some(&RET) || part.len != 1 {
            return Some(&TRAPS);
        }
        // One that is looked at has met a guard: to fault there is no better than to trap.
        Some(match part.is_looked_at() || self.traps {
            true => &TRAPS_OR_RET,
            false => &[RET],
        })
    }

    /// The jump to `to`, if its bytes are right. (Of a longer one the last is there already.)
    pub fn jump(&self, to: u64) -> Option<[u8; JUMP]> {
        const REX_W: u8 = 0x48;
        let prefix = self.prefix();
        let after = self.start() + (JUMP + prefix) as u64;
        let [a, b, c, d] = super::asm::relative(after, to)?;
        let jump = [REX_W, 0xe9, a, b, c, d];
        let jump = jump.get(1 - prefix..)?;
        let fits = |(n, byte): (usize, &u8)| {
            n <= prefix || self.only(n).is_none_or(|only| only.contains(byte))
        };
        let fits = jump.iter().enumerate().all(fits);
        jump.get(..JUMP)?.try_into().ok().filter(|_| fits)
    }
}

/// Whether these bytes end with a `lock` prefix that the jump before it skips. C libraries skip the prefix in programs with
/// one thread: `cmpl $0, %fs:24; je 1f; lock; 1: cmpxchg ...`.
pub fn skipped(bytes: &[u8]) -> bool {
    bytes.ends_with(&[0x74, 0x01, 0xf0])
}

/// Whether a trampoline can make this access.
pub fn can_check(insn: &Insn) -> bool {
    let l = &insn.layout;
    (insn.class == Class::Plain || Mask::of(insn).is_some())
        && matches!(insn.mem.size, 1 | 2 | 4 | 8 | 10 | 16 | 32 | 64)
        // Through gs trampolines find their own area.
        && insn.mem.segment != GS
        && !l.addr32
        && !insn.vvvv_is_rsp
        && crate::exec::can_thunk(insn)
}

/// Whether a trampoline can have this string instruction, or masked store, performed.
fn can_repeat(insn: &Insn) -> bool {
    (matches!(insn.class, Class::Stos | Class::Movs) || is_masked_move(insn))
        && !insn.layout.addr32
        && insn.layout.segment == 0
}

/// Whether it stores those elements of a vector register that an opmask selects, unchanged. So C libraries end fills and
/// copies: `vmovdqu8 %zmm16,(%rdi){%k1}`.
pub fn is_masked_move(insn: &Insn) -> bool {
    let l = &insn.layout;
    let moves = matches!(
        (l.opcode, l.pp),
        (0x11 | 0x29, Pp::None | Pp::P66) | (0x7f, Pp::P66 | Pp::PF2 | Pp::PF3)
    );
    insn.class == Class::MaskedEvex && l.map == 1 && moves && !l.zeroing && !l.bcast
}

/// How the access of an instruction is looked at, if it can be.
fn look(insn: &Insn) -> Option<What> {
    if can_check(insn) {
        Some(What::Checked(*insn))
    } else {
        let repeated = can_repeat(insn).then_some(What::Repeated(*insn));
        repeated.or_else(|| Implicit::of(insn).map(What::Implicit))
    }
}

/// Whether the bytes behind `parts` (`rest`, of `code` from their start on) are padding up to the next function. Each is an
/// `int3` of its own: control does not reach it, and a jump there traps anyway.
fn is_padding(parts: &[Part], code: &[u8], rest: &[u8]) -> bool {
    const INT3: u8 = 0xcc;
    let Some((first, last)) = parts.first().zip(parts.last()) else {
        return false;
    };
    let last_code = code.get((last.at - first.at) as usize..);
    rest.first() == Some(&INT3) && last_code.is_some_and(|code| !may_go_on(last.at, code))
}

/// The instruction at `at` (`code`, from there on), looked at if `also` knows it. A call through a register or through
/// memory can only move if it is.
fn hot_or_displaced(
    at: u64,
    code: &[u8],
    also: &mut dyn FnMut(u64, &[u8]) -> Option<Insn>,
) -> Option<Part> {
    let Some(mut part) = displaced(at, code) else {
        let insn = also(at, code)?;
        let what = look(&insn)?;
        return Some(Part {
            at,
            len: insn.len,
            what,
            site: 0,
            by_caller: false,
        });
    };
    also_hot(&mut part, code, also);
    Some(part)
}

/// If `also` knows the part's instruction (`code`, from there on), its access is looked at, too.
fn also_hot(part: &mut Part, code: &[u8], also: &mut dyn FnMut(u64, &[u8]) -> Option<Insn>) {
    let insn = also(part.at, code).filter(|i| i.len == part.len);
    if let Some(what) = insn.and_then(|i| look(&i)) {
        part.what = what;
    }
}

/// Instructions behind `parts` (`code` begins at `at`) up to the jump that closes a loop around the instruction at `pc`;
/// empty if none is near.
fn loop_behind(
    parts: &[Part],
    mut at: u64,
    pc: u64,
    code: &[u8],
    also: &mut dyn FnMut(u64, &[u8]) -> Option<Insn>,
) -> Vec<Part> {
    const MOST: usize = 12;
    let closes = |p: &Part| {
        let to = p.leads_to().filter(|to| *to <= pc);
        to.is_some_and(|to| parts.iter().any(|p| p.at == to))
    };
    // A call returns to the original code.
    let leaves = |p: &Part| matches!(p.what, What::Call(_)) || p.goes_on() != Some(p.end());
    if parts.iter().any(|p| closes(p) || leaves(p)) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut rest = code;
    while found.len() < MOST
        && let Some(mut part) = displaced(at, rest)
    {
        also_hot(&mut part, rest, also);
        found.push(part);
        if closes(&part) {
            return found;
        }
        if !goes_on(at, rest) {
            break;
        }
        at = part.end();
        rest = rest.get(part.len.into()..).unwrap_or(&[]);
    }
    Vec::new()
}

/// As [`goes_on`]; what is called comes back, as a rule.
pub(super) fn may_go_on(at: u64, code: &[u8]) -> bool {
    use FlowControl::{Call, IndirectCall};
    let i = iced_x86::Decoder::with_ip(64, code, at, DecoderOptions::NONE).decode();
    goes_on(at, code) || matches!(i.flow_control(), Call | IndirectCall)
}

/// Whether the code behind the instruction at `at` may be executed after it.
fn goes_on(at: u64, code: &[u8]) -> bool {
    let i = iced_x86::Decoder::with_ip(64, code, at, DecoderOptions::NONE).decode();
    let flow = i.flow_control();
    matches!(flow, FlowControl::Next | FlowControl::ConditionalBranch)
}

/// The instruction at `at` as a part that is not looked at.
fn displaced(at: u64, code: &[u8]) -> Option<Part> {
    let mut decoder = iced_x86::Decoder::with_ip(
        64,
        code.get(..code.len().min(15))?,
        at,
        DecoderOptions::NONE,
    );
    let i = decoder.decode();
    if i.is_invalid() {
        return None;
    }
    let target = || matches!(i.op0_kind(), OpKind::NearBranch64).then(|| i.near_branch64());
    let what = match i.flow_control() {
        FlowControl::Next | FlowControl::Return | FlowControl::IndirectBranch
            if !matches!(i.code(), Code::Int3 | Code::Int1) =>
        {
            if i.is_ip_rel_memory_operand() {
                What::Relative(decoder.get_constant_offsets(&i).displacement_offset() as u8)
            } else {
                What::Copy
            }
        }
        FlowControl::UnconditionalBranch if i.is_jmp_short_or_near() => What::Jump(target()?),
        FlowControl::ConditionalBranch if i.is_jcc_short_or_near() => {
            What::If(i.condition_code() as u8 - 1, target()?)
        }
        FlowControl::Call if i.is_call_near() => What::Call(target()?),
        _ => return None,
    };
    Some(Part {
        at,
        len: i.len() as u8,
        what,
        site: 0,
        by_caller: false,
    })
}
