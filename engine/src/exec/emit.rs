//! Writes thunks: the instruction with its memory operand rewritten to one register.
//!
//! ```text
//!   in: rdi = &Gprs, rsi = address, rcx = second address, rdx = status flags
//!       mov  C, rdi            C: r15, r14 or r13, whichever the instruction does not name
//!       mov  A, rsi            A: rsi, rdi or rbp, likewise (or what is implied: rdi, rax)
//!       push rdx ; popfq
//!       mov  rax, [C+104] …    rax, rcx, rdx, rbx (implicit operands) and the named registers
//!       INSN with [A]          an rsp operand is renamed to r8, r9 or r10
//!       mov  [C+104], rax …
//!       pushfq ; pop rax
//!       xor  edi, edi          tells completion from a recovered fault
//!       ret
//! ```
//! A is one of the low eight so that no REX prefix is needed where ah, bh, ch or dh are named.

use super::types::Slow;
use crate::access::layout::{Pp, Wrap};
use crate::access::{Class, Insn, state};
use crate::cpu::Gprs;
use core::mem::offset_of;
use ulpf_lib::AccessKind;

/// How a site is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plan {
    Thunk,
    /// A gather or scatter: the thunk runs once for each run of elements with one alias distance.
    Gather,
    Emulate,
    Nothing,
    Slow(Slow),
}

pub fn plan(insn: &Insn) -> Plan {
    use Class::*;
    let l = &insn.layout;
    match insn.class {
        None => Plan::Nothing,
        // Segment loads would change what the handler runs with.
        Plain if l.legacy() && l.map == 0 && l.opcode == 0x8e => Plan::Slow(Slow::Unsupported),
        Plain if l.legacy() && l.map == 1 && matches!(l.opcode, 0xb2 | 0xb4 | 0xb5) => {
            Plan::Slow(Slow::Unsupported)
        }
        // For TBM, a register extension in ModRM.reg and rsp in vvvv are indistinguishable here.
        Plain if l.wrap == Wrap::Xop && (insn.reg_is_rsp || insn.vvvv_is_rsp) => {
            Plan::Slow(Slow::Unsupported)
        }
        Plain | Flush | BitString | MaskMov | MaskedVex | MaskedEvex | BroadcastEvex | Packed
        | Xsave | Xsavec | Xrstor | Movdir64b | Clzero => Plan::Thunk,
        Gather | Scatter => Plan::Gather,
        // A 16-bit near branch: Intel ignores the prefix, AMD does not.
        Call | CallMem | JmpMem | Ret if l.opsize16 && !l.w => Plan::Slow(Slow::Unsupported),
        // Loads a segment register.
        Pop if l.map == 1 => Plan::Slow(Slow::Unsupported),
        Push | PushMem | Pop | PopMem | Pushf | Popf | Call | CallMem | JmpMem | Ret | Enter
        | Leave | Xlat | Movs | Stos | Lods | Scas | Cmps => Plan::Emulate,
        FarRet | Iret | FarCallMem | FarJmpMem | Unsupported => Plan::Slow(Slow::Unsupported),
    }
}

