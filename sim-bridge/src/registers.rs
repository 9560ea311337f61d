// SPDX-License-Identifier: GPL-2.0-or-later
//! The processor's registers as the `g` packet of gdb's target description `i386:x86-64`, with x87, SSE,
//! orig_rax and the segments' bases.

use unicorn_engine::RegisterX86 as R;
use unicorn_engine::Unicorn;

/// Bytes of the packet.
pub const SIZE: usize = 560;

enum Register {
    /// Size in bytes of a register that fits a number.
    Number(R, usize),
    /// Wider than a number.
    Wide(R, usize),
    /// Linux's value for user mode; cannot be changed.
    Fixed(u64, usize),
}

use Register::{Fixed, Number, Wide};

/// r8 to r15, which stand together in every order.
const NUMBERED: [R; 8] = [R::R8, R::R9, R::R10, R::R11, R::R12, R::R13, R::R14, R::R15];

/// As instructions number them (Intel SDM vol. 2, table 3-1).
pub const ENCODED: [R; 16] = {
    let old = [
        R::RAX,
        R::RCX,
        R::RDX,
        R::RBX,
        R::RSP,
        R::RBP,
        R::RSI,
        R::RDI,
    ];
    join(old, NUMBERED)
};

/// In gdb's order.
pub const GENERAL: [R; 17] = {
    let old = [
        R::RAX,
        R::RBX,
        R::RCX,
        R::RDX,
        R::RSI,
        R::RDI,
        R::RBP,
        R::RSP,
    ];
    join::<16, 1, 17>(join(old, NUMBERED), [R::RIP])
};

/// As a signal's frame has them (struct sigcontext).
pub const SIGCONTEXT: [R; 17] = {
    let old = [
        R::RDI,
        R::RSI,
        R::RBP,
        R::RBX,
        R::RDX,
        R::RAX,
        R::RCX,
        R::RSP,
        R::RIP,
    ];
    join(NUMBERED, old)
};

const fn join<const A: usize, const B: usize, const N: usize>(
    first: [R; A],
    then: [R; B],
) -> [R; N] {
    assert!(A + B == N);
    let mut all = [R::INVALID; N];
    let mut n = 0;
    while n < N {
        all[n] = if n < A { first[n] } else { then[n - A] };
        n += 1;
    }
    all
}

/// Code and stack of user mode, as Linux sets the segment registers (asm/segment.h: __USER_CS, __USER_DS).
pub const USER_CS: u64 = 0x33;
pub const USER_DS: u64 = 0x2b;

pub const ST: [R; 8] = [
    R::ST0,
    R::ST1,
    R::ST2,
    R::ST3,
    R::ST4,
    R::ST5,
    R::ST6,
    R::ST7,
];
pub const XMM: [R; 16] = [
    R::XMM0,
    R::XMM1,
    R::XMM2,
    R::XMM3,
    R::XMM4,
    R::XMM5,
    R::XMM6,
    R::XMM7,
    R::XMM8,
    R::XMM9,
    R::XMM10,
    R::XMM11,
    R::XMM12,
    R::XMM13,
    R::XMM14,
    R::XMM15,
];

fn layout() -> impl Iterator<Item = Register> {
    let segments = [USER_CS, USER_DS, 0, 0, 0, 0].map(|v| Fixed(v, 4));
    let x87 = [Number(R::FPCW, 4), Number(R::FPSW, 4), Number(R::FPTAG, 4)];
    GENERAL
        .into_iter()
        .map(|r| Number(r, 8))
        .chain([Number(R::EFLAGS, 4)])
        .chain(segments)
        .chain(ST.into_iter().map(|r| Wide(r, 10)))
        .chain(x87)
        .chain((0..5).map(|_| Fixed(0, 4)))
        .chain(XMM.into_iter().map(|r| Wide(r, 16)))
        .chain([Number(R::MXCSR, 4), Fixed(u64::MAX, 8)])
        .chain([Number(R::FS_BASE, 8), Number(R::GS_BASE, 8)])
}

