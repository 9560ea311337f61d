//! Instructions whose operands are implied: the stack and strings.
//! Source: Intel SDM vol. 2, the "Operation" sections.
#![allow(unsafe_code)]

use super::native::{self, ExecFrame};
use super::types::{AliasMap, Outcome, STATUS, Slow, open, translate};
use crate::access::{Class, Insn};
use crate::cpu::{Cpu, Gprs};
use ulpf_lib::AccessKind::{self, Read, Write};
use ulpf_lib::eflags::*;

/// Flags that `popf` changes at privilege level 3: IF and IOPL stay, RF is cleared.
const POPF: u64 = STATUS | TF | DF | NT | AC | ID;
/// Flags that `pushf` stores: all but VM and RF.
const PUSHF: u64 = !(RF | VM);

/// Why an operation ended early.
enum Stop {
    /// Better done by the CPU itself.
    Slow(Slow),
    Split,
    /// The frame holds the fault; alias range and distance back to the target address.
    Fault((u64, u64, u64)),
}

/// The memory side of one instruction.
struct Memory<'a> {
    frame: ExecFrame,
    map: &'a dyn AliasMap,
}

/// An opened operand.
#[derive(Clone, Copy)]
struct Operand {
    at: u64,
    target: u64,
    len: u64,
}

impl Memory<'_> {
    fn open(&self, target: u64, len: u64, kind: AccessKind) -> Result<Operand, Stop> {
        let at = open(self.map, target, len, kind).ok_or(Stop::Split)?;
        Ok(Operand { at, target, len })
    }
    fn load(&mut self, from: Operand, size: u64) -> Result<u64, Stop> {
        native::load(&mut self.frame, from.at, size).ok_or(Stop::fault(from))
    }
    fn store(&mut self, to: Operand, size: u64, value: u64) -> Result<(), Stop> {
        native::store(&mut self.frame, to.at, size, value).ok_or(Stop::fault(to))
    }
}

impl Operand {
    fn offset(self, by: u64) -> Operand {
        Operand {
            at: self.at.wrapping_add(by),
            target: self.target.wrapping_add(by),
            len: 8,
        }
    }
}

impl Stop {
    fn fault(o: Operand) -> Stop {
        Stop::Fault((o.at, o.len, o.target.wrapping_sub(o.at)))
    }
}

pub fn execute(insn: &Insn, cpu: &mut Cpu, map: &dyn AliasMap) -> Outcome {
    let mut memory = Memory {
        frame: ExecFrame::new(),
        map,
    };
    // Work on a copy: nothing changes unless all of it succeeds.
    let mut regs = *cpu.gprs;
    regs.rip = insn.pc.wrapping_add(insn.len.into());
    let done = if insn.is_string() {
        string(insn, cpu, &mut regs, &mut memory)
    } else {
        other(insn, cpu, &mut regs, &mut memory).map(|()| Outcome::Done)
    };
    match done {
        Ok(outcome) => {
            if outcome == Outcome::Repeat {
                regs.rip = insn.pc;
            }
            *cpu.gprs = regs;
            outcome
        }
        Err(Stop::Slow(why)) => Outcome::NeedSlow(why),
        Err(Stop::Split) => Outcome::NeedSlow(Slow::Split),
        Err(Stop::Fault(moved)) => Outcome::Fault(translate(memory.frame.fault, insn.pc, moved)),
    }
}

