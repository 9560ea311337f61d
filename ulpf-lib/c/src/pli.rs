//! Page level indicators: the thesis's user-space permission pages (section 3.3.2, Listing "modify_pli").
//!
//! ```text
//! PLI page, 32 regions of 128 bytes                   region lookup table, one page
//!  0  free_regions:32 | prev | next                    0    virtual prefix | region
//!  1  two bits for each of 512 pages                   …
//!  …                                                   254  virtual prefix | region
//! 31                                                   255  –              | next table
//! ```
//! A virtual prefix is an address without its lowest 21 bits. A set bit in `free_regions` is a region
//! in use (the thesis has it so, whatever the name says); region 0, the head, is in use always.

use core::ptr::null_mut;

use ulpf_lib::arena::map_unlisted;
use ulpf_lib::{Guard, PageRun, TargetAddr};

const REGIONS: usize = 32;
const REGION: usize = 128;
const ENTRIES: usize = 255;
/// Address bits below a virtual prefix.
const PREFIX_SHIFT: u32 = 21;
const PAGES: u64 = 512;

/// The two bits of a page: accesses that succeed without a fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(u8)]
pub enum Permission {
    /// Everything (`USER_RW`, 0x0).
    ReadWrite = 0,
    /// Reads; writes are reported (`USER_RO`, 0x1).
    ReadOnly = 1,
    /// Execution only; reads and writes are reported (`USER_EXE`, 0x10).
    Execute = 2,
    /// Writes; reads are reported: the encoding that the thesis leaves free (`USER_WO`, 0x11).
    WriteOnly = 3,
}

impl Permission {
    /// From the thesis's values (Listing 3.4), which write the two bits as hexadecimal digits.
    pub fn from_value(value: i32) -> Option<Permission> {
        Some(match value {
            0x0 => Permission::ReadWrite,
            0x1 => Permission::ReadOnly,
            0x10 => Permission::Execute,
            0x11 => Permission::WriteOnly,
            _ => return None,
        })
    }
    /// From the lowest two bits, as PLIs hold them.
    pub fn from_bits(bits: u8) -> Permission {
        match bits & 3 {
            0 => Permission::ReadWrite,
            1 => Permission::ReadOnly,
            2 => Permission::Execute,
            _ => Permission::WriteOnly,
        }
    }
    /// The permission of a page that holds ranges of both.
    pub fn and(self, other: Permission) -> Permission {
        match (self, other) {
            (Permission::ReadWrite, p) | (p, Permission::ReadWrite) => p,
            (a, b) if a == b => a,
            _ => Permission::Execute,
        }
    }
    fn guard(self) -> Option<Guard> {
        match self {
            Permission::ReadWrite => None,
            Permission::ReadOnly => Some(Guard::NoWrite),
            Permission::Execute | Permission::WriteOnly => Some(Guard::NoAccess),
        }
    }
}

#[repr(C)]
struct Head {
    free_regions: u32,
    pad: u32,
    prev: *mut PliPage,
    next: *mut PliPage,
    rest: [u8; REGION - 24],
}

#[repr(C)]
struct PliPage {
    head: Head,
    regions: [[u8; REGION]; REGIONS - 1],
}

#[repr(C)]
struct Table {
    entries: [(u64, *mut [u8; REGION]); ENTRIES],
    pad: u64,
    next: *mut Table,
}

const _: () = assert!(size_of::<PliPage>() == 4096 && size_of::<Table>() == 4096);

/// Both structures. The changer's alone.
pub struct Plis {
    first: *mut PliPage,
    tables: *mut Table,
}

// SAFETY: only the changer touches it.
unsafe impl Send for Plis {}

impl Plis {
    pub const fn new() -> Plis {
        Plis {
            first: null_mut(),
            tables: null_mut(),
        }
    }

    /// The region that holds the permissions around `addr`, if there is one.
    pub fn check_virt_prefix(&self, addr: u64) -> Option<*mut [u8; REGION]> {
        self.entries()
            .find(|&(prefix, _)| prefix == addr >> PREFIX_SHIFT)
            .map(|(_, region)| region)
    }

