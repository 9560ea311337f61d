//! Stores to pages that are watched as a whole, of a value in a register or a constant. Two registers are enough, and old and
//! new value are compared before the store.
//!
//! ```text
//! ++hits ─▶ alias ─▶ rcx = value - what is there ─▶ the store ─┬─▶ behind it
//!                                                             └─ rcx = 0 ─▶ ++silent ─▶ behind it
//! ```

use core::mem::offset_of;

use ulpf_lib::ring::Area;

use super::asm::RCX;
use super::fast_path::{Behind, From, begin, behind, distance};
use super::implicit::{Access, Does, push_slot};
use super::types::Phase;
use super::writer::{Target, Writer};
use crate::access::Insn;
use crate::access::layout::Wrap;
use crate::exec;

/// The stored value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// A register, but not rcx.
    Register(u8),
    /// The program's rcx.
    Rcx,
    /// Sign-extended.
    Constant(i32),
    /// An address that is too large for that.
    Address(u64),
}

impl Value {
    /// `None`: that is not known before.
    pub fn of(access: &Access) -> Option<Value> {
        let of_register = |r| {
            if r == RCX {
                Value::Rcx
            } else {
                Value::Register(r)
            }
        };
        let of_address = |at: u64| match i32::try_from(at) {
            Ok(at) => Value::Constant(at),
            Err(_) => Value::Address(at),
        };
        match access {
            Access::Of(insn) => Value::moved_by(insn),
            Access::Implicit(i, next) => match i.does {
                Does::Push(r) => Some(of_register(r)),
                Does::PushValue(value) => Some(Value::Constant(value)),
                // (Where the call leads to is in rcx.)
                Does::CallRegister(RCX) => Some(Value::Address(*next)),
                Does::Call(_) | Does::CallRegister(_) => Some(of_address(*next)),
                _ => None,
            },
        }
    }

    /// `mov` to memory.
    fn moved_by(insn: &Insn) -> Option<Value> {
        let l = &insn.layout;
        if l.wrap != Wrap::Legacy || l.map != 0 || l.lock || insn.mem.kind.reads() {
            return None;
        }
        match l.opcode {
            // ah, ch, dh, bh
            0x88 if l.rex == 0 && l.reg & 15 >= 4 => None,
            0x88 | 0x89 => Some(match l.reg & 15 {
                RCX => Value::Rcx,
                r => Value::Register(r),
            }),
            0xc6 | 0xc7 => {
                let code = insn.code().get(..usize::from(insn.len))?;
                Some(Value::Constant(match insn.mem.size {
                    1 => i32::from(i8::from_le_bytes(*code.last_chunk()?)),
                    2 => i32::from(i16::from_le_bytes(*code.last_chunk()?)),
                    _ => i32::from_le_bytes(*code.last_chunk()?),
                }))
            }
            _ => None,
        }
    }

    /// Whether it is in rcx when it is stored.
    fn takes_rcx(self) -> bool {
        matches!(self, Value::Rcx | Value::Address(_))
    }
}

/// As [`super::whole_page::count`], with the address register `a` and rcx.
pub fn store(
    w: &mut Writer,
    access: Access,
    (value, a): (Value, u8),
    end: Option<u64>,
    target: Target,
) -> Option<Behind> {
    let mem = access.mem();
    let size = u32::from(mem.size);
    if value.takes_rcx() && size < 4 || value == Value::Constant(i32::MAX) {
        return None; // (one more of that is less)
    }
    let mut none = From::Short(begin(w, access, a, target)?);
    if is_long(access, value) {
        none = hop(w, none)?;
    }
    distance(w, a, target);
    w.asm.address(a, mem);
    w.asm.add_rcx(a);
    w.asm.peek(RCX, a, 0, size);
    match value {
        Value::Register(r) => w.asm.difference(Some(r), 0, size),
        Value::Constant(value) => w.asm.difference(None, value, size),
        Value::Rcx => {
            w.asm.save(offset_of!(Area, old), RCX);
            w.asm.load(RCX, offset_of!(Area, rcx));
        }
        Value::Address(at) => {
            w.asm.save(offset_of!(Area, old), RCX);
            if let Access::Implicit(i, _) = access
                && i.does == Does::CallRegister(RCX)
            {
                w.asm.load(RCX, offset_of!(Area, rcx));
                w.asm.save(offset_of!(Area, target), RCX);
            }
            w.asm.constant(RCX, at);
        }
    }
    make(w, access, value, a)?;
    if value.takes_rcx() {
        w.asm.load(a, offset_of!(Area, old));
        w.asm.rcx_less(a, size);
        w.mark(Phase::StoredRcx);
    }
    let same = w.asm.jrcxz();
    let back = w.asm.here();
    w.asm.load(RCX, offset_of!(Area, rcx));
    w.mark(Phase::Stored);
    w.asm.load(a, offset_of!(Area, address));
    w.mark(Phase::Done);
    let behind = behind(w, access, end, target)?;
    none.aim(w)?;
    w.asm.load(RCX, offset_of!(Area, rcx));
    w.asm.load(a, offset_of!(Area, address));
    w.mark(Phase::Asked);
    let trampoline = w.asm.jmp_short();
    w.mark(Phase::Before);
    w.asm.aim_short(same)?;
    w.asm.load(RCX, target.idle_count);
    w.asm.count_at_rcx(offset_of!(Area, silent), a);
    w.mark(Phase::StoredSilent);
    // (With the number of the tally in rcx, which is not 0.)
    let from = w.asm.jmp();
    w.asm.aim(from, back)?;
    w.mark(Phase::Stored);
    w.asm.aim_short(trampoline)?;
    Some(behind)
}

/// Whether its code is too long for a short branch over it.
fn is_long(access: Access, value: Value) -> bool {
    let target =
        matches!(access, Access::Implicit(i, _) if matches!(i.does, Does::CallRegister(_)));
    value.takes_rcx() || target
}

/// `none` goes on from here by a longer jump, over which the way leads that is taken mostly.
fn hop(w: &mut Writer, none: From) -> Option<From> {
    let From::Short(from) = none else {
        return Some(none);
    };
    let over = w.asm.jmp_short();
    w.mark(Phase::AskedTallied);
    w.asm.aim_short(from)?;
    let none = w.asm.jmp();
    w.mark(Phase::Asked);
    w.asm.aim_short(over)?;
    Some(From::Long(none))
}

/// The store, through `[a]`.
fn make(w: &mut Writer, access: Access, value: Value, a: u8) -> Option<()> {
    match access {
        Access::Of(insn) => w.asm.put(exec::redirected(insn, a)?.bytes()),
        Access::Implicit(i, _) => {
            if let Does::CallRegister(r) = i.does
                && r != RCX
            {
                w.asm.save(offset_of!(Area, target), r);
            }
            push_slot(w, Phase::AskedTallied);
            match value {
                Value::Register(r) => w.asm.poke(a, r),
                Value::Constant(value) => w.asm.poke_constant(a, value),
                Value::Rcx | Value::Address(_) => w.asm.poke(a, RCX),
            }
        }
    }
    access.mark(w, Phase::AskedTallied);
    Some(())
}
