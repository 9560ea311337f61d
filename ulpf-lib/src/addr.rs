//! Addresses: which side of the guard they belong to is part of their type.

use core::fmt;

/// Size of one page in bytes; the grain of guards.
pub const PAGE_SIZE: u64 = 4096;

/// One past the highest address of the user half with 4-level paging (AMD64 manual, vol. 2, 5.3).
/// The last page below the hole is never mapped by Linux (`TASK_SIZE_MAX`).
pub const USER_END: u64 = 0x7fff_ffff_f000;

/// An address as the watched program knows it (its primary mapping).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct TargetAddr(pub u64);

/// An address in the always-writable second mapping of guarded memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct AliasAddr(pub u64);

impl TargetAddr {
    /// The first byte of the page that holds this address.
    pub const fn page(self) -> TargetAddr {
        TargetAddr(self.0 & !(PAGE_SIZE - 1))
    }
    /// Number of the page that holds this address.
    pub const fn page_number(self) -> u64 {
        self.0 / PAGE_SIZE
    }
    /// The address `by` bytes further up, modulo 2^64.
    pub const fn offset(self, by: u64) -> TargetAddr {
        TargetAddr(self.0.wrapping_add(by))
    }
}

impl fmt::Debug for TargetAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
impl fmt::Display for TargetAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}
impl fmt::Debug for AliasAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "alias {:#x}", self.0)
    }
}