fn other(insn: &Insn, cpu: &Cpu, regs: &mut Gprs, m: &mut Memory) -> Result<(), Stop> {
    let slot = insn.stack_size();
    let rsp = regs.rsp;
    let below = rsp.wrapping_sub(slot);
    let l = &insn.layout;
    match insn.class {
        Class::Push | Class::Pushf => {
            let value = match insn.class {
                Class::Pushf => regs.rflags & PUSHF,
                _ => pushed(insn, cpu),
            };
            let to = m.open(below, slot, Write)?;
            m.store(to, slot, value)?;
            regs.rsp = below;
        }
        Class::PushMem => {
            let from = m.open(insn.effective(cpu), slot, Read)?;
            let to = m.open(below, slot, Write)?;
            let value = m.load(from, slot)?;
            m.store(to, slot, value)?;
            regs.rsp = below;
        }
        Class::Pop => {
            let from = m.open(rsp, slot, Read)?;
            let value = m.load(from, slot)?;
            regs.rsp = rsp.wrapping_add(slot);
            // 58+r, or 8F /0 with a register.
            let reg = if l.opcode == 0x8f {
                l.rm
            } else {
                l.opcode & 7 | (l.rex & 1) << 3
            };
            set(regs, reg, slot, value);
        }
        Class::PopMem => {
            let from = m.open(rsp, slot, Read)?;
            let mut list = crate::access::AccessList::new();
            insn.accesses(cpu, &mut list);
            let target = list.get(1).map_or(0, |a| a.addr.0);
            let to = m.open(target, slot, Write)?;
            let value = m.load(from, slot)?;
            m.store(to, slot, value)?;
            regs.rsp = rsp.wrapping_add(slot);
        }
        Class::Popf => {
            let from = m.open(rsp, slot, Read)?;
            let value = m.load(from, slot)?;
            let changes = if slot == 2 { POPF & 0xffff } else { POPF };
            if (regs.rflags ^ value) & changes & (NT | ID) != 0 {
                // sigreturn does not restore these (linux/arch/x86/kernel/signal_64.c, FIX_EFLAGS).
                return Err(Stop::Slow(Slow::Unsupported));
            }
            regs.rflags = regs.rflags & !changes | value & changes;
            regs.rsp = rsp.wrapping_add(slot);
        }
        Class::Call => {
            let target = if l.opcode == 0xe8 {
                let rel = insn
                    .bytes
                    .get(l.tail_at as usize..)
                    .and_then(|b| b.first_chunk::<4>());
                regs.rip
                    .wrapping_add(i32::from_le_bytes(rel.copied().unwrap_or_default()) as u64)
            } else {
                cpu.gprs.get(l.rm)
            };
            canonical(target)?;
            let to = m.open(below, 8, Write)?;
            m.store(to, 8, regs.rip)?;
            regs.rsp = below;
            regs.rip = target;
        }
        Class::CallMem => {
            let from = m.open(insn.effective(cpu), 8, Read)?;
            let to = m.open(below, 8, Write)?;
            let target = m.load(from, 8)?;
            canonical(target)?;
            m.store(to, 8, regs.rip)?;
            regs.rsp = below;
            regs.rip = target;
        }
        Class::JmpMem => {
            let from = m.open(insn.effective(cpu), 8, Read)?;
            regs.rip = m.load(from, 8)?;
            canonical(regs.rip)?;
        }
        Class::Ret => {
            let from = m.open(rsp, 8, Read)?;
            regs.rip = m.load(from, 8)?;
            canonical(regs.rip)?;
            let released = if l.opcode == 0xc2 {
                insn.enter_operands().0
            } else {
                0
            };
            regs.rsp = rsp.wrapping_add(8).wrapping_add(released.into());
        }
        Class::Leave => {
            let from = m.open(regs.rbp, slot, Read)?;
            let value = m.load(from, slot)?;
            regs.rsp = regs.rbp.wrapping_add(slot);
            set(regs, 5, slot, value);
        }
        Class::Enter => {
            let (bytes, level) = insn.enter_operands();
            if level > 1 {
                // Copies a display, in an order that the manuals leave open when it overlaps what
                // is pushed. No compiler has used it for decades.
                return Err(Stop::Slow(Slow::Unsupported));
            }
            let frame = below;
            let pushes = u64::from(level) + 1;
            let low = rsp.wrapping_sub(pushes * slot);
            let stack = m.open(low, pushes * slot, Write)?;
            m.store(stack.offset((pushes - 1) * slot), slot, regs.rbp)?;
            if level > 0 {
                m.store(stack, slot, frame)?;
            }
            set(regs, 5, slot, frame);
            regs.rsp = low.wrapping_sub(bytes.into());
            // The processor checks that the new top of the stack is there.
            let top = m.open(regs.rsp, slot, Write)?;
            m.load(top, slot)?;
        }
        Class::Xlat => {
            let mut list = crate::access::AccessList::new();
            insn.accesses(cpu, &mut list);
            let from = m.open(list.first().map_or(0, |a| a.addr.0), 1, Read)?;
            let value = m.load(from, 1)?;
            regs.rax = regs.rax & !0xff | value;
        }
        _ => return Err(Stop::Split),
    }
    Ok(())
}

/// Branches to addresses that no user program can have fault at the branch.
fn canonical(target: u64) -> Result<(), Stop> {
    if target >> 47 == 0 {
        Ok(())
    } else {
        Err(Stop::Slow(Slow::Trap))
    }
}

/// Writes a 2-byte or 8-byte register.
fn set(regs: &mut Gprs, reg: u8, size: u64, value: u64) {
    if let Some(r) = regs.get_mut(reg) {
        *r = if size == 2 {
            *r & !0xffff | value & 0xffff
        } else {
            value
        };
    }
}

