//! Whether an instruction reads, writes or does both to its ModRM memory operand, and what else
//! it touches: the opcode maps, read once more with only that question in mind.
//!
//! Capstone is built without its "full" tables, which format text for every instruction they
//! decode (forbidden in the fault path) and whose access flags are missing for most of AVX-512.
//! Every row here is checked against iced-x86 by `tests::every_opcode`.

use super::layout::{Layout, Pp, Wrap};
use ulpf_lib::AccessKind::{self, Read, ReadWrite, Write};

/// Kind of an instruction's accesses, besides, or instead of, one ModRM operand of fixed size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Class {
    /// No data access at all: registers only, or hints (`lea`, `nop`, prefetches, `clflush`).
    None,
    /// `clflush`, `clflushopt`, `clwb`: no data access, but faults as a byte load does.
    Flush,
    /// One memory operand, given by ModRM (or an absolute `moffs`).
    Plain,
    /// `bt`, `bts`, `btr`, `btc` with a register: the bit may lie far outside the named word.
    BitString,
    /// `movs`, repeated or not, as the four below.
    Movs,
    /// `stos`.
    Stos,
    /// `lods`.
    Lods,
    /// `scas`.
    Scas,
    /// `cmps`.
    Cmps,
    /// `push` of a register, immediate, segment register.
    Push,
    /// `push` of memory.
    PushMem,
    /// `pop` to a register or segment register.
    Pop,
    /// `pop` to memory.
    PopMem,
    /// `pushf`.
    Pushf,
    /// `popf`.
    Popf,
    /// `call` relative or through a register.
    Call,
    /// `call` through memory.
    CallMem,
    /// `jmp` through memory.
    JmpMem,
    /// Near `ret`.
    Ret,
    /// `enter`.
    Enter,
    /// `leave`.
    Leave,
    /// `xlat`.
    Xlat,
    /// `maskmovq`, `(v)maskmovdqu`: bytes at rdi, selected by the mask in ModRM.rm.
    MaskMov,
    /// `vmaskmovps/pd`, `vpmaskmovd/q`: elements selected by the sign bits of vvvv.
    MaskedVex,
    /// EVEX with an opmask, element by element.
    MaskedEvex,
    /// EVEX loads of a repeated part (`vbroadcast…`, `{1toN}`): touched when any lane wants it.
    BroadcastEvex,
    /// `vpcompress…`, `vpexpand…`: as many contiguous elements as mask bits are set.
    Packed,
    /// Gathers: the elements whose mask bits are set.
    Gather,
    /// Scatters, likewise.
    Scatter,
    /// `xsave`, `xsaveopt`.
    Xsave,
    /// `xsavec`.
    Xsavec,
    /// `xrstor`.
    Xrstor,
    /// `movdir64b`: 64 bytes from ModRM to the address in ModRM.reg.
    Movdir64b,
    /// `clzero`: the 64 bytes around rax.
    Clzero,
    /// Far returns and jumps, `iret`: their accesses are known, doing them is left to the CPU.
    FarRet,
    /// `iret`.
    Iret,
    /// Far `call` through memory.
    FarCallMem,
    /// Far `jmp` through memory.
    FarJmpMem,
    /// Cannot run in user mode or has side effects that cannot be redirected; see `why`.
    Unsupported,
}

/// The access to the ModRM memory operand.
pub fn operand_kind(l: &Layout) -> AccessKind {
    match (l.wrap, l.map) {
        (Wrap::Legacy, 0) => map0(l),
        (Wrap::Legacy, 1) => map1(l),
        (Wrap::Legacy, 2) => match l.opcode {
            // movbe store (also with 66); crc32 has F2 and reads. wrss, wruss, movdiri.
            0xf1 if l.pp != Pp::PF2 && l.pp != Pp::PF3 => Write,
            0xf5 | 0xf9 => Write,
            0xf6 if l.pp == Pp::None => Write,
            // aadd, aand, aor, axor (RAO-INT)
            0xfc => ReadWrite,
            _ => Read,
        },
        (_, 3) if matches!(l.opcode, 0x14..=0x17) => Write,
        (Wrap::Vex | Wrap::Evex, 3) => match l.opcode {
            0x19 | 0x1b | 0x39 | 0x3b | 0x1d => Write,
            _ => Read,
        },
        (Wrap::Vex | Wrap::Evex, 1) => vector1(l),
        (Wrap::Vex, 2) => match l.opcode {
            0x2e | 0x2f | 0x8e => Write,
            // tilestored
            0x4b if l.pp == Pp::PF3 => Write,
            // CMPccXADD
            0xe0..=0xef => ReadWrite,
            _ => Read,
        },
        (Wrap::Evex, 2) => match l.opcode {
            // vpcompress, vcompress, scatters
            0x63 | 0x8a | 0x8b | 0xa0..=0xa3 => Write,
            // vpmov narrowing stores
            0x10..=0x15 | 0x20..=0x25 | 0x30..=0x35 if l.pp == Pp::PF3 => Write,
            _ => Read,
        },
        // vmovsh, vmovw
        (Wrap::Evex, 5) if matches!(l.opcode, 0x11 | 0x7e) => Write,
        _ => Read,
    }
}

