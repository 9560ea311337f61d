//! The beginning of a function whose first bytes are to be something else for good: its first instructions at another place,
//! from where it goes on behind them.

use alloc::vec::Vec;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind};

/// First instructions of a function, at another place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prologue {
    /// Their code there, and behind it a jump back.
    pub code: Vec<u8>,
    /// Where each of them begins: in the function, and there.
    pub starts: Vec<(u8, u8)>,
}

/// `jmp qword ptr [rip]`; and where to.
const BACK: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];

impl Prologue {
    /// Those of the function at `at` that begins with `code`, `least` bytes at least, for the place `to`. `None`: one of them
    /// cannot be elsewhere, or the place is too far away.
    pub fn of(at: u64, code: &[u8], least: usize, to: u64) -> Option<Prologue> {
        let mut made = Prologue {
            code: Vec::new(),
            starts: Vec::new(),
        };
        let mut decoder = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
        while ((decoder.ip() - at) as usize) < least {
            let from = (decoder.ip() - at) as usize;
            let i = decoder.decode();
            let bytes = code.get(from..from + i.len())?;
            made.starts.push((from as u8, made.code.len() as u8));
            let here = to + made.code.len() as u64;
            let moved = moved(&i, bytes, &decoder, here)?;
            // (A call would come back into what has become something else.)
            let ends = matches!(
                i.flow_control(),
                FlowControl::Return
                    | FlowControl::UnconditionalBranch
                    | FlowControl::IndirectBranch
            );
            made.code.extend(moved);
            if ends && ((decoder.ip() - at) as usize) < least {
                // The bytes behind it are not executed from here, or are a branch target.
                break;
            }
        }
        let next = decoder.ip();
        // No branch may lead into the middle of the moved code.
        let inside = |target: u64| at < target && target < at + least as u64;
        if targets(at, code).any(inside) {
            return None;
        }
        made.code.extend(BACK);
        made.code.extend(next.to_le_bytes());
        Some(made)
    }

    /// Where an instruction is that begins `offset` bytes behind the function's beginning.
    pub fn moved(&self, offset: u64) -> Option<u64> {
        let known = self.starts.iter().find(|s| u64::from(s.0) == offset);
        known.map(|s| s.1.into())
    }
}

/// An instruction as it has to be at `here`.
fn moved(i: &Instruction, bytes: &[u8], decoder: &Decoder, here: u64) -> Option<Vec<u8>> {
    let mut new = bytes.to_vec();
    match i.flow_control() {
        FlowControl::Next | FlowControl::Return | FlowControl::IndirectBranch => {
            if i.is_invalid() {
                return None;
            }
            if i.is_ip_rel_memory_operand() {
                let offsets = decoder.get_constant_offsets(i);
                let from = offsets.displacement_offset();
                let after = here + new.len() as u64;
                let far = super::asm::relative(after, i.ip_rel_memory_address())?;
                new.get_mut(from..from + 4)?.copy_from_slice(&far);
            }
            Some(new)
        }
        FlowControl::UnconditionalBranch if i.op0_kind() == OpKind::NearBranch64 => {
            let far = super::asm::relative(here + 5, i.near_branch_target())?;
            Some([&[0xe9], &far[..]].concat())
        }
        FlowControl::ConditionalBranch if i.is_jcc_short_or_near() => {
            let condition = match bytes {
                [0x0f, code, ..] => code & 0xf,
                [code, ..] if bytes.len() == 2 => code & 0xf,
                _ => return None,
            };
            let far = super::asm::relative(here + 6, i.near_branch_target())?;
            Some([&[0x0f, 0x80 | condition], &far[..]].concat())
        }
        _ => None,
    }
}

/// Where the branches in this code lead to, as far as they say so themselves.
fn targets(at: u64, code: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let mut decoder = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
    core::iter::from_fn(move || decoder.can_decode().then(|| decoder.decode())).filter_map(|i| {
        let branches = i.code() != Code::INVALID && i.op_count() > 0;
        (branches && i.op0_kind() == OpKind::NearBranch64).then(|| i.near_branch_target())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x7fff_f000_1000;
    const TO: u64 = 0x7fff_e000_0000;

    fn decoded(code: &[u8], at: u64) -> Vec<Instruction> {
        Decoder::with_ip(64, code, at, DecoderOptions::NONE)
            .into_iter()
            .collect()
    }

    #[test]
    fn what_is_relative_leads_where_it_led() {
        // test rdi,rdi; je +0xaf; push rbp; lea rsi,[rdi-0x10]; push rbx; mov rbx,[rip+0x139ed6]; ret
        let code = [
            0x48, 0x85, 0xff, 0x0f, 0x84, 0xaf, 0, 0, 0, 0x55, 0x48, 0x8d, 0x77, 0xf0, 0x53, 0x48,
            0x8b, 0x1d, 0xd6, 0x9e, 0x13, 0x00, 0xc3,
        ];
        let made = Prologue::of(AT, &code, 20, TO).unwrap();
        let (old, new) = (decoded(&code, AT), decoded(&made.code, TO));
        assert_eq!(new[1].near_branch_target(), old[1].near_branch_target());
        assert_eq!(
            new[5].ip_rel_memory_address(),
            old[5].ip_rel_memory_address()
        );
        assert_eq!(made.moved(9), Some(9));
        assert_eq!(made.moved(10), Some(10));
        assert_eq!(made.moved(11), None);
        assert_eq!(made.code[made.code.len() - 8..], (AT + 22).to_le_bytes());
    }

    #[test]
    fn short_branches_become_long() {
        // cmp byte [rip+0x10],0; je +7; jmp +0x100; xchg ax,ax; sub rsp,0x18
        let code = [
            0x80, 0x3d, 0x10, 0, 0, 0, 0, 0x74, 0x07, 0xe9, 0, 1, 0, 0, 0x66, 0x90, 0x48, 0x83,
            0xec, 0x18,
        ];
        let made = Prologue::of(AT, &code, 13, TO).unwrap();
        let new = decoded(&made.code, TO);
        assert_eq!(new[1].near_branch_target(), AT + 16);
        assert_eq!(new[2].near_branch_target(), AT + 14 + 0x100);
    }

    #[test]
    fn what_cannot_move_stays() {
        // A branch back into it: nop × 12; mov eax,1; jmp to the fourth.
        let mut code = [0x90; 19].to_vec();
        code[12..17].copy_from_slice(&[0xb8, 1, 0, 0, 0]);
        code[17..].copy_from_slice(&[0xeb, 0xf0]);
        assert_eq!(Prologue::of(AT, &code, 13, TO), None);
        // A loop to its own beginning is allowed.
        code[18] = 0xed;
        assert!(Prologue::of(AT, &code, 13, TO).is_some());
        // A call; something too far away; bytes that are no instruction.
        let call = [
            0xe8, 0, 0, 0, 0, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
        ];
        assert_eq!(Prologue::of(AT, &call, 13, TO), None);
        let relative = [
            0x48, 0x8b, 0x05, 0, 0, 0, 0, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
        ];
        assert_eq!(Prologue::of(AT, &relative, 13, TO - (4 << 30)), None);
        assert_eq!(Prologue::of(AT, &[0x06; 13], 13, TO), None);
    }
}
