// SPDX-License-Identifier: GPL-2.0-or-later
//! The six new instructions (thesis, Listing 3.2). Their encoding is ours: `0F 04 /op`, an opcode that
//! x86-64 leaves undefined, with a register as operand (ModRM 11 op reg; REX.B for r8 to r15).
//!
//! ```text
//!   0F 04 C0        ULIRET           0F 04 D8+r  WRITE_CR16 r
//!   0F 04 C8+r      SET_TLB_RO r     0F 04 E0+r  READ_CR17  r
//!   0F 04 D0+r      SET_TLB_RW r     0F 04 E8+r  WRITE_CR18 r
//! ```
//!
//! `iretq` in user mode is the other ULIRET: that of handlers that begin with `add $24, %rsp`, and so
//! of programs for the Linux module. ULIRET takes the whole frame, from `addr` on.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Uliret,
    SetTlbRo,
    SetTlbRw,
    WriteCr16,
    ReadCr17,
    WriteCr18,
    Iretq,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instruction {
    pub op: Op,
    /// 0 (rax) to 15 (r15), as encoded.
    pub register: usize,
    pub length: u64,
}

pub fn decode(bytes: &[u8]) -> Option<Instruction> {
    if bytes.starts_with(&[0x48, 0xcf]) {
        return Some(Instruction {
            op: Op::Iretq,
            register: 0,
            length: 2,
        });
    }
    let rex = bytes.first().is_some_and(|b| b & 0xf0 == 0x40);
    let high = rex && bytes[0] & 1 != 0;
    let [0x0f, 0x04, modrm, ..] = bytes[usize::from(rex)..] else {
        return None;
    };
    if modrm >> 6 != 3 {
        return None;
    }
    let op = match modrm >> 3 & 7 {
        0 if modrm & 7 == 0 => Op::Uliret,
        1 => Op::SetTlbRo,
        2 => Op::SetTlbRw,
        3 => Op::WriteCr16,
        4 => Op::ReadCr17,
        5 => Op::WriteCr18,
        _ => return None,
    };
    Some(Instruction {
        op,
        register: usize::from(modrm & 7) + 8 * usize::from(high),
        length: 3 + u64::from(rex),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings() {
        let of = |bytes: &[u8]| decode(bytes).map(|i| (i.op, i.register, i.length));
        assert_eq!(of(&[0x0f, 0x04, 0xc0]), Some((Op::Uliret, 0, 3)));
        assert_eq!(of(&[0x0f, 0x04, 0xcf]), Some((Op::SetTlbRo, 7, 3)));
        assert_eq!(of(&[0x41, 0x0f, 0x04, 0xe1]), Some((Op::ReadCr17, 9, 4)));
        assert_eq!(of(&[0x48, 0xcf]), Some((Op::Iretq, 0, 2)));
        for bad in [
            &[0x0f, 0x04, 0x08][..],
            &[0x0f, 0x04, 0xc1],
            &[0x0f, 0x0b, 0xc0],
            &[0x0f],
            &[],
        ] {
            assert_eq!(of(bad), None);
        }
        use iced_x86::{Decoder, DecoderOptions};
        for modrm in 0xc0..=0xff {
            let bytes = [0x0f, 0x04, modrm, 0x90];
            let i = Decoder::new(64, &bytes, DecoderOptions::NONE).decode();
            assert!(i.is_invalid(), "0f 04 {modrm:x} is somebody else's");
        }
    }
}