fn map0(l: &Layout) -> AccessKind {
    match l.opcode {
        0x38..=0x3b => Read,
        0x00..=0x3f if l.opcode & 7 < 2 => ReadWrite,
        0x80..=0x83 => {
            if l.ext() == 7 {
                Read
            } else {
                ReadWrite
            }
        }
        0x86 | 0x87 => ReadWrite,
        0x88 | 0x89 | 0x8c | 0x8f | 0xc6 | 0xc7 | 0xa2 | 0xa3 => Write,
        0xc0 | 0xc1 | 0xd0..=0xd3 => ReadWrite,
        0xf6 | 0xf7 if matches!(l.ext(), 2 | 3) => ReadWrite,
        0xfe | 0xff if l.ext() < 2 => ReadWrite,
        // fst, fstp, fnstenv, fnstcw
        0xd9 if matches!(l.ext(), 2 | 3 | 6 | 7) => Write,
        // fisttp, fist, fistp, fstp tbyte
        0xdb if matches!(l.ext(), 1 | 2 | 3 | 7) => Write,
        // fisttp, fst, fstp, fnsave, fnstsw
        0xdd if matches!(l.ext(), 1 | 2 | 3 | 6 | 7) => Write,
        // fisttp, fist, fistp, fbstp, fistp qword
        0xdf if matches!(l.ext(), 1 | 2 | 3 | 6 | 7) => Write,
        _ => Read,
    }
}

fn map1(l: &Layout) -> AccessKind {
    match l.opcode {
        // sldt, str
        0x00 if l.ext() < 2 => Write,
        // sgdt, sidt, smsw
        0x01 if matches!(l.ext(), 0 | 1 | 4) => Write,
        // rstorssp
        0x01 if l.ext() == 5 => ReadWrite,
        0x11 | 0x13 | 0x17 | 0x29 | 0x2b | 0x7f | 0xd6 | 0xe7 | 0xc3 => Write,
        // movd store; with F3 it is movq, a load
        0x7e if l.pp != Pp::PF3 => Write,
        // extrq, insertq have no memory form; vmread
        0x78 => Write,
        // maskmovq, maskmovdqu (not through ModRM)
        0xf7 => Write,
        0x90..=0x9f => Write,
        0xab | 0xb3 | 0xbb | 0xa4 | 0xa5 | 0xac | 0xad | 0xb0 | 0xb1 | 0xc0 | 0xc1 => ReadWrite,
        0xba if l.ext() != 4 => ReadWrite,
        0xae => match (l.ext(), l.pp) {
            (4, Pp::PF3) => Read,
            // clrssbsy
            (6, Pp::PF3) => ReadWrite,
            (0 | 3 | 4 | 6, _) => Write,
            _ => Read,
        },
        0xc7 => match l.ext() {
            1 => ReadWrite,
            // xsavec, xsaves, vmptrst
            4 | 5 | 7 => Write,
            _ => Read,
        },
        _ => Read,
    }
}

fn vector1(l: &Layout) -> AccessKind {
    match l.opcode {
        0x11 | 0x13 | 0x17 | 0x29 | 0x2b | 0x7f | 0xd6 | 0xe7 | 0xf7 => Write,
        0x7e if l.pp != Pp::PF3 => Write,
        // kmov to memory; vstmxcsr
        0x91 if l.wrap == Wrap::Vex => Write,
        0xae if l.ext() == 3 => Write,
        _ => Read,
    }
}

