// SPDX-License-Identifier: GPL-2.0-or-later
//! The user page tables (thesis, section 3.3): three levels that the kernel keeps, as the ordinary
//! ones, and leaves of 128 bytes, two bits for each of 512 pages. A leaf lies in the user's memory (a
//! region of a PLI page), or is the machine's own, made by ULPF_OP_SET.
//!
//! ```text
//!   47      39 38      30 29      21 20      12 11     0
//!   │  PGD    │   PUD    │   PMD    │ bits 2k,  │       │
//!   │         │          │          │ 2k+1 of   │       │
//!  CR16 ──▶ frame ───▶ frame ────▶ region       │       │
//! ```

use std::collections::HashMap;

const PRESENT: u64 = 1;
const OWN: u64 = 2;
pub const REGION: u64 = 128;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaf {
    /// Address of the region in the user's memory.
    User(u64),
    /// Number of a leaf of the machine's own.
    Own(usize),
}

/// Frames of the kernel's levels, by their number; frame n has the physical address (n + 1) << 12.
#[derive(Default)]
pub struct Tables {
    frames: Vec<Box<[u64; 512]>>,
    own: Vec<[u8; REGION as usize]>,
    /// Prefix by region, so that no region governs two prefixes.
    governs: HashMap<u64, u64>,
}

impl Tables {
    /// A new, empty frame: a value for CR16.
    pub fn frame(&mut self) -> u64 {
        self.frames.push(Box::new([0; 512]));
        (self.frames.len() as u64) << 12
    }

    fn slot(&self, frame: u64, index: u64) -> Option<u64> {
        let n = (frame >> 12).checked_sub(1)? as usize;
        Some(self.frames.get(n)?[(index & 511) as usize])
    }

    fn next(&self, frame: u64, index: u64) -> Option<u64> {
        self.slot(frame, index)
            .filter(|e| e & PRESENT != 0)
            .map(|e| e & !0xfff)
    }

    /// Whatever is absent on the way ends the walk, silently.
    pub fn leaf(&self, root: u64, addr: u64) -> Option<Leaf> {
        let pud = self.next(root, addr >> 39)?;
        let pmd = self.next(pud, addr >> 30)?;
        match self.slot(pmd, addr >> 21)? {
            e if e & PRESENT == 0 => None,
            e if e & OWN != 0 => Some(Leaf::Own((e >> 7) as usize)),
            e => Some(Leaf::User(e & !(REGION - 1))),
        }
    }

    fn enter(&mut self, root: u64, addr: u64, value: u64) -> bool {
        let mut frame = root;
        for shift in [39, 30] {
            let index = addr >> shift;
            frame = match self.next(frame, index) {
                Some(next) => next,
                None => {
                    let Some(n) = (frame >> 12).checked_sub(1) else {
                        return false;
                    };
                    if n as usize >= self.frames.len() {
                        return false;
                    }
                    let next = self.frame();
                    self.frames[n as usize][(index & 511) as usize] = next | PRESENT;
                    next
                }
            };
        }
        self.frames[(frame >> 12) as usize - 1][(addr >> 21 & 511) as usize] = value;
        true
    }

    /// `sys_set_ro`: the region governs the 2 MiB around `addr`. False: CR16 holds no table.
    pub fn bind(&mut self, root: u64, addr: u64, region: u64) -> bool {
        self.unbind(root, addr);
        self.governs.insert(region, addr >> 21);
        self.enter(root, addr, region | PRESENT)
    }

    pub fn unbind(&mut self, root: u64, addr: u64) -> Option<Leaf> {
        let was = self.leaf(root, addr)?;
        if let Leaf::User(region) = was {
            self.governs.remove(&region);
        }
        self.enter(root, addr, 0);
        Some(was)
    }

    /// Regions in this memory, and the prefixes that they govern.
    pub fn regions_in(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let inside = self.governs.iter().filter(|g| (from..to).contains(g.0));
        inside.map(|(&region, &prefix)| (region, prefix)).collect()
    }