pub fn read<D>(uc: &Unicorn<D>) -> Vec<u8> {
    let mut out = Vec::with_capacity(SIZE);
    for register in layout() {
        match register {
            Number(r, n) => out.extend(&uc.reg_read(r).unwrap_or(0).to_le_bytes()[..n]),
            Fixed(v, n) => out.extend(&v.to_le_bytes()[..n]),
            Wide(r, n) => {
                let value = uc.reg_read_long(r).unwrap_or_default();
                out.extend((0..n).map(|i| value.get(i).copied().unwrap_or(0)));
            }
        }
    }
    out
}

/// False: these are not so many bytes.
pub fn write<D>(uc: &mut Unicorn<D>, bytes: &[u8]) -> bool {
    if bytes.len() != SIZE {
        return false;
    }
    let mut rest = bytes;
    let mut take = |n: usize| {
        let (now, later) = rest.split_at(n);
        rest = later;
        now
    };
    let mut ok = true;
    for register in layout() {
        match register {
            Number(r, n) => {
                let mut word = [0; 8];
                word[..n].copy_from_slice(take(n));
                let value = u64::from_le_bytes(word);
                // Unchanged values are not written: some of the writes cost Unicorn its translations.
                if uc.reg_read(r).is_ok_and(|was| was != value) {
                    ok &= uc.reg_write(r, value).is_ok();
                }
            }
            Wide(r, n) => ok &= uc.reg_write_long(r, take(n)).is_ok(),
            Fixed(_, n) => _ = take(n),
        }
    }
    ok
}

#[cfg(test)]
mod tests {
    use super::*;
    use ulpf_rsp::registers::{Components, Layout};
    use unicorn_engine::unicorn_const::{Arch, Mode};

    #[test]
    fn every_order_has_all() {
        let names = |all: &[R]| {
            all.iter()
                .map(|r| *r as i32)
                .collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!((names(&ENCODED).len(), names(&GENERAL).len()), (16, 17));
        assert_eq!(names(&GENERAL), names(&SIGCONTEXT));
        assert!(names(&ENCODED).is_subset(&names(&GENERAL)) && !ENCODED.contains(&R::RIP));
        assert_eq!(
            (ENCODED[4], ENCODED[12], GENERAL[7]),
            (R::RSP, R::R12, R::RSP)
        );
        assert_eq!(
            (GENERAL[15], SIGCONTEXT[0], SIGCONTEXT[8]),
            (R::R15, R::R8, R::RDI)
        );
    }

    /// The debugger reads this layout in the target description.
    #[test]
    fn the_sizes_are_those_of_the_description() {
        let layout = Layout::new(Components::default(), true);
        let sizes: Vec<usize> = layout.registers.iter().map(|r| r.size).collect();
        let ours = super::layout().map(|r| match r {
            Number(_, n) | Wide(_, n) | Fixed(_, n) => n,
        });
        assert_eq!(ours.collect::<Vec<_>>(), sizes);
        assert_eq!(layout.size(), SIZE);
    }

    #[test]
    fn they_come_back() {
        let mut uc = Unicorn::new(Arch::X86, Mode::MODE_64).unwrap();
        let mut all = read(&uc);
        assert_eq!(all.len(), SIZE);
        // rbx; st0; xmm15
        all[8..16].copy_from_slice(&0x1122_3344_5566_7788_u64.to_le_bytes());
        all[164..174].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        all[276 + 240..276 + 256].copy_from_slice(&[7; 16]);
        assert!(write(&mut uc, &all));
        assert_eq!(uc.reg_read(R::RBX).unwrap(), 0x1122_3344_5566_7788);
        // The x87's tags follow from its registers.
        let tags = 252..256;
        all[tags.clone()].copy_from_slice(&read(&uc)[tags]);
        assert_eq!(read(&uc), all);
        assert!(!write(&mut uc, &all[1..]));
    }
}