/// The state components that an instruction may read or write beside the general registers.
pub fn components(insn: &Insn) -> u64 {
    use state::{AVX, HI16_ZMM, OPMASK, SSE, X87, ZMM_HI256};
    let l = &insn.layout;
    // MMX registers are x87 registers.
    let legacy = X87 | SSE;
    match (l.wrap, l.map) {
        (Wrap::Legacy, 0) if matches!(l.opcode, 0xd8..=0xdf) => X87,
        (Wrap::Legacy, 0) => 0,
        (Wrap::Legacy, 1) => match l.opcode {
            0xae if matches!(insn.class, Class::Xsave | Class::Xrstor) => state::xcr0(),
            0xc7 if insn.class == Class::Xsavec => state::xcr0(),
            // ptwrite
            0xae if l.ext() == 4 => 0,
            0xae if insn.class == Class::Flush => 0,
            0xae => legacy,
            // cvtpi2ps, cvtpi2pd, cvt(t)ps2pi, cvt(t)pd2pi
            0x2a | 0x2c | 0x2d if matches!(l.pp, Pp::None | Pp::P66) => legacy,
            0x10..=0x17 | 0x28..=0x2f | 0x50..=0x5f | 0xc2 | 0xc6 => SSE,
            0x60..=0x7f | 0xc4 | 0xd0..=0xff if l.pp != Pp::None => SSE,
            0x60..=0x7f | 0xc4 | 0xd0..=0xff => legacy,
            _ => 0,
        },
        (Wrap::Legacy, 2) if l.opcode >= 0xf0 => 0,
        (Wrap::Legacy, 2 | 3) if l.pp != Pp::None => SSE,
        (Wrap::Legacy, _) => legacy,
        // BMI and CMPccXADD name general registers only.
        (Wrap::Vex, 2) if matches!(l.opcode, 0xe0..=0xef | 0xf2 | 0xf3 | 0xf5..=0xf7) => 0,
        (Wrap::Vex, 3) if l.opcode == 0xf0 => 0,
        _ => (SSE | AVX | OPMASK | ZMM_HI256 | HI16_ZMM) & state::xcr0(),
    }
}

/// Components of [`components`] that may differ afterwards: none for plain stores.
pub fn changed(insn: &Insn) -> u64 {
    let l = &insn.layout;
    let store = insn.mem.kind == AccessKind::Write
        && match (l.wrap, l.map) {
            (Wrap::Legacy, 1) | (Wrap::Vex, 1) | (Wrap::Evex, 1) => {
                matches!(
                    l.opcode,
                    0x11 | 0x13 | 0x17 | 0x29 | 0x2b | 0x7f | 0xe7 | 0xd6
                ) || l.opcode == 0x7e && l.pp == Pp::P66
            }
            (Wrap::Vex, 2) => matches!(l.opcode, 0x2e | 0x2f | 0x8e),
            (Wrap::Vex | Wrap::Evex, 3) => {
                matches!(l.opcode, 0x14..=0x17 | 0x19 | 0x1b | 0x39 | 0x3b)
            }
            _ => false,
        };
    // MMX stores switch the x87 unit to MMX mode.
    if store && !(l.legacy() && l.pp == Pp::None && l.opcode >= 0x60) {
        0
    } else {
        components(insn)
    }
}

/// A code buffer that never overflows silently.
pub struct Code {
    bytes: [u8; 192],
    len: usize,
    full: bool,
}

impl Code {
    fn new() -> Code {
        Code {
            bytes: [0; 192],
            len: 0,
            full: false,
        }
    }
    fn put(&mut self, bytes: &[u8]) {
        for &b in bytes {
            match self.bytes.get_mut(self.len) {
                Some(slot) => {
                    *slot = b;
                    self.len += 1;
                }
                None => self.full = true,
            }
        }
    }
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }
    /// `mov to, from` between 64-bit registers.
    fn mov(&mut self, to: u8, from: u8) {
        if to != from {
            self.put(&[
                0x48 | (from >> 3) << 2 | to >> 3,
                0x89,
                0xc0 | (from & 7) << 3 | to & 7,
            ]);
        }
    }
    /// `mov reg, [c + disp8]` (8B) or `mov [c + disp8], reg` (89); `c` is no rsp and no r12.
    fn slot(&mut self, opcode: u8, reg: u8, c: u8, disp: u8) {
        self.put(&[
            0x48 | (reg >> 3) << 2 | c >> 3,
            opcode,
            0x40 | (reg & 7) << 3 | c & 7,
            disp,
        ]);
    }
}

/// Offset of a register in [`Gprs`].
fn offset(reg: u8) -> Option<u8> {
    Some(match reg {
        0 => offset_of!(Gprs, rax),
        1 => offset_of!(Gprs, rcx),
        2 => offset_of!(Gprs, rdx),
        3 => offset_of!(Gprs, rbx),
        4 => offset_of!(Gprs, rsp),
        5 => offset_of!(Gprs, rbp),
        6 => offset_of!(Gprs, rsi),
        7 => offset_of!(Gprs, rdi),
        8..=15 => (reg as usize - 8) * 8,
        _ => return None,
    } as u8)
}

const RSP: u8 = 4;

