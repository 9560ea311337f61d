//! Sizes that capstone 5 gets wrong or leaves out, and the grain of EVEX masking.

use super::class::Class;
use super::layout::{Layout, Pp, Wrap};
use super::state;

/// Size of the ModRM operand where capstone's word cannot be taken.
pub fn operand_size(l: &Layout) -> Option<u16> {
    let far = u16::from(l.opsize()) + 2;
    // In 64-bit mode the x87 environment has its 32-bit layout, or with 66 the 16-bit one.
    let x87 = |small, large| Some(if l.opsize16 { small } else { large });
    match (l.wrap, l.map, l.opcode) {
        // movsxd with a 16-bit destination: AMD reads four bytes for it, Intel two (as capstone says)
        (Wrap::Legacy, 0, 0x63) if l.opsize() == 2 && state::is_amd() => Some(4),
        // capstone: 28 whatever the operand size
        (Wrap::Legacy, 0, 0xd9) if matches!(l.ext(), 4 | 6) => x87(14, 28),
        // capstone: 4 (frstor, fnsave)
        (Wrap::Legacy, 0, 0xdd) if matches!(l.ext(), 4 | 6) => x87(94, 108),
        // capstone: 8 (fxsave, fxrstor)
        (Wrap::Legacy, 1, 0xae) if l.ext() < 2 => Some(512),
        // capstone: 8 for every far pointer (lss, lfs, lgs)
        (Wrap::Legacy, 1, 0xb2 | 0xb4 | 0xb5) => Some(far),
        // capstone: 4 (rstorssp, clrssbsy)
        (Wrap::Legacy, 1, 0x01) if l.ext() == 5 => Some(8),
        (Wrap::Legacy, 1, 0xae) if l.ext() == 6 && l.pp == Pp::PF3 => Some(8),
        // capstone: 16 (comisd)
        (Wrap::Legacy, 1, 0x2e | 0x2f) => Some(if l.pp == Pp::P66 { 8 } else { 4 }),
        // capstone: 4 when F2 or F3 comes with 66, 2 when REX.W does (cmov, bt, shld, imul, cmpxchg,
        // bsf, bsr, popcnt, xadd, movbe)
        (
            Wrap::Legacy,
            1,
            0x40..=0x4f
            | 0xa3..=0xa5
            | 0xab..=0xad
            | 0xaf
            | 0xb1
            | 0xb3
            | 0xb8
            | 0xba..=0xbd
            | 0xc1,
        ) => Some(l.opsize().into()),
        (Wrap::Legacy, 2, 0xf0 | 0xf1) if l.pp != Pp::PF2 => Some(l.opsize().into()),
        // capstone: 1 (vgf2p8affineqb and its inverse with a broadcast operand)
        (Wrap::Evex, 3, 0xce | 0xcf) if l.bcast => Some(8),
        _ => None,
    }
}

/// Bytes of a full memory operand for each mask bit. Source: the instructions' descriptions in the
/// SDM; checked against page faults of the CPU in `exec::tests` (half precision only where the
/// processor has it).
pub fn grain(l: &Layout) -> u8 {
    let by_w = if l.w { 8 } else { 4 };
    let bw = if l.w { 2 } else { 1 };
    match (l.map, l.pp, l.opcode) {
        // vmovdqu8, vmovdqu16
        (1, Pp::PF2, 0x6f | 0x7f) => bw,
        // byte arithmetic and comparisons
        (
            1,
            Pp::P66,
            0x64 | 0x74 | 0xd8 | 0xda | 0xdc | 0xde | 0xe0 | 0xe8 | 0xec | 0xf8 | 0xfc,
        ) => 1,
        // word arithmetic, comparisons and shifts
        (
            1,
            Pp::P66,
            0x65 | 0x71 | 0x75 | 0xd5 | 0xd9 | 0xdd | 0xe3 | 0xe4 | 0xe5 | 0xe9 | 0xea | 0xed
            | 0xee | 0xf9 | 0xfd,
        ) => 2,
        // narrowing stores and widening loads: the element in memory
        (2, Pp::PF3, 0x10..=0x12 | 0x20..=0x22 | 0x30..=0x32) => 1,
        (2, Pp::PF3, 0x13 | 0x14 | 0x23 | 0x24 | 0x33 | 0x34) => 2,
        (2, Pp::PF3, 0x15 | 0x25 | 0x35) => 4,
        (2, Pp::P66, 0x20..=0x22 | 0x30..=0x32) => 1,
        (2, Pp::P66, 0x23 | 0x24 | 0x33 | 0x34) => 2,
        (2, Pp::P66, 0x25 | 0x35) => 4,
        (2, Pp::P66, 0x0b | 0x10..=0x13 | 0x1d | 0x3a | 0x3e | 0x70 | 0x72 | 0x79) => 2,
        (2, Pp::P66, 0x1c | 0x38 | 0x3c | 0x78 | 0x8f | 0xcf) => 1,
        (2, Pp::P66 | Pp::PF3, 0x26) => bw,
        (2, Pp::P66, 0x54 | 0x62 | 0x63 | 0x66) => bw,
        (3, Pp::P66, 0x1d) => 2,
        (3, Pp::P66, 0x3e | 0x3f) => bw,
        (3, Pp::P66, 0x70 | 0x72) => 2,
        // half precision
        (3, Pp::None, _) => 2,
        (5 | 6, _, _) => half_precision(l),
        _ => by_w,
    }
}

