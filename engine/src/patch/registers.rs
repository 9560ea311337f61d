//! Chooses the registers of a trampoline.

use ulpf_lib::AccessKind;

use super::asm::RCX;
use crate::access::Insn;
use crate::access::insn::{MemOp, NO_REG};
use crate::access::layout::Wrap;

const RSP: u8 = 4;

/// The registers of a trampoline: one for the address, which must not be named by the instruction and
/// needs no REX prefix, and another one.
pub fn registers(named: u16) -> Option<(u8, u8)> {
    let used = named | 1 << RSP | 1 << RCX;
    let free = |r: &u8| used & 1 << *r == 0;
    let a = [6, 7, 3, 2, 0, 5].into_iter().find(free)?;
    // Neither rsp nor one whose encoding as a base is special.
    let b = [8, 9, 10, 6, 7, 3, 2, 0]
        .into_iter()
        .find(|r| free(r) && *r != a)?;
    Some((a, b))
}

/// General registers of an operand's address.
pub fn of_address(mem: &MemOp) -> u16 {
    let bit = |r: u8| if r == NO_REG { 0 } else { 1 << (r & 15) };
    bit(mem.base) | bit(mem.index)
}

/// General registers that the instruction names beside its address, at least.
pub fn named(insn: &Insn) -> u16 {
    const IMPLICIT: u16 = 0b1111; // rax, rcx, rdx, rbx
    let l = &insn.layout;
    let mut used = 0;
    if l.modrm_at != 0 {
        used |= 1 << (l.reg & 15);
    }
    if l.wrap != Wrap::Legacy {
        used |= 1 << (l.vvvv & 15);
        // mulx
        return used
            | if l.map == 2 && l.opcode == 0xf6 {
                IMPLICIT
            } else {
                0
            };
    }
    // ah, bh, ch, dh are the upper halves of rax to rbx.
    let mut implicit = IMPLICIT;
    match (l.map, l.opcode) {
        (
            0,
            0x00..=0x3b
            | 0x63
            | 0x69
            | 0x6b
            | 0x80..=0x8b
            | 0xc0
            | 0xc1
            | 0xc6
            | 0xc7
            | 0xd0
            | 0xd1
            | 0xfe,
        ) => {
            implicit = if l.rex == 0 && l.reg & 15 >= 4 {
                IMPLICIT
            } else {
                0
            };
        }
        (0, 0xff) if l.ext() < 2 => implicit = 0,
        (0, 0xf6 | 0xf7) if l.ext() < 4 => implicit = 0,
        (
            1,
            0x10..=0x17
            | 0x28..=0x2f
            | 0x40..=0x7f
            | 0x90..=0x9f
            | 0xaf
            | 0xb6
            | 0xb7
            | 0xbe
            | 0xbf
            | 0xc0
            | 0xc1
            | 0xd0..=0xff,
        ) => {
            implicit = if l.rex == 0 && matches!(l.opcode, 0xc0) {
                IMPLICIT
            } else {
                0
            };
        }
        _ => {}
    }
    used | implicit
}

/// The register that a load replaces as a whole, if its address does not need it.
pub fn own_register(insn: &Insn) -> Option<u8> {
    let l = &insn.layout;
    if l.wrap != Wrap::Legacy || l.opsize16 || insn.mem.kind != AccessKind::Read {
        return None;
    }
    let loads = match (l.map, l.opcode) {
        // mov, movsxd
        (0, 0x8b | 0x63) => true,
        // movzx, movsx
        (1, 0xb6 | 0xb7 | 0xbe | 0xbf) => true,
        _ => false,
    };
    let own = l.reg & 15;
    // (Its encoding as a base needs no prefix.)
    let free = own < 8 && own != RSP && own != insn.mem.base && own != insn.mem.index;
    (loads && free).then_some(own)
}