/// The thunk and the offset of the program's instruction in it.
pub fn thunk(insn: &Insn) -> Option<(Code, u8)> {
    let l = &insn.layout;
    let mut used: u16 = 0b1111;
    if l.modrm_at != 0 {
        used |= 1 << (l.reg & 15);
    }
    if l.wrap != Wrap::Legacy {
        used |= 1 << (l.vvvv & 15);
    }
    let free = |r: &u8| used & 1 << *r == 0;
    let a = match insn.class {
        Class::MaskMov => 7,
        Class::Clzero => 0,
        _ => [6, 7, 5].into_iter().find(free)?,
    };
    let c = [15, 14, 13].into_iter().find(free)?;
    let spare = [10, 9, 8].into_iter().find(free)?;
    // The register that replaces the one named by ModRM.reg or vvvv.
    let reg = (insn.reg_is_rsp || insn.class == Class::Movdir64b).then_some(spare);
    let vvvv = insn.vvvv_is_rsp.then_some(spare);

    let mut code = Code::new();
    code.mov(c, 7);
    if insn.class == Class::Movdir64b {
        code.mov(spare, 1);
    } else if reg.or(vvvv).is_some() {
        code.slot(0x8b, spare, c, offset(RSP)?);
    }
    code.mov(a, 6);
    code.put(&[0x52, 0x9d]);
    let named = |r: &u8| used & 1 << *r != 0 && *r != RSP && *r != a && *r != c && *r != spare;
    for r in (0..16).filter(named) {
        code.slot(0x8b, r, c, offset(r)?);
    }
    let at = code.len as u8;
    rewrite(&mut code, insn, a, reg, vvvv)?;
    for r in (0..16).filter(named) {
        code.slot(0x89, r, c, offset(r)?);
    }
    if insn.reg_is_rsp && insn.class != Class::Movdir64b || insn.vvvv_is_rsp {
        code.slot(0x89, spare, c, offset(RSP)?);
    }
    code.put(&[0x9c, 0x58, 0x31, 0xff, 0xc3]);
    (!code.full).then_some((code, at))
}

/// Whether the instruction can be done with another memory operand.
pub(crate) fn can_thunk(insn: &Insn) -> bool {
    plan(insn) == Plan::Thunk
}

/// The instruction with `[a]` for its memory operand; `a` as in [`thunk`].
pub(crate) fn redirected(insn: &Insn, a: u8) -> Option<Code> {
    let mut code = Code::new();
    rewrite(&mut code, insn, a, None, None)?;
    (!code.full).then_some(code)
}

const MOV: u8 = 0x89;

/// Opcode of the cached store that replaces a non-temporal one (`movnti`, `movntps`, `movntdq` …; [`MOV`] has no 0F before
/// it). A hit reads the stored bytes at once, which would take as long as an access to memory. The order of stores becomes
/// stronger, never weaker (SDM vol. 1, 10.4.6.2). `None` for all other instructions.
fn through_caches(insn: &Insn) -> Option<u8> {
    let l = &insn.layout;
    let is_store = insn.mem.kind == AccessKind::Write && l.map == 1 && l.wrap != Wrap::Xop;
    match (l.opcode, l.pp) {
        _ if !is_store => None,
        (0x2b, Pp::None | Pp::P66) => Some(0x29), // movaps, movapd; SSE4a's have no such
        // (With a mask, or EVEX.W, that is another instruction.)
        (0xe7, _) if l.wrap == Wrap::Evex && (l.w || l.aaa != 0) => None,
        (0xe7, Pp::None | Pp::P66) => Some(0x7f), // movq, movdqa
        (0xc3, Pp::None) if l.legacy() && !l.opsize16 => Some(MOV),
        _ => None,
    }
}

