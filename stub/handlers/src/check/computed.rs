//! Finds the pointer of an access in code that is not optimised. Such code adds the index to the pointer first, and
//! makes its access by the sum a few instructions later. The pointer may still be where it was loaded from:
//!
//! ```text
//!     lea  0x0(,%rax,4),%rdx          lea  0x0(,%rax,4),%rdx
//!     mov  -0x8(%rbp),%rax ◀─ here    mov  -0x8(%rbp),%rax ◀─ here
//!     add  %rdx,%rax                  add  %rax,%rdx
//!     movl $0x1,(%rax)                mov  -0x18(%rbp),%eax
//!                                     mov  %eax,(%rdx)
//! ```
//! Otherwise the sum minus the index is the pointer, if the index register is unchanged; or the base of the `lea` that
//! made the sum. This holds only if no jump leads past the sum (`jumps.rs`).
//!
//! In optimised code the register of a pointer may hold a difference: an array's beginning less the first index of a
//! loop. By chance that is the beginning of another block. [`is_difference`] finds the subtraction.

use ulpf_engine::access::{Insn, NO_REG};
use ulpf_engine::cpu::Gprs;

use crate::engine;
use crate::runtime::memory;

/// Bytes of code before the access that are searched for an addition.
const BACK: usize = 32;
const RSP: u8 = 4;
const RBP: u8 = 5;

/// Bytes of code before the access that are searched for a subtraction.
const FAR_BACK: usize = 256;
/// Registers that a function need not keep: RAX, RCX, RDX, RSI, RDI, R8 to R11.
const LOST_IN_CALLS: u16 = 0x0fc7;

/// How the address was made: the register of the sum, and the other register, which holds the pointer or the index.
struct Sum {
    to: u8,
    by: u8,
    /// For a `lea` whose base is the pointer: its index register, and the shift of the index.
    apart: Option<(u8, u8)>,
    len: usize,
}

/// Candidates for the pointer of an access, if the sum at `sum` was made for it.
#[derive(Default)]
pub struct Pointers {
    pub all: [Option<u64>; 3],
    pub sum: u64,
}

/// Candidates for the access by `insn`, whose operand has no index.
pub fn pointers(insn: &Insn, gprs: &Gprs) -> Pointers {
    let mut code = [0u8; BACK];
    let from = insn.pc.wrapping_sub(BACK as u64);
    if memory::code(from, &mut code).len() != BACK {
        return Pointers::default();
    }
    // The nearest sum from which whole instructions lead here.
    for at in (0..=BACK - 3).rev() {
        let Some(sum) = sum(&code, at).filter(|s| s.to == insn.mem.base) else {
            continue;
        };
        let Some(kept) = stays(&code, at + sum.len, from, &sum) else {
            continue;
        };
        let (to, by) = (gprs.get(sum.to), gprs.get(sum.by));
        let other = kept.by.then_some(by);
        let pointers = |all| Pointers {
            all,
            sum: from + at as u64,
        };
        // (A jump through a table leads here, too.)
        if let Some((index, doubled)) = sum.apart {
            let agrees = by.wrapping_add(gprs.get(index) << doubled) == to;
            return pointers([None, None, other.filter(|_| agrees || !kept.index)]);
        }
        let loaded = load(&code, at, from, gprs)
            .filter(|(register, _)| [sum.to, sum.by].contains(register))
            .filter(|(register, value)| match (*register == sum.by, kept.by) {
                (_, false) => true,
                (true, _) => *value == by,
                (false, _) => value.wrapping_add(by) == to,
            })
            .map(|(_, value)| value);
        return pointers([loaded, other.map(|_| to.wrapping_sub(by)), other]);
    }
    Pointers::default()
}

/// True if a register was subtracted, in the instructions before the access, to make its base register.
pub fn is_difference(insn: &Insn) -> bool {
    let mut code = [0u8; FAR_BACK];
    let from = insn.pc.wrapping_sub(FAR_BACK as u64);
    if memory::code(from, &mut code).len() != FAR_BACK {
        return false;
    }
    let decode = |at: usize| engine::decode(from + at as u64, code.get(at..)?);
    let mut starts = [0u16; FAR_BACK];
    let (mut count, mut at) = (0, 0);
    while at < FAR_BACK {
        if let Some(start) = starts.get_mut(count) {
            *start = at as u16;
        }
        count += 1;
        at += decode(at).map_or(1, |i| usize::from(i.len).max(1));
    }
    let mut makers = bit(insn.mem.base);
    for start in starts.iter().take(count).rev() {
        let Some(earlier) = decode(usize::from(*start)) else {
            continue;
        };
        match makers_before(&earlier, makers) {
            Some(before) => makers = before,
            None => return true,
        }
        if makers == 0 {
            break;
        }
    }
    false
}

/// The bit of a register in a set of them; none for other numbers ([`NO_REG`]).
fn bit(register: u8) -> u16 {
    1u16.checked_shl(register.into()).unwrap_or(0)
}

