//! Whether the status flags are free at an instruction: nothing reads what they are there, whatever way the program takes.

use alloc::vec::Vec;

use iced_x86::{Code, DecoderOptions, FlowControl, Instruction, OpKind, Register, RflagsBits};

/// The flags that arithmetic changes.
const STATUS: u32 = RflagsBits::OF
    | RflagsBits::SF
    | RflagsBits::ZF
    | RflagsBits::AF
    | RflagsBits::CF
    | RflagsBits::PF;
/// Instructions that are looked at.
const MOST: usize = 48;

/// Whether nothing reads the status flags that the program has at `at`. `code` gives the code from an address on, as far as
/// it is known. Behind a call and a return no flag is read (System V ABI, 3.2.1: they are not preserved).
pub fn are_free<'a>(at: u64, code: impl Fn(u64) -> &'a [u8]) -> bool {
    let mut waiting = Vec::new();
    waiting.push((at, STATUS));
    // Each address, and the flags that are asked for from there on.
    let mut seen: Vec<(u64, u32)> = Vec::new();
    while let Some((at, asked)) = waiting.pop() {
        let known = seen.len();
        let asked = match seen.iter_mut().find(|s| s.0 == at) {
            Some(before) if before.1 & asked == asked => continue,
            Some(before) => {
                before.1 |= asked;
                before.1
            }
            None if known == MOST => return false,
            None => {
                seen.push((at, asked));
                asked
            }
        };
        let mut decoder = iced_x86::Decoder::with_ip(64, code(at), at, DecoderOptions::NONE);
        let i = decoder.decode();
        if i.is_invalid() || i.rflags_read() & asked != 0 {
            return false;
        }
        let left = asked & !written(&i);
        match i.flow_control() {
            _ if left == 0 => {}
            FlowControl::Next => waiting.push((i.next_ip(), left)),
            FlowControl::UnconditionalBranch if i.is_jmp_short_or_near() => {
                waiting.push((i.near_branch64(), left));
            }
            FlowControl::ConditionalBranch if i.op0_kind() == OpKind::NearBranch64 => {
                waiting.push((i.near_branch64(), left));
                waiting.push((i.next_ip(), left));
            }
            FlowControl::Call if i.is_call_near() => {}
            FlowControl::IndirectCall if i.is_call_near_indirect() => {}
            FlowControl::Return if is_near(&i) => {}
            _ => return false,
        }
    }
    true
}

fn is_near(i: &Instruction) -> bool {
    matches!(i.code(), Code::Retnq | Code::Retnq_imm16)
}

/// The flags that an instruction certainly changes. (A shift by nothing, and a repetition of nothing, change none.)
fn written(i: &Instruction) -> u32 {
    let constant = |n| matches!(i.op_kind(n), OpKind::Immediate8);
    let is_some = || i.immediate8() & 63 != 0 && i.immediate8() & 31 != 0;
    use iced_x86::Mnemonic::*;
    let may_be_none = match i.mnemonic() {
        Rol | Ror | Rcl | Rcr | Sal | Shl | Shr | Sar => {
            !(constant(1) && is_some() || i.op1_register() == Register::None && !constant(1))
        }
        Shld | Shrd => !(constant(2) && is_some()),
        _ => i.has_rep_prefix() || i.has_repne_prefix(),
    };
    match may_be_none {
        true => 0,
        false => i.rflags_modified(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x1000;

    fn free(code: &[u8]) -> bool {
        are_free(AT, |at| {
            let offset = at.checked_sub(AT).map(|n| n as usize);
            offset.and_then(|n| code.get(n..)).unwrap_or(&[])
        })
    }

    #[test]
    fn flags_that_are_written_before_they_are_read_are_free() {
        for code in [
            &[0x48, 0x01, 0x07][..],               // add %rax,(%rdi)
            &[0x88, 0x07, 0x48, 0x39, 0xf0],       // mov %al,(%rdi); cmp %rsi,%rax
            &[0x88, 0x07, 0xc3],                   // mov %al,(%rdi); ret
            &[0x88, 0x07, 0xe8, 0, 0, 0, 0],       // mov %al,(%rdi); call
            &[0x88, 0x07, 0xff, 0xd0],             // mov %al,(%rdi); call *%rax
            &[0x88, 0x07, 0xff, 0xc0, 0x85, 0xc0], // mov; inc %eax (not CF); test %eax,%eax
            &[0xeb, 0x01, 0x06, 0x31, 0xc0],       // jmp over a byte; xor %eax,%eax
            &[0x88, 0x07, 0xeb, 0xfc],             // a loop that reads none
            &[0xe3, 0x02, 0x31, 0xc0, 0x31, 0xdb], // jrcxz; xor; xor
            &[0xc1, 0xe0, 0x03, 0xc3],             // shl $3,%eax; ret
            &[0xd1, 0xe0, 0x72, 0x00, 0xc3],       // shl %eax; jc; ret
        ] {
            assert!(free(code), "{code:x?}");
        }
    }

    #[test]
    fn flags_that_may_be_read_are_not_free() {
        for code in [
            &[0x88, 0x07, 0x74, 0x00][..],         // mov; je
            &[0x88, 0x07, 0x83, 0xd0, 0x00],       // mov; adc $0,%eax
            &[0x11, 0x07, 0xc3],                   // adc %eax,(%rdi)
            &[0x0f, 0x94, 0x07, 0xc3],             // sete (%rdi)
            &[0xff, 0xc0, 0x72, 0x00, 0xc3],       // inc %eax; jc
            &[0xd3, 0xe0, 0x74, 0x00, 0xc3],       // shl %cl,%eax; je
            &[0xc1, 0xe0, 0x20, 0x74, 0x00, 0xc3], // shl $32,%eax; je
            &[0xf3, 0xa6, 0x74, 0x00, 0xc3],       // repe cmpsb; je
            &[0x9c, 0xc3],                         // pushf
            &[0x9f, 0xc3],                         // lahf
            &[0x0f, 0x44, 0xc1, 0xc3],             // cmove
            &[0xff, 0xe0],                         // jmp *%rax
            &[0x0f, 0x05, 0xc3],                   // syscall: r11 has them
            &[0xcc, 0xc3],                         // int3
            &[0xe3, 0x02, 0x31, 0xc0, 0x74, 0x00], // jrcxz to je
            &[0x90, 0x90],                         // what follows is not known
            &[0x90; 60],                           // nor here, for too long
        ] {
            assert!(!free(code), "{code:x?}");
        }
    }
}