/// Copies the instruction with `[a]` for its memory operand.
fn rewrite(code: &mut Code, insn: &Insn, a: u8, reg: Option<u8>, vvvv: Option<u8>) -> Option<()> {
    let l = &insn.layout;
    let bytes = insn.code();
    for &p in bytes.get(..l.prefixes as usize)? {
        // Segment and address size are in the address already. A REX here is a cancelled one.
        if matches!(p, 0x66 | 0xf0 | 0xf2 | 0xf3) {
            code.put(&[p]);
        }
    }
    let r_bit = reg.map_or(l.reg >> 3 & 1, |_| 1);
    let wrap_at = l.prefixes as usize;
    match l.wrap {
        Wrap::Legacy => {
            // B names a register only in the register forms (maskmov).
            let b_bit = if l.has_mem() { 0 } else { l.rm >> 3 };
            let rex = l.rex & 8 | r_bit << 2 | b_bit;
            if l.rex != 0 || reg.is_some() {
                code.put(&[0x40 | rex]);
            }
            let from = wrap_at + usize::from(l.rex != 0);
            if insn.is_moffs() {
                // mov al,[moffs] is mov al,[a] with a ModRM byte.
                code.put(&[match l.opcode {
                    0xa0 => 0x8a,
                    0xa1 => 0x8b,
                    0xa2 => 0x88,
                    _ => 0x89,
                }]);
                modrm(code, a, 0, None);
                return Some(());
            }
            let end = if l.map == 4 {
                l.modrm_at
            } else {
                l.opcode_at + 1
            };
            match through_caches(insn) {
                None => code.put(bytes.get(from..end as usize)?),
                Some(MOV) => code.put(&[MOV]),
                Some(opcode) => {
                    code.put(bytes.get(from..l.opcode_at as usize)?);
                    code.put(&[opcode]);
                }
            }
        }
        Wrap::Vex | Wrap::Xop => {
            let first = *bytes.get(wrap_at)?;
            code.put(&[first]);
            let mut p = *bytes.get(wrap_at + 1)?;
            if reg.is_some() {
                p &= 0x7f;
            }
            if first == 0xc5 {
                code.put(&[with_vvvv(p, vvvv)]);
            } else {
                code.put(&[
                    p | unused_bits(insn),
                    with_vvvv(*bytes.get(wrap_at + 2)?, vvvv),
                ]);
            }
            code.put(&[through_caches(insn).unwrap_or(l.opcode)]);
        }
        Wrap::Evex => {
            let mut p = *bytes.get(wrap_at + 1)?;
            if reg.is_some() {
                p &= 0x7f;
            }
            code.put(&[
                0x62,
                p | unused_bits(insn),
                with_vvvv(*bytes.get(wrap_at + 2)?, vvvv),
                *bytes.get(wrap_at + 3)?,
            ]);
            code.put(&[through_caches(insn).unwrap_or(l.opcode)]);
        }
    }
    if l.modrm_at != 0 {
        if l.has_mem() {
            let sib = if has_vsib(insn) {
                bytes.get(l.modrm_at as usize + 1).copied()
            } else {
                None
            };
            modrm(code, a, reg.map_or(l.modrm >> 3 & 7, |r| r & 7), sib);
        } else {
            code.put(&[l.modrm]);
        }
    }
    code.put(bytes.get(l.tail_at as usize..)?);
    Some(())
}

fn has_vsib(insn: &Insn) -> bool {
    matches!(insn.class, Class::Gather | Class::Scatter)
}

/// X and B of VEX and EVEX, which are stored inverted: `[a]` needs neither, gathers keep X, register
/// forms keep both.
fn unused_bits(insn: &Insn) -> u8 {
    if !insn.layout.has_mem() {
        0
    } else if has_vsib(insn) {
        0x20
    } else {
        0x60
    }
}

fn with_vvvv(p: u8, vvvv: Option<u8>) -> u8 {
    match vvvv {
        Some(v) => p & !0x78 | (!v & 15) << 3,
        None => p,
    }
}

/// ModRM for `[a]`, or `[a + index*scale]` with the index of `sib`. rbp needs a displacement.
fn modrm(code: &mut Code, a: u8, reg: u8, sib: Option<u8>) {
    let (mode, disp): (u8, &[u8]) = if a == 5 { (0x40, &[0]) } else { (0, &[]) };
    match sib {
        Some(s) => code.put(&[mode | reg << 3 | 4, s & !7 | a]),
        None => code.put(&[mode | reg << 3 | a]),
    }
    code.put(disp);
}