/// The registers (a bit each) whose values make those of `makers` after the instruction. `None` if it subtracts a
/// register from one of them, or negates one.
fn makers_before(insn: &Insn, makers: u16) -> Option<u16> {
    let l = &insn.layout;
    let in_register = if l.has_mem() { 0 } else { bit(l.rm) };
    let operand = match l.has_mem() {
        true => bit(insn.mem.base) | bit(insn.mem.index),
        false => 0,
    };
    let (to, from, keeps) = match (l.map, l.opcode) {
        (0, 0x01 | 0x29) => (in_register, bit(l.reg), true),
        (0, 0x03 | 0x2b) => (bit(l.reg), in_register, true),
        (0, 0xf7) if matches!(l.modrm >> 3 & 7, 2 | 3) => (in_register, 0, true),
        (0, 0x89) => (in_register, bit(l.reg), false),
        (0, 0x8b | 0x63) => (bit(l.reg), in_register, false),
        (0, 0x8d) => (bit(l.reg), operand, false),
        (0, 0xb8..=0xbf) => (bit(l.opcode & 7 | (l.rex & 1) << 3), 0, false),
        (0, 0xe8) => (LOST_IN_CALLS, 0, false),
        (0, 0xff) if l.modrm >> 3 & 7 == 2 => (LOST_IN_CALLS, 0, false),
        _ => return Some(makers),
    };
    match (makers & to != 0, l.opcode) {
        (false, _) => Some(makers),
        (true, 0x29 | 0x2b | 0xf7) => None,
        (true, _) => Some(if keeps { makers } else { makers & !to } | from),
    }
}

/// The 64-bit `add by,to` or `lea (by,index,scale),to` at `at`, if there is one.
fn sum(code: &[u8; BACK], at: usize) -> Option<Sum> {
    let (&[rex, opcode, modrm], rest) = code.get(at..)?.split_first_chunk()?;
    let (reg, rm) = (modrm >> 3 & 7 | (rex & 4) << 1, modrm & 7 | (rex & 1) << 3);
    let (to, by, apart) = match (opcode, modrm >> 6, rex & 0xf8) {
        (0x01, 3, 0x48) => (rm, reg, None),
        (0x03, 3, 0x48) => (reg, rm, None),
        (0x8d, 0, 0x48) if modrm & 7 == 4 => {
            let sib = *rest.first().filter(|sib| **sib >> 6 != 0)?;
            let index = sib >> 3 & 7 | (rex & 2) << 2;
            let base = sib & 7 | (rex & 1) << 3;
            if base & 7 == RBP || index == RSP {
                return None; // no such register
            }
            (reg, base, Some((index, sib >> 6)))
        }
        _ => return None,
    };
    let len = if apart.is_some() { 4 } else { 3 };
    (to != by).then_some(Sum { to, by, apart, len })
}

/// Registers that still have the value from when the sum was made.
struct Kept {
    by: bool,
    index: bool,
}

/// Returns the registers that are unchanged if whole instructions lead from `at` to the end and none of them changes
/// the sum.
fn stays(code: &[u8; BACK], at: usize, from: u64, sum: &Sum) -> Option<Kept> {
    let index = sum.apart.map_or(NO_REG, |(index, _)| index);
    let mut kept = Kept {
        by: true,
        index: index != sum.to,
    };
    let mut at = at;
    while at < BACK {
        let insn = engine::decode(from + at as u64, code.get(at..)?)?;
        let l = insn.layout;
        // A load, or a move from one register to another one.
        let changed = match (l.map, l.opcode) {
            (0, 0x8b | 0x8d) | (1, 0xb6 | 0xb7 | 0xbe | 0xbf) => l.reg,
            (0, 0x89) if !l.has_mem() => l.rm,
            (1, 0x10) => NO_REG,
            _ => return None,
        };
        if changed == sum.to {
            return None;
        }
        kept.by &= changed != sum.by;
        kept.index &= changed != index;
        at += usize::from(insn.len);
    }
    (at == BACK).then_some(kept)
}

/// The load of a variable (in the frame, or static) that ends at `end`: its register and the value.
fn load(code: &[u8; BACK], end: usize, from: u64, gprs: &Gprs) -> Option<(u8, u64)> {
    for len in [4, 7] {
        let Some(bytes) = end.checked_sub(len).and_then(|at| code.get(at..end)) else {
            continue;
        };
        let [rex, 0x8b, modrm, disp @ ..] = bytes else {
            continue;
        };
        let disp = match *disp {
            [byte] => i64::from(byte as i8),
            [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
            _ => continue,
        };
        let base = match (modrm >> 6, len) {
            (1, 4) | (2, 7) => gprs.get(RBP),
            (0, 7) => from + end as u64,
            _ => continue,
        };
        if rex & 0xfb != 0x48 || modrm & 7 != RBP {
            continue;
        }
        let mut value = [0u8; 8];
        if memory::look(base.wrapping_add_signed(disp), &mut value) == value.len() {
            return Some((modrm >> 3 & 7 | (rex & 4) << 1, u64::from_le_bytes(value)));
        }
    }
    None
}