    /// The region's memory goes, its permissions stay.
    pub fn keep(&mut self, root: u64, prefix: u64, bytes: [u8; REGION as usize]) {
        self.unbind(root, prefix << 21);
        if let Some(Leaf::Own(n)) = self.leaf_or_own(root, prefix << 21) {
            self.own[n] = bytes;
        }
    }

    /// The prefix (address >> 21) that a region governs.
    pub fn governed(&self, region: u64) -> Option<u64> {
        self.governs.get(&region).copied()
    }

    /// The leaf of the prefix; made if it is absent.
    pub fn leaf_or_own(&mut self, root: u64, addr: u64) -> Option<Leaf> {
        if let Some(leaf) = self.leaf(root, addr) {
            return Some(leaf);
        }
        self.own.push([0; REGION as usize]);
        let n = self.own.len() - 1;
        self.enter(root, addr, (n as u64) << 7 | OWN | PRESENT)
            .then_some(Leaf::Own(n))
    }

    pub fn own(&mut self, n: usize) -> &mut [u8; REGION as usize] {
        &mut self.own[n]
    }

    /// The permission of the page; `read` reads a byte of the user's memory.
    pub fn walk(&self, root: u64, addr: u64, read: impl FnOnce(u64) -> Option<u8>) -> u8 {
        let Some(leaf) = self.leaf(root, addr) else {
            return 0;
        };
        let (at, shift) = bits_of(addr);
        let byte = match leaf {
            Leaf::User(region) => read(region + at).unwrap_or(0),
            Leaf::Own(n) => self.own[n][at as usize],
        };
        byte >> shift & 3
    }
}

/// Byte in the region and first bit in the byte (thesis, `modify_pli`).
pub fn bits_of(addr: u64) -> (u64, u32) {
    let bit = (addr >> 12 & 511) * 2;
    (bit / 8, (bit % 8) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_entries_end_the_walk() {
        let mut t = Tables::default();
        let none = |_| panic!("no region is there to be read");
        assert_eq!(t.walk(0, 0x1234_5678, none), 0);
        assert_eq!(t.walk(0x7000, 0x1234_5678, none), 0, "no such frame");
        let root = t.frame();
        assert_eq!(t.walk(root, 0x1234_5678, none), 0);
        assert!(!t.bind(0, 0x1234_5678, 0x9000));
        assert!(t.bind(root, 0x1234_5678, 0x9000 + 128));
        assert_eq!(t.walk(root, 0x1234_5678 + (1 << 21), none), 0);
        assert_eq!(
            t.walk(root, 0x1234_5678, |_| None),
            0,
            "the region's memory is gone"
        );
    }

    #[test]
    fn two_bits_a_page() {
        let mut t = Tables::default();
        let root = t.frame();
        t.bind(root, 0x7f00_0020_0000, 0x9000 + 31 * 128);
        let page = 0x7f00_0020_0000 + 5 * 4096;
        let walk = |t: &Tables, addr| {
            t.walk(root, addr, |at| {
                assert_eq!(at, 0x9000 + 31 * 128 + 1);
                Some(0b0000_0100)
            })
        };
        assert_eq!(walk(&t, page + 17), 1);
        assert_eq!(walk(&t, page + 4096), 0);
        assert_eq!(t.governed(0x9000 + 31 * 128), Some(0x7f00_0020_0000 >> 21));
        assert_eq!(t.unbind(root, page), Some(Leaf::User(0x9000 + 31 * 128)));
        assert_eq!(t.leaf(root, page), None);
    }

    #[test]
    fn leaves_of_the_machines_own() {
        let mut t = Tables::default();
        let root = t.frame();
        let Some(Leaf::Own(n)) = t.leaf_or_own(root, 0x40_0000) else {
            panic!()
        };
        t.own(n)[127] = 0xc0;
        assert_eq!(t.walk(root, 0x40_0000 + 511 * 4096, |_| None), 3);
    }
}