/// The class of an instruction, by its encoding alone (Intel SDM vol. 2, opcode maps).
pub fn class(l: &Layout) -> Class {
    let mem = l.has_mem();
    let plain = if mem { Class::Plain } else { Class::None };
    match (l.wrap, l.map) {
        (Wrap::Legacy, 0) => match l.opcode {
            0x50..=0x57 | 0x68 | 0x6a => Class::Push,
            0x58..=0x5f => Class::Pop,
            0x6c..=0x6f => Class::Unsupported,
            0x8d => Class::None,
            0x8f if mem => Class::PopMem,
            0x8f => Class::Pop,
            0x9a | 0xea => Class::Unsupported,
            0x9c => Class::Pushf,
            0x9d => Class::Popf,
            0xa0..=0xa3 => Class::Plain,
            0xa4 | 0xa5 => Class::Movs,
            0xa6 | 0xa7 => Class::Cmps,
            0xaa | 0xab => Class::Stos,
            0xac | 0xad => Class::Lods,
            0xae | 0xaf => Class::Scas,
            // xbegin and xabort (C6, C7 with ModRM F8) have no memory form
            0xc2 | 0xc3 => Class::Ret,
            0xc8 => Class::Enter,
            0xc9 => Class::Leave,
            0xca | 0xcb => Class::FarRet,
            0xcf => Class::Iret,
            0xd7 => Class::Xlat,
            0xe8 => Class::Call,
            0xff => match (l.ext(), mem) {
                (2, true) => Class::CallMem,
                (2, false) => Class::Call,
                (3, true) => Class::FarCallMem,
                (4, true) => Class::JmpMem,
                (5, true) => Class::FarJmpMem,
                (6, true) => Class::PushMem,
                (6, false) => Class::Push,
                _ => plain,
            },
            _ => plain,
        },
        (Wrap::Legacy, 1) => match l.opcode {
            0x01 => match (l.ext(), mem) {
                // invlpg is privileged
                (7, true) => Class::None,
                // rstorssp, setssbsy: shadow stacks
                (5, _) if l.pp == Pp::PF3 => Class::Unsupported,
                // eretu, erets (FRED), uiret
                (1, false) if l.modrm == 0xca => Class::Unsupported,
                (5, false) if l.modrm == 0xec && l.rep => Class::Unsupported,
                (7, false) if l.modrm == 0xfc => Class::Clzero,
                // pbndkb
                (0, false) if l.modrm == 0xc7 => Class::Unsupported,
                _ => plain,
            },
            // prefetches and wide nops, cldemote; bndldx and bndstx are nops without MPX, which
            // Linux has not enabled since 5.6
            0x0d | 0x18..=0x1f => Class::None,
            0xa0 | 0xa8 => Class::Push,
            0xa1 | 0xa9 => Class::Pop,
            // VIA PadLock
            0xa6 | 0xa7 => Class::Unsupported,
            0xa3 | 0xab | 0xb3 | 0xbb if mem => Class::BitString,
            0xae if mem => match (l.ext(), l.pp) {
                (4, Pp::PF3) => Class::Plain,
                (6, Pp::PF3) => Class::Unsupported,
                // clwb, clflush, clflushopt
                (6, Pp::P66) | (7, _) => Class::Flush,
                (4 | 6, _) => Class::Xsave,
                (5, _) => Class::Xrstor,
                _ => Class::Plain,
            },
            // incsspd, umonitor, umwait, fences: no access to program memory
            0xae => Class::None,
            0xc7 if mem => match l.ext() {
                1 => Class::Plain,
                4 => Class::Xsavec,
                _ => Class::Unsupported,
            },
            // ud1, ud0: raise #UD
            0xb9 | 0xff => Class::None,
            0xf7 => Class::MaskMov,
            _ => plain,
        },
        (Wrap::Legacy, 2) if mem => match (l.opcode, l.pp) {
            (0xf8, Pp::P66) => Class::Movdir64b,
            // enqcmd, enqcmds: the destination is a device portal
            (0xf8, _) => Class::Unsupported,
            // invept, invvpid, invpcid
            (0x80..=0x82, _) => Class::Unsupported,
            // wrss, wruss: shadow stack
            (0xf5, Pp::P66) => Class::Unsupported,
            (0xf6, Pp::None) => Class::Unsupported,
            _ => Class::Plain,
        },
        (Wrap::Vex, 1) if l.opcode == 0xf7 => Class::MaskMov,
        (Wrap::Vex, 2) if mem => match l.opcode {
            0x2c..=0x2f | 0x8c | 0x8e => Class::MaskedVex,
            0x90..=0x93 => Class::Gather,
            // tile configuration and tile loads and stores (AMX)
            0x49 | 0x4b => Class::Unsupported,
            _ => Class::Plain,
        },
        (Wrap::Evex, 2) if mem && matches!(l.opcode, 0x90..=0x93) => Class::Gather,
        (Wrap::Evex, 2) if mem && matches!(l.opcode, 0xa0..=0xa3) => Class::Scatter,
        // gather and scatter prefetches
        (Wrap::Evex, 2) if mem && matches!(l.opcode, 0xc6 | 0xc7) => Class::None,
        _ => plain,
    }
}
