// SPDX-License-Identifier: GPL-2.0-or-later
//! The data TLB: four ways (all, if it has fewer entries), the least recently used goes. An entry keeps
//! the user-level permission that it was filled with, whatever the user's tables say since then, until
//! SET_TLB_RO or SET_TLB_RW, or until it is filled anew. That is the thesis's incoherence.

use anyhow::{Result, ensure};

#[derive(Clone, Copy, Default)]
pub struct Entry {
    /// Page number plus one; 0: empty.
    page: u64,
    used: u64,
    pub permission: u8,
    pub write_once: bool,
}

pub struct Tlb {
    entries: Vec<Entry>,
    ways: usize,
    sets: u64,
    clock: u64,
}

impl Tlb {
    pub fn new(size: usize) -> Result<Tlb> {
        ensure!(
            size.is_power_of_two() && size <= 1 << 20,
            "a TLB has a power of two of entries, up to 2^20; not {size}"
        );
        let ways = size.min(4);
        Ok(Tlb {
            entries: vec![Entry::default(); size],
            ways,
            sets: (size / ways) as u64,
            clock: 0,
        })
    }

    fn set(&self, page: u64) -> std::ops::Range<usize> {
        let first = (page & (self.sets - 1)) as usize * self.ways;
        first..first + self.ways
    }

    /// The entry of the page, as a program's access uses it.
    pub fn find(&mut self, page: u64) -> Option<usize> {
        let set = self.set(page);
        let first = set.start;
        let at = self.entries[set].iter().position(|e| e.page == page + 1)? + first;
        self.clock += 1;
        self.entries[at].used = self.clock;
        Some(at)
    }

    pub fn fill(&mut self, page: u64, permission: u8) -> usize {
        let set = self.set(page);
        let at = set.min_by_key(|&n| self.entries[n].used).unwrap_or(0);
        self.clock += 1;
        self.entries[at] = Entry {
            page: page + 1,
            used: self.clock,
            permission,
            write_once: false,
        };
        at
    }

    pub fn entry(&mut self, at: usize) -> &mut Entry {
        &mut self.entries[at]
    }

    /// SET_TLB_RO, SET_TLB_RW: nothing where there is no entry.
    pub fn set_permission(&mut self, page: u64, permission: u8) {
        let set = self.set(page);
        if let Some(e) = self.entries[set].iter_mut().find(|e| e.page == page + 1) {
            e.permission = permission;
        }
    }

    /// The kernel's invlpg.
    pub fn forget(&mut self, page: u64) {
        let set = self.set(page);
        if let Some(e) = self.entries[set].iter_mut().find(|e| e.page == page + 1) {
            *e = Entry::default();
        }
    }

    pub fn flush(&mut self) {
        self.entries.fill(Entry::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes() {
        let mut t = Tlb::new(4).unwrap();
        for page in 0..4 {
            t.fill(page, 0);
        }
        assert!(t.find(0).is_some());
        t.fill(9, 1);
        assert!(t.find(1).is_none());
        assert!(t.find(0).is_some());
        let at = t.find(9).unwrap();
        assert_eq!(t.entry(at).permission, 1);
    }

    #[test]
    fn sizes() {
        assert!(Tlb::new(0).is_err());
        assert!(Tlb::new(3).is_err());
        let mut one = Tlb::new(1).unwrap();
        one.fill(5, 0);
        one.fill(6, 0);
        assert!(one.find(5).is_none() && one.find(6).is_some());
    }
}
