// SPDX-License-Identifier: GPL-2.0-or-later
//! The MMU's part of user-level page faults (thesis, Figures 3.1 and 3.4): the TLB first; where it has
//! no entry the user's tables, walked beside the ordinary ones. Whether the kernel's tables permit the
//! access is Unicorn's business, and comes first: what it refuses never gets here.

use crate::tables::Tables;
use crate::tlb::Tlb;
use crate::write_once::{Rule, WriteOnce};
use anyhow::Result;
use ulpf_lib::device::abi;

pub const RW: u8 = abi::RW as u8;
pub const RO: u8 = abi::RO as u8;
pub const EXE: u8 = abi::EXE as u8;
pub const NONE: u8 = abi::NONE as u8;

pub struct Mmu {
    /// Base of the user's tables; 0: none.
    pub cr16: u64,
    /// The address that faulted.
    pub cr17: u64,
    /// The handler; 0: none.
    pub cr18: u64,
    pub tables: Tables,
    pub tlb: Tlb,
    pub once: WriteOnce,
    /// Whether write-once is in force; without it a handler has to permit the access itself.
    pub write_once: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translation {
    pub hit: bool,
    /// The permission that forbids the access.
    pub fault: Option<u8>,
}

/// Whether the permission forbids the access. (No fetches: the model's TLB is that of data.)
pub fn forbids(permission: u8, store: bool) -> bool {
    match permission {
        RW => false,
        RO => store,
        _ => true,
    }
}

impl Mmu {
    pub fn new(tlb: usize, rule: Rule) -> Result<Mmu> {
        Ok(Mmu {
            cr16: 0,
            cr17: 0,
            cr18: 0,
            tables: Tables::default(),
            tlb: Tlb::new(tlb)?,
            once: WriteOnce::new(rule),
            write_once: true,
        })
    }

    /// Whether any access could fault.
    pub fn in_use(&self) -> bool {
        self.cr16 != 0
    }

    /// One access within one page, by the instruction at `pc`. `store` holds for the loads of
    /// read-modify-writes, too; it is asked only where a page is not open. `read` reads a byte of the
    /// user's memory.
    #[inline]
    pub fn access(
        &mut self,
        pc: u64,
        addr: u64,
        store: impl FnOnce() -> bool,
        read: impl FnOnce(u64) -> Option<u8>,
    ) -> Translation {
        let page = addr >> 12;
        let found = self.tlb.find(page);
        let at = found.unwrap_or_else(|| {
            let permission = match self.cr16 {
                0 => RW,
                root => self.tables.walk(root, addr, read),
            };
            self.tlb.fill(page, permission)
        });
        let hit = found.is_some();
        let entry = self.tlb.entry(at);
        let permission = entry.permission;
        if permission == RW || !forbids(permission, store()) {
            return Translation { hit, fault: None };
        }
        let passes = self.write_once && self.once.passes(entry, pc, addr);
        if !passes {
            self.cr17 = addr;
        }
        Translation {
            hit,
            fault: (!passes).then_some(permission),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: u64 = 0x9080;
    const PAGE: u64 = 0x7f00_0000_3000;

    fn machine() -> Mmu {
        let mut m = Mmu::new(4, Rule::Corrected).unwrap();
        m.write_once = false;
        m.cr16 = m.tables.frame();
        assert!(m.tables.bind(m.cr16, PAGE, REGION));
        m
    }

    fn store(m: &mut Mmu, region: u8, addr: u64) -> Translation {
        m.access(0x100, addr, || true, |_| Some(region))
    }

    /// Section 3.2.2: what the TLB knows is not what the tables say.
    #[test]
    fn the_tlb_is_stale_until_it_is_flushed() {
        const RO_BITS: u8 = 0b0100_0000;
        let mut m = machine();
        assert_eq!(
            store(&mut m, 0, PAGE),
            Translation {
                hit: false,
                fault: None
            }
        );
        let stale = Translation {
            hit: true,
            fault: None,
        };
        assert_eq!(
            store(&mut m, RO_BITS, PAGE),
            stale,
            "set read-only, and not told"
        );
        m.tlb.set_permission(PAGE >> 12, RO);
        assert_eq!(store(&mut m, RO_BITS, PAGE).fault, Some(RO));
        assert_eq!(m.cr17, PAGE);
        assert_eq!(
            store(&mut m, 0, PAGE).fault,
            Some(RO),
            "set read-write, and not told"
        );
        m.tlb.set_permission(PAGE >> 12, RW);
        assert_eq!(store(&mut m, 0, PAGE), stale);
        for n in 1..=4 {
            store(&mut m, 0, PAGE + (n << 21));
        }
        let refilled = store(&mut m, RO_BITS, PAGE);
        assert_eq!(
            refilled,
            Translation {
                hit: false,
                fault: Some(RO)
            }
        );
    }

    #[test]
    fn telling_of_a_page_that_is_not_there_does_nothing() {
        let mut m = machine();
        m.tlb.set_permission(PAGE >> 12, RO);
        assert_eq!(store(&mut m, 0, PAGE).fault, None);
    }

    #[test]
    fn permissions() {
        let forbidden = |p| [forbids(p, false), forbids(p, true)];
        assert_eq!(forbidden(RW), [false, false]);
        assert_eq!(forbidden(RO), [false, true]);
        assert_eq!(forbidden(EXE), [true, true]);
        assert_eq!(forbidden(NONE), [true, true]);
    }
}
