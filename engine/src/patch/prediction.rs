//! Predicts the next accesses: those behind a hot one through the same pointer.

use alloc::vec::Vec;

use iced_x86::{
    DecoderOptions, FlowControl, InstructionInfo, InstructionInfoFactory, OpAccess, Register,
};

/// Instructions behind the one at `pc` (`code` begins there) that are executed whenever it is, and access memory through the
/// same base register, unchanged. They will meet the same watches. With `loads`, those that only read are included. Returns
/// at most [`MOST`].
pub fn following(pc: u64, code: &[u8], loads: bool) -> Vec<u64> {
    let mut found = Vec::new();
    let mut decoder = iced_x86::Decoder::with_ip(64, code, pc, DecoderOptions::NONE);
    let mut factory = InstructionInfoFactory::new();
    let mut base = None;
    while decoder.can_decode() && found.len() < MOST {
        let i = decoder.decode();
        if i.is_invalid() {
            break;
        }
        let info = factory.info(&i);
        let own = *base.get_or_insert_with(|| i.memory_base());
        if i.ip() == pc {
            if !own.is_gpr64() || own == Register::RSP {
                break;
            }
        } else if meets(info, own, loads) {
            found.push(i.ip());
        }
        let mut registers = info.used_registers().iter();
        let changes =
            registers.any(|r| r.register().full_register() == own && !is_read(r.access()));
        if changes || i.flow_control() != FlowControl::Next {
            break;
        }
    }
    found
}

/// See [`following`].
const MOST: usize = 8;

fn meets(info: &InstructionInfo, base: Register, loads: bool) -> bool {
    info.used_memory().iter().any(|m| {
        let plain = !matches!(m.segment(), Register::FS | Register::GS);
        let reads = matches!(m.access(), OpAccess::Read | OpAccess::CondRead);
        let none = matches!(m.access(), OpAccess::None | OpAccess::NoMemAccess);
        m.base() == base && plain && !none && (loads || !reads)
    })
}

fn is_read(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_same_pointer_leads_to_is_met_next() {
        let code = [
            0x48, 0x8b, 0x07, // 1000: mov (%rdi), %rax
            0x8b, 0x4f, 0x08, // 1003: mov 8(%rdi), %ecx
            0x48, 0x8d, 0x57, 0x10, // 1006: lea 16(%rdi), %rdx
            0x89, 0x0e, // 100a: mov %ecx, (%rsi)
            0x89, 0x47, 0x18, // 100c: mov %eax, 24(%rdi)
            0x48, 0x8b, 0x7f, 0x20, // 100f: mov 32(%rdi), %rdi
            0x8b, 0x0f, // 1013: mov (%rdi), %ecx
        ];
        assert_eq!(following(0x1000, &code, true), [0x1003, 0x100c, 0x100f]);
        assert_eq!(following(0x1000, &code, false), [0x100c]);
        // The continuation is unknown.
        let jumps = [0x8b, 0x07, 0x74, 0x02, 0x8b, 0x4f, 0x08];
        assert_eq!(following(0x1000, &jumps, true), []);
        // The pointer is another one at once; the stack is no pointer.
        let follows = [0x48, 0x8b, 0x3f, 0x48, 0x8b, 0x3f];
        assert_eq!(following(0x1000, &follows, true), []);
        let stack = [0x8b, 0x04, 0x24, 0x8b, 0x4c, 0x24, 0x08];
        assert_eq!(following(0x1000, &stack, true), []);
    }
}
