// SPDX-License-Identifier: GPL-2.0-or-later
//! The program's address space: what is mapped where, on top of Unicorn's memory.

use std::collections::BTreeMap;
use unicorn_engine::unicorn_const::Prot;
use unicorn_engine::{Unicorn, uc_error};

pub const PAGE: u64 = 4096;
const EXECUTE: u8 = 4;
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

/// Linux's PROT_* (read 1, write 2, execute 4), as x86's page tables have it: what can be executed or
/// written can be read.
fn effective(linux: u64) -> u8 {
    let asked = linux as u8 & 7;
    asked | u8::from(asked != 0)
}

/// Unicorn has the same bits.
fn prot(linux: u8) -> Prot {
    Prot(linux.into())
}

/// Memory behind a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// The program's own.
    Private,
    /// Shared with forked children.
    Shared,
    /// The store of this space of the device, guarded: from this byte on.
    Guarded(u32, u64),
    /// Such a space's: its store as an alias, PLI pages.
    Device(u32),
    /// Its ring, which cannot be made writable.
    Ring(u32),
}

#[derive(Clone, Copy)]
struct Map {
    end: u64,
    backing: Backing,
    /// Linux's PROT_*.
    protection: u8,
    /// Memory of this process behind it. (Unicorn's own would be copied whenever it is cut.)
    host: Option<usize>,
}

fn new_memory(len: u64, flags: i32) -> Result<*mut u8, uc_error> {
    // SAFETY: a new mapping without other references.
    let host = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len as usize,
            3,
            flags | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    match host == libc::MAP_FAILED {
        true => Err(uc_error::NOMEM),
        false => Ok(host.cast()),
    }
}

/// The part of a mapping from `from` on, which begins at `start`.
fn tail(m: Map, start: u64, from: u64) -> Map {
    let skipped = from - start;
    Map {
        backing: match m.backing {
            Backing::Guarded(id, x) => Backing::Guarded(id, x + skipped),
            other => other,
        },
        host: m.host.map(|h| h + skipped as usize),
        ..m
    }
}

#[derive(Default)]
pub struct Space {
    maps: BTreeMap<u64, Map>,
    used: u64,
    pub brk_start: u64,
    pub brk: u64,
    /// Translations of code may be of what is not there any more.
    pub stale_code: bool,
}

