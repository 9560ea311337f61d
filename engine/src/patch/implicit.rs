//! Instructions whose access goes by the stack pointer, or says where the program goes on: `push`, `pop`, `leave`,
//! `call`, `ret`, `jmp` through memory.
//!
//! ```text
//!     pop %rbx       rsp → area;  lea 8(%rsp),%rsp;  mov (alias),%rbx
//!     call f         rsp → area;  lea -8(%rsp),%rsp; mov $return,%rcx; mov %rcx,(alias) …           jmp f
//!     call *8(%rax)  mov (alias),%rcx; %rcx → area.target; $return → area.value …  push area.value; jmp *area.target
//!     ret            mov (alias),%rcx; %rcx → area.target …  lea 8(%rsp),%rsp;                       jmp *area.target
//! ```
//! One access of each is checked. It is the stack access, unless there is a memory operand: then it is the operand's,
//! and the `push` is made as it is. If that faults, nothing has been done yet. The return address is the original
//! one. All instructions of an access but the last can be undone.

use core::mem::offset_of;

use ulpf_lib::AccessKind::{self, Read, Write};
use ulpf_lib::ring::Area;

use super::asm::RCX;
use super::mask::Mask;
use super::registers::named;
use super::types::{GS, Phase};
use super::writer::Writer;
use crate::access::insn::{MemOp, NO_REG};
use crate::access::layout::Wrap;
use crate::access::{Class, Insn};
use crate::exec;

const RSP: u8 = 4;
const RBP: u8 = 5;
const SLOT: i32 = 8;

/// Operation of such an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Does {
    Push(u8),
    PushValue(i32),
    PushMem,
    Pop(u8),
    Leave,
    Call(u64),
    CallRegister(u8),
    CallMem,
    Jump,
    /// It takes so many more bytes off the stack.
    Return(u16),
}

/// Such an instruction, and the one access of it that is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Implicit {
    /// The access.
    pub mem: MemOp,
    /// Its operation.
    pub(super) does: Does,
    /// Where the displacement of a RIP-relative operand is.
    pub(super) relative: Option<u8>,
    /// Registers that are named, as [`named`] has them.
    named: u16,
}

/// Where the program goes on behind an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GoesOn {
    /// Behind it.
    Behind,
    /// At this address.
    At(u64),
    /// Where [`Area::target`] says.
    Target,
}

impl Implicit {
    /// `None` for other instructions, and for rare ones (two bytes, segment registers, rsp itself).
    pub fn of(insn: &Insn) -> Option<Implicit> {
        let l = &insn.layout;
        if l.opsize16 || l.addr32 || l.lock || l.wrap != Wrap::Legacy || l.map != 0 {
            return None;
        }
        let register = || l.opcode & 7 | (l.rex & 1) << 3;
        let tail = |len: u8| {
            let at = usize::from(l.opcode_at) + 1;
            insn.code()
                .get(at..at + usize::from(len))
                .filter(|_| at + usize::from(len) == usize::from(insn.len))
        };
        let byte = || Some(i32::from(*tail(1)?.first()? as i8));
        let word = || Some(i32::from_le_bytes(tail(4)?.try_into().ok()?));
        let does = match (insn.class, l.opcode) {
            (Class::Push, 0x50..=0x57) => Does::Push(register()),
            (Class::Push, 0x68) => Does::PushValue(word()?),
            (Class::Push, 0x6a) => Does::PushValue(byte()?),
            (Class::PushMem, 0xff) => Does::PushMem,
            (Class::Pop, 0x58..=0x5f) => Does::Pop(register()),
            (Class::Leave, 0xc9) => Does::Leave,
            (Class::Call, 0xe8) => {
                let next = insn.pc.wrapping_add(insn.len.into());
                Does::Call(next.wrapping_add_signed(word()?.into()))
            }
            (Class::Call, 0xff) => Does::CallRegister(l.rm & 15),
            (Class::CallMem, 0xff) => Does::CallMem,
            (Class::JmpMem, 0xff) => Does::Jump,
            (Class::Ret, 0xc3) => Does::Return(0),
            (Class::Ret, 0xc2) => Does::Return(u16::from_le_bytes(tail(2)?.try_into().ok()?)),
            _ => return None,
        };
        let (mem, named) = match does {
            Does::Push(RSP) | Does::Pop(RSP) | Does::CallRegister(RSP) => return None,
            Does::PushMem | Does::CallMem | Does::Jump if insn.mem.segment == GS => return None,
            Does::PushMem | Does::CallMem | Does::Jump => (
                MemOp {
                    size: SLOT as u16,
                    kind: Read,
                    ..insn.mem
                },
                named(insn),
            ),
            Does::Push(r) | Does::CallRegister(r) => (by(RSP, -SLOT, Write), 1 << r),
            Does::PushValue(_) | Does::Call(_) => (by(RSP, -SLOT, Write), 0),
            Does::Pop(r) => (by(RSP, 0, Read), 1 << r),
            Does::Leave => (by(RBP, 0, Read), 1 << RBP),
            Does::Return(_) => (by(RSP, 0, Read), 0),
        };
        Some(Implicit {
            mem,
            does,
            relative: insn.rip_relative_at(),
            named,
        })
    }

    /// Where the program goes on behind it.
    pub fn goes_on(&self) -> GoesOn {
        match self.does {
            Does::Call(to) => GoesOn::At(to),
            Does::CallRegister(_) | Does::CallMem | Does::Jump | Does::Return(_) => GoesOn::Target,
            _ => GoesOn::Behind,
        }
    }
}