    fn entries(&self) -> impl Iterator<Item = (u64, *mut [u8; REGION])> + '_ {
        let mut table = self.tables;
        let mut at = 0;
        core::iter::from_fn(move || {
            loop {
                // SAFETY: tables live as long as we do.
                let t = unsafe { table.as_ref()? };
                let entry = t.entries.get(at).copied().filter(|e| !e.1.is_null());
                at += 1;
                if entry.is_some() {
                    return entry;
                }
                (table, at) = (t.next, 0);
            }
        })
    }

    /// The region around `addr`, made if needed. `None` without memory.
    pub fn region(&mut self, addr: u64) -> Option<*mut [u8; REGION]> {
        if let Some(region) = self.check_virt_prefix(addr) {
            return Some(region);
        }
        let region = self.allocate()?;
        // SAFETY: tables and pages live as long as we do; no other references exist.
        unsafe {
            let mut link = &raw mut self.tables;
            loop {
                if (*link).is_null() {
                    *link = map_unlisted(4096).cast();
                    if (*link).is_null() {
                        return None;
                    }
                }
                let table = *link;
                if let Some(free) = (*table).entries.iter_mut().find(|e| e.1.is_null()) {
                    *free = (addr >> PREFIX_SHIFT, region);
                    return Some(region);
                }
                link = &raw mut (*table).next;
            }
        }
    }

    fn allocate(&mut self) -> Option<*mut [u8; REGION]> {
        let mut page = self.first;
        // SAFETY: as above.
        unsafe {
            while !page.is_null() && (*page).head.free_regions == u32::MAX {
                page = (*page).head.next;
            }
            if page.is_null() {
                page = map_unlisted(4096).cast();
                if page.is_null() {
                    return None;
                }
                (*page).head.free_regions = 1;
                (*page).head.next = self.first;
                if let Some(first) = self.first.as_mut() {
                    first.head.prev = page;
                }
                self.first = page;
            }
            let n = (*page).head.free_regions.trailing_ones();
            (*page).head.free_regions |= 1 << n;
            Some(&raw mut (*page).regions[n as usize - 1])
        }
    }

    /// Whether this is the base of a region in use.
    pub fn knows(&self, region: u64) -> Option<u64> {
        self.entries().find(|e| e.1 as u64 == region).map(|e| e.0)
    }

    /// Permission of the page that holds `addr`.
    pub fn get(&self, addr: u64) -> Permission {
        self.check_virt_prefix(addr)
            .map_or(Permission::ReadWrite, |region| {
                let bit = (addr >> 12 & (PAGES - 1)) << 1;
                // SAFETY: 128 bytes hold 512 pages.
                Permission::from_bits(unsafe { (*region)[(bit >> 3) as usize] } >> (bit & 7))
            })
    }

    /// Guards that all regions require, ascending.
    pub fn wanted(&self) -> Vec<PageRun> {
        let mut entries: Vec<_> = self.entries().collect();
        entries.sort_unstable();
        let mut runs: Vec<PageRun> = Vec::new();
        for (prefix, region) in entries {
            // SAFETY: as above.
            let bytes = unsafe { &*region };
            for (i, &byte) in bytes.iter().enumerate().filter(|(_, b)| **b != 0) {
                for n in 0..4 {
                    let Some(guard) = Permission::from_bits(byte >> (2 * n)).guard() else {
                        continue;
                    };
                    let start = (prefix << PREFIX_SHIFT) + ((i as u64 * 4 + n) << 12);
                    match runs.last_mut() {
                        Some(last) if last.end.0 == start && last.guard == guard => {
                            last.end = TargetAddr(start + 4096)
                        }
                        _ => runs.push(PageRun {
                            start: TargetAddr(start),
                            end: TargetAddr(start + 4096),
                            guard,
                        }),
                    }
                }
            }
        }
        runs
    }

    /// All permissions back to `ReadWrite`.
    pub fn clear(&mut self) {
        let regions: Vec<_> = self.entries().map(|e| e.1).collect();
        for region in regions {
            // SAFETY: as above.
            unsafe { *region = [0; REGION] };
        }
    }
}

