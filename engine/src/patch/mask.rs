//! Loads with an opmask: `vpcmpneqb (%rdi),%ymm18,%k1{%k2}`, with which C libraries compare what is no whole vector.
//! Only what the mask selects is read: pages are looked up for the whole operand, bits for the bytes that are selected,
//! and each stretch of these is a hit.

use core::mem::offset_of;

use ulpf_lib::AccessKind;
use ulpf_lib::ring::Area;

use super::asm::{Asm, R11, RCX};
use super::types::Phase;
use super::writer::Writer;
use crate::access::{Class, Insn};

/// The mask that selects the elements a load reads.
#[derive(Clone, Copy)]
pub struct Mask {
    /// k1 to k7.
    register: u8,
    /// Bytes of an element: 1, 2, 4 or 8.
    element: u64,
    /// Bytes of the operand, up to 64.
    size: u64,
}

impl Mask {
    /// `None`: it is no such load.
    pub fn of(insn: &Insn) -> Option<Mask> {
        let (element, size) = (insn.element(), u64::from(insn.mem.size));
        let loads = insn.class == Class::MaskedEvex && insn.mem.kind == AccessKind::Read;
        let whole = element.is_power_of_two() && element <= 8 && size <= 64;
        (loads && whole && size >= element).then_some(Mask {
            register: insn.layout.aaa,
            element,
            size,
        })
    }

    fn lanes(self) -> u64 {
        self.size / self.element
    }

    /// `rcx` gets the mask, a bit for each element; changes `b`.
    pub fn elements(self, asm: &mut Asm, b: u8) {
        self.spread(asm, b, 1);
    }

    /// The same, a bit for each byte.
    pub fn bytes(self, asm: &mut Asm, b: u8) {
        self.spread(asm, b, self.element);
        if self.element >= 2 {
            asm.add_scaled(RCX, RCX, 2); // times 3
        }
        if self.element >= 4 {
            asm.add_scaled(RCX, RCX, 4); // times 15
        }
        if self.element == 8 {
            asm.lea(b, RCX, 0);
            asm.add_scaled(b, b, 1);
            asm.add_scaled(RCX, b, 8); // times 255
        }
    }

    /// `rcx` gets the mask's bits, `by` apart.
    fn spread(self, asm: &mut Asm, b: u8, by: u64) {
        let wide = self.lanes() > 16; // for which it takes AVX512BW, and has it
        asm.rcx_from_mask(self.register, wide);
        let places = (0..self.lanes()).fold(0, |all, n| all | 1u64 << (n * by));
        if places != u64::MAX {
            asm.constant(b, places);
            asm.deposit(RCX, RCX, b);
        }
    }

    /// Counts the hits of a load from a page with one watch, whose number is in rcx: as many as there are stretches.
    /// From then on [`Phase::Runs`] holds.
    pub fn count(self, w: &mut Writer, b: u8) -> Option<()> {
        w.asm.save(offset_of!(Area, tally), RCX);
        w.asm.save(offset_of!(Area, r11), R11);
        w.mark(Phase::Saved);
        let asm = &mut w.asm;
        self.elements(asm, b);
        // Those behind none.
        asm.lea(R11, RCX, 0);
        asm.add_scaled(RCX, RCX, 1);
        asm.not_rcx();
        asm.extract(R11, R11, RCX);
        asm.extract(R11, R11, R11);
        asm.constant(b, 0);
        let next = asm.here();
        asm.lea(RCX, R11, 0);
        let done = asm.jrcxz();
        asm.lea(b, b, 1);
        asm.ecx(1);
        asm.shift_by(false, R11, R11, RCX);
        let from = asm.jmp();
        asm.aim(from, next)?;
        asm.aim_short(done)?;
        asm.save(offset_of!(Area, value), b);
        asm.load(RCX, offset_of!(Area, tally));
        asm.add_at_rcx(offset_of!(Area, hits), R11, b);
        w.mark(Phase::Closer);
        w.asm.load(R11, offset_of!(Area, r11));
        Some(())
    }
}