fn by(base: u8, disp: i32, kind: AccessKind) -> MemOp {
    MemOp {
        base,
        index: NO_REG,
        scale: 1,
        segment: 0,
        disp: disp.into(),
        size: SLOT as u16,
        kind,
    }
}

/// An access that is looked at.
#[derive(Clone, Copy)]
pub enum Access<'a> {
    /// An instruction's own.
    Of(&'a Insn),
    /// See [`Implicit`]; and the address behind it.
    Implicit(&'a Implicit, u64),
}

impl Access<'_> {
    /// Where it is.
    pub fn mem(&self) -> &MemOp {
        match self {
            Access::Of(insn) => &insn.mem,
            Access::Implicit(i, _) => &i.mem,
        }
    }

    /// The mask that selects the elements it reads, if it has one.
    pub fn mask(&self) -> Option<Mask> {
        match self {
            Access::Of(insn) => Mask::of(insn),
            Access::Implicit(..) => None,
        }
    }

    /// Registers that it names beside its address, at least.
    pub fn named(&self) -> u16 {
        match self {
            Access::Of(insn) => named(insn),
            Access::Implicit(i, _) => i.named,
        }
    }

    /// Whether it needs rcx for the stored value. Then the program's rcx is still in the area after the store.
    pub fn takes_rcx(&self) -> bool {
        matches!(
            self,
            Access::Implicit(i, _) if matches!(i.does, Does::Call(_) | Does::CallRegister(_))
        )
    }

    /// The access, made through `[a]`. Up to its last instruction `before` holds; what it has changed till then is in
    /// the area. The caller marks that last one, by [`Access::mark`].
    pub fn make(&self, w: &mut Writer, a: u8, before: Phase) -> Option<()> {
        let (i, next) = match self {
            Access::Of(insn) => {
                w.asm.put(exec::redirected(insn, a)?.bytes());
                return Some(());
            }
            Access::Implicit(i, next) => (i, *next),
        };
        match i.does {
            Does::Push(r) => {
                move_rsp(w, RSP, -SLOT, before);
                w.asm.poke(a, r);
            }
            Does::PushValue(value) => {
                move_rsp(w, RSP, -SLOT, before);
                w.asm.poke_constant(a, value);
            }
            Does::Pop(r) => {
                move_rsp(w, RSP, SLOT, before);
                w.asm.peek(r, a, 0, 8);
            }
            Does::Leave => {
                move_rsp(w, RBP, SLOT, before);
                w.asm.peek(RBP, a, 0, 8);
            }
            Does::Call(_) | Does::CallRegister(_) => {
                if let Does::CallRegister(r) = i.does {
                    // The caller has not given rcx back yet.
                    if r == RCX {
                        w.asm.load(RCX, offset_of!(Area, rcx));
                    }
                    w.asm.save(offset_of!(Area, target), r);
                }
                w.asm.constant(RCX, next);
                move_rsp(w, RSP, -SLOT, before);
                w.asm.poke(a, RCX);
            }
            Does::PushMem => {
                read_into(w, a, offset_of!(Area, value));
                w.asm.load(RCX, offset_of!(Area, rcx));
                w.asm.push(offset_of!(Area, value));
            }
            Does::CallMem => {
                read_into(w, a, offset_of!(Area, target));
                w.asm.save_constant(offset_of!(Area, value), next);
                w.asm.load(RCX, offset_of!(Area, rcx));
                w.asm.push(offset_of!(Area, value));
            }
            Does::Jump => {
                read_into(w, a, offset_of!(Area, target));
                w.asm.load(RCX, offset_of!(Area, rcx));
            }
            Does::Return(more) => {
                read_into(w, a, offset_of!(Area, target));
                w.asm.load(RCX, offset_of!(Area, rcx));
                w.asm.lea(RSP, RSP, SLOT + i32::from(more));
            }
        }
        Some(())
    }

    /// Behind [`Access::make`]: up to its last instruction `before` holds.
    pub fn mark(&self, w: &mut Writer, before: Phase) {
        match self {
            Access::Implicit(i, _) if i.moves_first() => w.mark_moved(before),
            _ => w.mark(before),
        }
    }
}

impl Implicit {
    /// Whether the stack pointer moves before its last instruction.
    fn moves_first(&self) -> bool {
        use Does::*;
        matches!(
            self.does,
            Push(_) | PushValue(_) | Pop(_) | Leave | Call(_) | CallRegister(_)
        )
    }

    /// `end`: behind it. `value`: what an interrupted thread has in [`Area::target`].
    pub fn next(&self, end: u64, value: u64) -> u64 {
        match self.goes_on() {
            GoesOn::Behind => end,
            GoesOn::At(to) => to,
            GoesOn::Target => value,
        }
    }
}

/// `rsp = from + by`, when it is in the area.
fn move_rsp(w: &mut Writer, from: u8, by: i32, before: Phase) {
    w.asm.save(offset_of!(Area, rsp), RSP);
    w.asm.lea(RSP, from, by);
    w.mark(before);
}

/// `rsp -= 8`, as [`Access::make`] does it.
pub fn push_slot(w: &mut Writer, before: Phase) {
    move_rsp(w, RSP, -SLOT, before);
}

/// Copies the 8 bytes at `[a]` to the area, through rcx.
pub fn read_into(w: &mut Writer, a: u8, at: usize) {
    w.asm.peek(RCX, a, 0, 8);
    w.asm.save(at, RCX);
}
