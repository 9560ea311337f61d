// SPDX-License-Identifier: GPL-2.0-or-later
//! The program's address space: what is mapped where, on top of Unicorn's memory.

use std::collections::BTreeMap;
use unicorn_engine::unicorn_const::Prot;
use unicorn_engine::{Unicorn, uc_error};

pub const PAGE: u64 = 4096;
const BOTTOM: u64 = 0x7f00_0000_0000;
pub const STACK_TOP: u64 = 0x7fff_ff00_0000;
pub const STACK: u64 = 8 << 20;
/// User addresses end here.
pub const USER_END: u64 = 0x7fff_ffff_f000;
/// All that a program may map at once.
const LIMIT: u64 = 16 << 30;

pub fn up(n: u64) -> Option<u64> {
    n.checked_next_multiple_of(PAGE)
}

/// Linux's PROT_* (read 1, write 2, execute 4) are Unicorn's.
fn prot(linux: u64) -> Prot {
    Prot((linux & 7) as _)
}

/// A mapping of the device's store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shared {
    pub guarded: bool,
}

#[derive(Default)]
pub struct Space {
    /// End and, for the device's mappings, what they are, by start.
    maps: BTreeMap<u64, (u64, Option<Shared>)>,
    used: u64,
    pub brk_start: u64,
    pub brk: u64,
}

impl Space {
    fn overlapping(&self, from: u64, to: u64) -> Vec<(u64, u64, Option<Shared>)> {
        self.maps
            .range(..to)
            .filter(|(_, m)| m.0 > from)
            .map(|(&start, &(end, shared))| (start, end, shared))
            .collect()
    }

    pub fn is_mapped(&self, from: u64, len: u64) -> bool {
        let Some(to) = from.checked_add(len) else {
            return false;
        };
        let covered: u64 = self
            .overlapping(from, to)
            .iter()
            .map(|&(s, e, _)| e.min(to) - s.max(from))
            .sum();
        covered == len
    }

    /// Is all of it a guarded mapping of the device?
    pub fn is_guarded(&self, from: u64, len: u64) -> bool {
        self.is_mapped(from, len)
            && self
                .overlapping(from, from + len)
                .iter()
                .all(|m| m.2.is_some_and(|s| s.guarded))
    }

    /// Would a change of this range cut a mapping of the device in two? (Unicorn would copy its memory.)
    pub fn cuts_shared(&self, from: u64, len: u64) -> bool {
        self.overlapping(from, from.saturating_add(len))
            .iter()
            .any(|&(start, end, shared)| shared.is_some() && (start < from || end > from + len))
    }

    /// Room for a mapping; the first gap that is wide enough.
    pub fn room(&self, len: u64) -> Option<u64> {
        let mut at = BOTTOM;
        for (&start, &(end, _)) in self.maps.range(BOTTOM..) {
            if start.checked_sub(at)? >= len {
                return Some(at);
            }
            at = end;
        }
        (STACK_TOP - STACK)
            .checked_sub(at)
            .filter(|&gap| gap >= len)
            .map(|_| at)
    }

    pub fn fits(&self, at: u64, len: u64) -> bool {
        at >= PAGE
            && at.checked_add(len).is_some_and(|end| end <= USER_END)
            && self.used + len <= LIMIT
    }

    fn note(&mut self, at: u64, len: u64, shared: Option<Shared>) {
        self.maps.insert(at, (at + len, shared));
        self.used += len;
    }

    pub fn map<D>(
        &mut self,
        uc: &mut Unicorn<D>,
        at: u64,
        len: u64,
        protection: u64,
    ) -> Result<(), uc_error> {
        self.unmap(uc, at, len)?;
        uc.mem_map(at, len, prot(protection))?;
        self.note(at, len, None);
        Ok(())
    }

    /// # Safety
    /// `host` is `len` bytes that outlive the machine.
    pub unsafe fn map_host<D>(
        &mut self,
        uc: &mut Unicorn<D>,
        at: u64,
        len: u64,
        protection: u64,
        host: *mut u8,
        shared: Shared,
    ) -> Result<(), uc_error> {
        self.unmap(uc, at, len)?;
        // SAFETY: our caller's promise.
        unsafe { uc.mem_map_ptr(at, len, prot(protection), host.cast())? };
        self.note(at, len, Some(shared));
        Ok(())
    }

    pub fn unmap<D>(&mut self, uc: &mut Unicorn<D>, at: u64, len: u64) -> Result<(), uc_error> {
        for (start, end, shared) in self.overlapping(at, at + len) {
            let (from, to) = (start.max(at), end.min(at + len));
            uc.mem_unmap(from, to - from)?;
            self.maps.remove(&start);
            self.used -= to - from;
            if start < from {
                self.maps.insert(start, (from, shared));
            }
            if to < end {
                self.maps.insert(to, (end, shared));
            }
        }
        Ok(())
    }

    pub fn protect<D>(
        &mut self,
        uc: &mut Unicorn<D>,
        at: u64,
        len: u64,
        protection: u64,
    ) -> Result<(), uc_error> {
        uc.mem_protect(at, len, prot(protection))
    }

    pub fn set_brk<D>(&mut self, uc: &mut Unicorn<D>, to: u64) -> u64 {
        let (Some(old), Some(new)) = (up(self.brk), up(to)) else {
            return self.brk;
        };
        if to < self.brk_start || to > self.brk_start + (4 << 30) {
            return self.brk;
        }
        let done = match new > old {
            true => {
                self.overlapping(old, new).is_empty()
                    && self.fits(old, new - old)
                    && self.map(uc, old, new - old, 3).is_ok()
            }
            false => new == old || self.unmap(uc, new, old - new).is_ok(),
        };
        if done {
            self.brk = to;
        }
        self.brk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicorn_engine::unicorn_const::{Arch, Mode};

    #[test]
    fn mappings_split_and_leave_room() {
        let mut uc = Unicorn::new(Arch::X86, Mode::MODE_64).unwrap();
        let mut s = Space::default();
        let at = s.room(4 * PAGE).unwrap();
        s.map(&mut uc, at, 4 * PAGE, 3).unwrap();
        assert!(s.is_mapped(at, 4 * PAGE) && !s.is_mapped(at, 5 * PAGE));
        s.unmap(&mut uc, at + PAGE, PAGE).unwrap();
        assert!(
            s.is_mapped(at, PAGE)
                && !s.is_mapped(at, 2 * PAGE)
                && s.is_mapped(at + 2 * PAGE, 2 * PAGE)
        );
        assert_eq!(s.room(PAGE), Some(at + PAGE));
        assert_eq!(s.room(2 * PAGE), Some(at + 4 * PAGE));
        assert!(!s.is_mapped(u64::MAX - 10, 100));
        assert_eq!(s.used, 3 * PAGE);
    }

    #[test]
    fn the_break() {
        let mut uc = Unicorn::new(Arch::X86, Mode::MODE_64).unwrap();
        let mut s = Space {
            brk_start: 0x50_0000,
            brk: 0x50_0000,
            ..Space::default()
        };
        assert_eq!(s.set_brk(&mut uc, 0), 0x50_0000);
        assert_eq!(s.set_brk(&mut uc, 0x50_1800), 0x50_1800);
        assert!(s.is_mapped(0x50_0000, 0x2000));
        assert_eq!(s.set_brk(&mut uc, 0x50_0800), 0x50_0800);
        assert!(!s.is_mapped(0x50_0000, 0x2000));
        assert_eq!(s.set_brk(&mut uc, u64::MAX), 0x50_0800);
    }
}