impl Space {
    fn overlapping(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, Map)> + use<'_> {
        let first = self
            .maps
            .range(..=from)
            .next_back()
            .map_or(from, |(&start, _)| start);
        self.maps
            .range(first..to.max(first))
            .filter(move |(_, m)| m.end > from)
            .map(|(&start, &m)| (start, m))
    }

    fn covered(&self, from: u64, len: u64, wanted: impl Fn(&Map) -> bool) -> bool {
        let Some(to) = from.checked_add(len) else {
            return false;
        };
        let covered: u64 = self
            .overlapping(from, to)
            .filter(|(_, m)| wanted(m))
            .map(|(start, m)| m.end.min(to) - start.max(from))
            .sum();
        covered == len
    }

    pub fn is_mapped(&self, from: u64, len: u64) -> bool {
        self.covered(from, len, |_| true)
    }

    /// Whether the program may access all of it in this way (PROT_*).
    pub fn permits(&self, from: u64, len: u64, what: u8) -> bool {
        self.covered(from, len, |m| m.protection & what == what)
    }

    /// Whether the program may execute some of it.
    pub fn may_hold_code(&self, at: u64, len: u64) -> bool {
        self.overlapping(at, at.saturating_add(len))
            .any(|(_, m)| m.protection & EXECUTE != 0)
    }

    /// As /proc/self/maps tells it; device and inode of a space's store are asked for.
    pub fn listing(&self, store: impl Fn(u32) -> (u64, u64)) -> String {
        let mut text = String::new();
        for (&from, m) in &self.maps {
            let may = |bit, letter| if m.protection & bit != 0 { letter } else { '-' };
            let (device, inode) = match m.backing {
                Backing::Guarded(id, _) | Backing::Device(id) => store(id),
                _ => (0, 0),
            };
            let (shared, offset, name) = match m.backing {
                Backing::Private if from == STACK_TOP - STACK => ('p', 0, "[stack]"),
                Backing::Private if (self.brk_start..self.brk).contains(&from) => {
                    ('p', 0, "[heap]")
                }
                Backing::Private => ('p', 0, ""),
                Backing::Shared => ('s', 0, ""),
                Backing::Guarded(_, x) => ('s', x, "/dev/ulpf"),
                Backing::Device(_) => ('s', 1 << 60, "/dev/ulpf"),
                Backing::Ring(_) => ('s', 3 << 60, "/dev/ulpf"),
            };
            text += &format!(
                "{from:x}-{:x} {}{}{}{shared} {offset:08x} {:02x}:{:02x} {inode} {name}\n",
                m.end,
                may(1, 'r'),
                may(2, 'w'),
                may(4, 'x'),
                libc::major(device),
                libc::minor(device),
            );
        }
        text
    }

    /// MADV_DONTNEED: the program's own memory there reads as zero.
    pub fn give_back(&self, from: u64, to: u64) {
        for (start, m) in self.overlapping(from, to) {
            let (at, end) = (start.max(from), m.end.min(to));
            if m.backing == Backing::Private
                && let Some(host) = tail(m, start, at).host
            {
                let host = std::ptr::with_exposed_provenance_mut::<libc::c_void>(host);
                // SAFETY: private memory of ours without other references.
                unsafe { libc::madvise(host, (end - at) as usize, libc::MADV_DONTNEED) };
            }
        }
    }

    /// The space of the device that guards this byte, if any.
    pub fn guarded_by(&self, at: u64) -> Option<u32> {
        let (_, m) = self.overlapping(at, at.saturating_add(1)).next()?;
        match m.backing {
            Backing::Guarded(id, _) => Some(id),
            _ => None,
        }
    }

    /// Whether all of it is guarded mapping of this space.
    pub fn is_guarded_by(&self, id: u32, from: u64, len: u64) -> bool {
        self.covered(
            from,
            len,
            |m| matches!(m.backing, Backing::Guarded(by, _) if by == id),
        )
    }

    /// Whether this space of the device has any mapping.
    pub fn is_used_by(&self, id: u32) -> bool {
        self.maps.values().any(|m| {
            matches!(m.backing,
                Backing::Guarded(by, _) | Backing::Device(by) | Backing::Ring(by) if by == id)
        })
    }

    /// Whether some of it is the device's.
    pub fn has_device(&self, from: u64, len: u64) -> bool {
        self.overlapping(from, from.saturating_add(len))
            .any(|(_, m)| {
                matches!(
                    m.backing,
                    Backing::Guarded(..) | Backing::Device(_) | Backing::Ring(_)
                )
            })
    }

    /// The mappings in a range: start, end and backing of each part.
    pub fn parts(&self, from: u64, len: u64) -> Vec<(u64, u64, Backing)> {
        let to = from.saturating_add(len);
        self.overlapping(from, to)
            .map(|(start, m)| (start.max(from), m.end.min(to), m.backing))
            .collect()
    }

    /// Room for a mapping: the first hole that is wide enough.
    pub fn find_hole(&self, len: u64) -> Option<u64> {
        let mut at = BOTTOM;
        for (&start, &Map { end, .. }) in self.maps.range(BOTTOM..) {
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

    fn note(&mut self, at: u64, len: u64, backing: Backing, protection: u64, host: Option<usize>) {
        let map = Map {
            end: at + len,
            backing,
            protection: effective(protection),
            host,
        };
        self.maps.insert(at, map);
        self.used += len;
    }

    pub fn map<D>(
        &mut self,
        uc: &mut Unicorn<D>,
        at: u64,
        len: u64,
        protection: u64,
    ) -> Result<(), uc_error> {
        let host = new_memory(len, libc::MAP_PRIVATE | libc::MAP_NORESERVE)?;
        // SAFETY: it goes when the machine has let it go (`unmap`).
        unsafe { self.map_host(uc, at, len, protection, host, Backing::Private) }
    }

    /// Memory that forked children share.
    pub fn map_shared<D>(
        &mut self,
        uc: &mut Unicorn<D>,
        at: u64,
        len: u64,
        protection: u64,
    ) -> Result<(), uc_error> {
        let host = new_memory(len, libc::MAP_SHARED)?;
        // SAFETY: it is never unmapped.
        unsafe { self.map_host(uc, at, len, protection, host, Backing::Shared) }
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
        backing: Backing,
    ) -> Result<(), uc_error> {
        self.unmap(uc, at, len)?;
        // SAFETY: our caller's promise.
        unsafe { uc.mem_map_ptr(at, len, prot(effective(protection)), host.cast())? };
        self.note(at, len, backing, protection, Some(host.addr()));
        Ok(())
    }

    /// Unicorn would copy memory of ours that it has to cut in two: so it gets the parts anew.
    fn cut<D>(&mut self, uc: &mut Unicorn<D>, at: u64) -> Result<(), uc_error> {
        let Some((&start, &m)) = self.maps.range(..at).next_back() else {
            return Ok(());
        };
        if m.end <= at {
            return Ok(());
        }
        let second = tail(m, start, at);
        if let (Some(one), Some(two)) = (m.host, second.host) {
            uc.mem_unmap(start, m.end - start)?;
            let protection = prot(m.protection);
            for (from, to, host) in [(start, at, one), (at, m.end, two)] {
                // SAFETY: the parts of what was mapped.
                unsafe {
                    let host = std::ptr::with_exposed_provenance_mut(host);
                    uc.mem_map_ptr(from, to - from, protection, host)?;
                }
            }
        }
        self.maps.insert(start, Map { end: at, ..m });
        self.maps.insert(at, second);
        Ok(())
    }

    pub fn unmap<D>(&mut self, uc: &mut Unicorn<D>, at: u64, len: u64) -> Result<(), uc_error> {
        self.cut(uc, at)?;
        self.cut(uc, at + len)?;
        let gone: Vec<_> = self.overlapping(at, at + len).collect();
        for (start, m) in gone {
            uc.mem_unmap(start, m.end - start)?;
            if m.backing == Backing::Private
                && let Some(host) = m.host
            {
                let host = std::ptr::with_exposed_provenance_mut::<libc::c_void>(host);
                // SAFETY: memory of `map`, which the machine has just let go.
                unsafe { libc::munmap(host, (m.end - start) as usize) };
            }
            self.maps.remove(&start);
            self.used -= m.end - start;
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
        self.cut(uc, at)?;
        self.cut(uc, at + len)?;
        let changed: Vec<_> = self.overlapping(at, at + len).map(|o| o.0).collect();
        for start in changed {
            if let Some(m) = self.maps.get_mut(&start) {
                let now = effective(protection);
                self.stale_code |= m.protection & EXECUTE != 0 && now & EXECUTE == 0;
                m.protection = now;
                uc.mem_protect(start, m.end - start, prot(now))?;
            }
        }
        Ok(())
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
                self.overlapping(old, new).next().is_none()
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
        let at = s.find_hole(4 * PAGE).unwrap();
        s.map(&mut uc, at, 4 * PAGE, 3).unwrap();
        assert!(s.is_mapped(at, 4 * PAGE) && !s.is_mapped(at, 5 * PAGE));
        s.unmap(&mut uc, at + PAGE, PAGE).unwrap();
        assert!(
            s.is_mapped(at, PAGE)
                && !s.is_mapped(at, 2 * PAGE)
                && s.is_mapped(at + 2 * PAGE, 2 * PAGE)
        );
        assert_eq!(s.find_hole(PAGE), Some(at + PAGE));
        assert_eq!(s.find_hole(2 * PAGE), Some(at + 4 * PAGE));
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
