//! The direct branches of a function that lead to an instruction.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use iced_x86::{DecoderOptions, FlowControl};

use super::types::JUMP;

/// A direct branch.
#[derive(Debug, PartialEq, Eq)]
pub struct Branch {
    /// Its address.
    pub at: u64,
    /// Where the jump of a patch may stand that displaces the branch: at instructions that lead straight to it, or at
    /// itself. Starts whose jump ends at or before the end of the branch are listed, the nearest first.
    pub starts: Vec<u64>,
}

/// The jumps, conditional or not, that lead to `to`, among the instructions `code` of a function, from its `start` on. Where
/// data stands among them there is an end.
pub fn leading_to(to: u64, start: u64, code: &[u8]) -> Vec<Branch> {
    const MOST: usize = 4;
    let mut decoder = iced_x86::Decoder::with_ip(64, code, start, DecoderOptions::NONE);
    let mut found = Vec::new();
    let mut before = VecDeque::new();
    while decoder.can_decode() {
        let i = decoder.decode();
        if i.is_invalid() {
            break;
        }
        before.push_back(i.ip());
        if before.len() > JUMP + MOST {
            before.pop_front();
        }
        let branches = i.is_jmp_short_or_near() || i.is_jcc_short_or_near();
        if branches && i.near_branch64() == to {
            let fits = |from: &u64| i.next_ip() - from >= JUMP as u64;
            let starts = before.iter().rev().copied().filter(fits).take(MOST);
            found.push(Branch {
                at: i.ip(),
                starts: starts.collect(),
            });
        }
        let flow = i.flow_control();
        if !matches!(flow, FlowControl::Next | FlowControl::ConditionalBranch) {
            before.clear();
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn branches_are_found_with_what_leads_to_them() {
        let code = [
            0x83, 0xfa, 0x01, // 1000: cmp $1, %edx
            0x7c, 0x0b, // 1003: jl 1010
            0x8a, 0x0e, // 1005: mov (%rsi), %cl
            0x74, 0x05, // 1007: je 100e
            0xeb, 0x03, // 1009: jmp 100e
            0x74, 0x01, // 100b: je 100e
            0x90, // 100d: nop
            0x88, 0x0f, // 100e: mov %cl, (%rdi)
            0xc3, // 1010: ret
            0x0f, 0x84, 0xf7, 0xff, 0xff, 0xff, // 1011: je 100e
        ];
        let branch = |at, starts| Branch { at, starts };
        assert_eq!(
            leading_to(0x100e, 0x1000, &code),
            [
                branch(0x1007, vec![0x1003, 0x1000]),
                branch(0x1009, vec![0x1005, 0x1003, 0x1000]),
                // No instruction leads to it from before, and it is too short.
                branch(0x100b, vec![]),
                branch(0x1011, vec![0x1011]),
            ]
        );
        assert_eq!(leading_to(0x1005, 0x1000, &code), []);
    }
}