/// Grain in the AVX512-FP16 maps 5 and 6.
fn half_precision(l: &Layout) -> u8 {
    match (l.map, l.pp, l.opcode) {
        // to half precision from int, quad, double, single
        (5, Pp::None, 0x5b) | (5, Pp::PF2, 0x7a) => {
            if l.w {
                8
            } else {
                4
            }
        }
        (5, Pp::P66, 0x5a) => 8,
        (5, Pp::P66, 0x1d) => 4,
        (5, Pp::None, 0x1d) => 4,
        (5, Pp::PF2, 0x5a) => 8,
        // complex numbers
        (6, Pp::PF2 | Pp::PF3, 0x56 | 0x57 | 0xd6 | 0xd7) => 4,
        _ => 2,
    }
}

/// The full memory operand is half as long as the vector.
fn half_tuple(l: &Layout) -> bool {
    match (l.map, l.pp, l.opcode) {
        // vcvtps2pd, vcvtdq2pd, vcvtudq2pd, vcvt(t)ps2qq, vcvt(t)ps2uqq
        (1, Pp::None, 0x5a) | (1, Pp::PF3, 0xe6 | 0x7a) => !l.w,
        (1, Pp::P66, 0x78..=0x7b) => !l.w,
        // from half precision to single and int
        (5, Pp::P66, 0x5b)
        | (5, Pp::PF3, 0x5b)
        | (5, Pp::None, 0x78 | 0x79)
        | (6, Pp::P66, 0x13) => true,
        _ => false,
    }
}

/// The full memory operand is a quarter as long as the vector (half precision to 64 bits).
fn quarter_tuple(l: &Layout) -> bool {
    matches!(
        (l.map, l.pp, l.opcode),
        (5, Pp::None, 0x5a) | (5, Pp::P66, 0x78..=0x7b)
    )
}

/// `vbroadcast…` and `vpbroadcast…` from memory; with the grain of the destination.
fn is_broadcast(l: &Layout) -> bool {
    l.map == 2 && l.pp == Pp::P66 && matches!(l.opcode, 0x18..=0x1b | 0x58..=0x5b | 0x78 | 0x79)
}

/// Mask bits that matter to an instruction that broadcasts.
pub fn lanes(l: &Layout) -> u64 {
    let tuple = if quarter_tuple(l) {
        l.vl() / 4
    } else if half_tuple(l) {
        l.vl() / 2
    } else {
        l.vl()
    };
    u64::from(tuple) / u64::from(grain(l))
}

/// Part of a broadcast operand that is touched or left alone as a whole.
pub fn broadcast_part(l: &Layout, size: u64) -> u64 {
    if l.bcast {
        size
    } else {
        u64::from(grain(l)).min(size)
    }
}

/// Classes E4NF, E5NF, E6NF of the SDM (vol. 2, 2.8): the whole operand is read whatever the mask
/// says, because elements cross lanes.
fn no_fault_suppression(l: &Layout) -> bool {
    match (l.map, l.pp) {
        (1, Pp::P66) => matches!(l.opcode, 0x14 | 0x15 | 0x60..=0x63 | 0x67..=0x6d | 0x70 | 0xc6
            | 0xd1..=0xd3 | 0xe1 | 0xe2 | 0xf1..=0xf3 | 0xf5),
        (1, Pp::None) => matches!(l.opcode, 0x14 | 0x15 | 0xc6),
        // pshufhw, movshdup, movsldup
        (1, Pp::PF3) => matches!(l.opcode, 0x12 | 0x16 | 0x70),
        (1, Pp::PF2) => matches!(l.opcode, 0x12 | 0x70),
        (2, Pp::P66) => matches!(l.opcode, 0x00 | 0x04 | 0x0c | 0x0d | 0x16 | 0x2b | 0x36
            | 0x75..=0x77 | 0x7d..=0x7f | 0x83 | 0x8d | 0xc4),
        // four iterations from one 16-byte operand; vcvtne2ps2bf16
        (2, Pp::PF2) => matches!(l.opcode, 0x52 | 0x53 | 0x72 | 0x9a | 0x9b | 0xaa | 0xab),
        (3, Pp::P66) => matches!(
            l.opcode,
            0x00 | 0x01 | 0x03
                ..=0x05 | 0x0f | 0x18 | 0x1a | 0x23 | 0x38 | 0x3a | 0x42 | 0x43 | 0xce | 0xcf
        ),
        _ => false,
    }
}

/// How an EVEX instruction with one memory operand treats its mask.
pub fn masked_class(l: &Layout) -> Class {
    if l.aaa == 0 || no_fault_suppression(l) {
        return Class::Plain;
    }
    // vcompress, vpcompress, vexpand, vpexpand
    if l.map == 2 && l.pp == Pp::P66 && matches!(l.opcode, 0x62 | 0x63 | 0x88..=0x8b) {
        return Class::Packed;
    }
    if l.bcast || is_broadcast(l) {
        return Class::BroadcastEvex;
    }
    Class::MaskedEvex
}