/// Listing "modify_pli": the two bits of the page of `addr`, in the region at `region`. One store.
///
/// # Safety
/// `region` is a region's base.
pub unsafe fn modify_pli(addr: u64, permission: Permission, region: *mut [u8; REGION]) {
    let bit = (addr >> 12 & (PAGES - 1)) << 1;
    let shift = bit & 7;
    // SAFETY: the caller's promise; 512 pages have 128 bytes.
    unsafe {
        let byte = &mut (*region)[(bit >> 3) as usize];
        *byte = *byte & !(3 << shift) | (permission as u8) << shift;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_the_thesis_s() {
        let mut p = Plis::new();
        assert_eq!(p.check_virt_prefix(0x1234_5678_9000), None);
        let region = p.region(0x1234_5678_9000).unwrap();
        assert_eq!(region as u64 % 128, 0);
        assert_eq!(p.check_virt_prefix(0x1234_5660_0000), Some(region));
        assert_ne!(region as u64 % 4096, 0, "region 0 is the head");
        // SAFETY: a region.
        unsafe { modify_pli(0x1234_5678_9000, Permission::ReadOnly, region) };
        // Page 0x189 of 512: bits 0x312 and 0x313, that is bit 2 of byte 0x62.
        // SAFETY: as above.
        assert_eq!(unsafe { (*region)[0x62] }, 1 << 2);
        assert_eq!(p.get(0x1234_5678_9fff), Permission::ReadOnly);
        assert_eq!(p.get(0x1234_5678_a000), Permission::ReadWrite);
    }

    #[test]
    fn pages_fill_up_and_link_both_ways() {
        let mut p = Plis::new();
        for i in 0..62u64 {
            p.region(i << PREFIX_SHIFT).unwrap();
        }
        // SAFETY: two pages in a list.
        unsafe {
            let first = &*p.first;
            let second = &*first.head.next;
            assert_eq!(
                (first.head.free_regions, second.head.free_regions),
                (u32::MAX, u32::MAX)
            );
            assert_eq!(second.head.prev, p.first);
            assert!(first.head.prev.is_null() && second.head.next.is_null());
        }
        p.region(62 << PREFIX_SHIFT).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { (*p.first).head.free_regions }, 0b11);
    }

    #[test]
    fn the_table_goes_on_on_another_page() {
        let mut p = Plis::new();
        let bases: Vec<_> = (0..600u64)
            .map(|i| p.region(i << PREFIX_SHIFT).unwrap())
            .collect();
        for (i, &base) in bases.iter().enumerate() {
            assert_eq!(p.check_virt_prefix((i as u64) << PREFIX_SHIFT), Some(base));
        }
        // SAFETY: tables of a list.
        unsafe {
            assert!(!(*p.tables).next.is_null() && (*(*(*p.tables).next).next).next.is_null())
        };
        assert_eq!(p.entries().count(), 600);
    }

    #[test]
    fn runs_merge_across_prefixes() {
        let mut p = Plis::new();
        for page in 510..514u64 {
            let region = p.region(page << 12).unwrap();
            // SAFETY: a region.
            unsafe { modify_pli(page << 12, Permission::ReadOnly, region) };
        }
        let region = p.region(514 << 12).unwrap();
        // SAFETY: a region.
        unsafe { modify_pli(514 << 12, Permission::WriteOnly, region) };
        let runs: Vec<_> = p
            .wanted()
            .iter()
            .map(|r| (r.start.0 >> 12, r.end.0 >> 12, r.guard))
            .collect();
        assert_eq!(
            runs,
            [(510, 514, Guard::NoWrite), (514, 515, Guard::NoAccess)]
        );
    }
}
