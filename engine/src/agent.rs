//! GDB agent expressions (`ulpf_lib::agent`), with the registers of a fault.

use crate::cpu::Gprs;
pub use ulpf_lib::agent::*;

/// Registers 0 to 17 of amd64 in the protocol's order: rax rbx rcx rdx rsi rdi rbp rsp r8…r15 rip
/// eflags.
pub fn register(g: &Gprs, number: u16) -> Option<u64> {
    Some(match number {
        0 => g.rax,
        1 => g.rbx,
        2 => g.rcx,
        3 => g.rdx,
        4 => g.rsi,
        5 => g.rdi,
        6 => g.rbp,
        7 => g.rsp,
        8 => g.r8,
        9 => g.r9,
        10 => g.r10,
        11 => g.r11,
        12 => g.r12,
        13 => g.r13,
        14 => g.r14,
        15 => g.r15,
        16 => g.rip,
        17 => g.rflags & 0xffff_ffff,
        _ => return None,
    })
}