/// The value that `push` of a register, immediate or segment register stores.
fn pushed(insn: &Insn, cpu: &Cpu) -> u64 {
    let l = &insn.layout;
    let tail = insn.bytes.get(l.tail_at as usize..).unwrap_or(&[]);
    match (l.map, l.opcode) {
        (1, op) => {
            let selector: u64;
            // SAFETY: reads a selector. It is zero-extended (SDM: "if a segment register, the
            // upper bits are zero", as all current processors do for 64-bit pushes).
            unsafe {
                if op == 0xa0 {
                    core::arch::asm!("mov {:e}, fs", out(reg) selector, options(nomem, nostack, preserves_flags));
                } else {
                    core::arch::asm!("mov {:e}, gs", out(reg) selector, options(nomem, nostack, preserves_flags));
                }
            }
            selector & 0xffff
        }
        (_, 0x6a) => tail.first().map_or(0, |b| *b as i8 as u64),
        (_, 0x68) if l.opsize16 && !l.w => tail
            .first_chunk::<2>()
            .map_or(0, |b| u16::from_le_bytes(*b).into()),
        (_, 0x68) => tail
            .first_chunk::<4>()
            .map_or(0, |b| i32::from_le_bytes(*b) as u64),
        (_, 0xff) => cpu.gprs.get(l.rm),
        (_, op) => cpu.gprs.get(op & 7 | (l.rex & 1) << 3),
    }
}

/// One iteration of a string instruction.
fn string(insn: &Insn, cpu: &Cpu, regs: &mut Gprs, m: &mut Memory) -> Result<Outcome, Stop> {
    let l = &insn.layout;
    let size = insn.string_size();
    let rep = insn.is_rep();
    if rep && insn.string_count(cpu) == 0 {
        // With a 32-bit address size ecx is written back, which clears the upper half.
        return Ok(Outcome::Done);
    }
    let (uses_source, uses_dest) = (
        matches!(insn.class, Class::Movs | Class::Lods | Class::Cmps),
        !matches!(insn.class, Class::Lods),
    );
    let dest_kind = if matches!(insn.class, Class::Movs | Class::Stos) {
        Write
    } else {
        Read
    };
    let source = if uses_source {
        Some(m.open(insn.string_source(cpu), size, Read)?)
    } else {
        None
    };
    let dest = if uses_dest {
        Some(m.open(insn.string_dest(cpu), size, dest_kind)?)
    } else {
        None
    };
    let loaded = match source {
        Some(s) => m.load(s, size)?,
        None => regs.rax,
    };
    match (insn.class, dest) {
        (Class::Movs | Class::Stos, Some(d)) => m.store(d, size, loaded)?,
        (Class::Scas | Class::Cmps, Some(d)) => {
            let other = m.load(d, size)?;
            regs.rflags = regs.rflags & !STATUS | compare(loaded, other, size);
        }
        _ => set_sized(regs, 0, size, loaded),
    }
    let step = if regs.rflags & DF != 0 {
        size.wrapping_neg()
    } else {
        size
    };
    if uses_source {
        regs.rsi = advance(regs.rsi, step, l.addr32);
    }
    if uses_dest {
        regs.rdi = advance(regs.rdi, step, l.addr32);
    }
    if !rep {
        return Ok(Outcome::Done);
    }
    regs.rcx = advance(regs.rcx, u64::MAX, l.addr32);
    let compares = matches!(insn.class, Class::Scas | Class::Cmps);
    // The last repeat prefix counts: F2 goes on while unequal, F3 while equal.
    let wanted = if l.pp_rep_is_f2() { 0 } else { ZF };
    if regs.rcx == 0 || compares && regs.rflags & ZF != wanted {
        return Ok(Outcome::Done);
    }
    Ok(Outcome::Repeat)
}

/// 32-bit registers zero-extend when they are written.
fn advance(reg: u64, by: u64, addr32: bool) -> u64 {
    let next = reg.wrapping_add(by);
    if addr32 { next & 0xffff_ffff } else { next }
}

/// Writes the low `size` bytes as a register write of that size does.
fn set_sized(regs: &mut Gprs, reg: u8, size: u64, value: u64) {
    if let Some(r) = regs.get_mut(reg) {
        *r = match size {
            1 => *r & !0xff | value & 0xff,
            2 => *r & !0xffff | value & 0xffff,
            4 => value & 0xffff_ffff,
            _ => value,
        };
    }
}

/// Status flags of `cmp a, b` on the low `size` bytes.
fn compare(a: u64, b: u64, size: u64) -> u64 {
    let bits = size * 8;
    let mask = u64::MAX >> (64 - bits);
    let (a, b) = (a & mask, b & mask);
    let r = a.wrapping_sub(b) & mask;
    let sign = 1 << (bits - 1);
    let mut flags = 0;
    if a < b {
        flags |= CF;
    }
    if (r as u8).count_ones() & 1 == 0 {
        flags |= PF;
    }
    flags |= (a ^ b ^ r) & AF;
    if r == 0 {
        flags |= ZF;
    }
    if r & sign != 0 {
        flags |= SF;
    }
    if (a ^ b) & (a ^ r) & sign != 0 {
        flags |= OF;
    }
    flags
}
