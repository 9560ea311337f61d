//! Where a function begins, by the unwind tables of its file (`.eh_frame_hdr`, which the C++ and Rust
//! run-times search in the same way). Only tables of the form that linkers write are read; without one,
//! nothing is known.

use alloc::collections::BTreeMap;
use alloc::{vec, vec::Vec};

use ulpf_lib::PAGE_SIZE;
use ulpf_lib::guard::maps::Snapshot;

use super::text;

/// The tag of the address of the string table.
pub const DT_STRTAB: u64 = 5;
/// Longer functions are not examined.
const LONGEST: u64 = 1 << 20;

pub fn bytes<const N: usize>(at: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    (text::read(at, &mut bytes) == N).then_some(bytes)
}

pub fn u32_at(at: u64) -> Option<u32> {
    bytes(at).map(u32::from_le_bytes)
}

/// Up to `len` bytes at `at`, in one read, since each is a system call.
pub fn block(at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let known = text::read(at, &mut bytes);
    bytes.truncate(known);
    bytes
}

/// Pages of the program that were read before. Without it, each small read would be a system call.
#[derive(Default)]
pub struct Pages(BTreeMap<u64, Vec<u8>>);

impl Pages {
    pub fn bytes<const N: usize>(&mut self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        let mut done = 0;
        while done < N {
            let at = at.wrapping_add(done as u64);
            let page = at & !(PAGE_SIZE - 1);
            let read = || block(page, PAGE_SIZE as usize);
            let known = self.0.entry(page).or_insert_with(read);
            let here = known
                .get((at - page) as usize..)
                .filter(|b| !b.is_empty())?;
            let n = here.len().min(N - done);
            bytes
                .get_mut(done..done + n)?
                .copy_from_slice(here.get(..n)?);
            done += n;
        }
        Some(bytes)
    }
}

/// The number at offset `at` of `bytes`.
pub fn u32_of(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..)?.first_chunk();
    field.copied().map(u32::from_le_bytes)
}

pub fn u64_of(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..)?.first_chunk();
    field.copied().map(u64::from_le_bytes)
}

/// `base` plus the signed 32-bit number at `at`.
fn relative(base: u64, at: u64) -> Option<u64> {
    Some(base.wrapping_add_signed(i64::from(u32_at(at)? as i32)))
}

/// A file that is mapped, by its program headers.
pub struct Object {
    /// Of its mappings, the first and the last.
    pub start: u64,
    pub end: u64,
    /// Address in memory less address in the file.
    pub bias: u64,
    /// Address ranges where the file is mapped, `[start, end)`.
    loads: Vec<(u64, u64)>,
    /// `.eh_frame_hdr`.
    unwind: Option<(u64, u64)>,
    /// `.dynamic`.
    dynamic: Option<(u64, u64)>,
    /// Notes.
    notes: Vec<(u64, u64)>,
}

impl Object {
    /// The file that the mapping with this number in `maps` belongs to.
    pub fn at(mut n: usize, maps: &Snapshot) -> Option<Object> {
        const PT_LOAD: u32 = 1;
        const PT_DYNAMIC: u32 = 2;
        const PT_NOTE: u32 = 4;
        const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
        let vma = maps.vmas.get(n)?;
        let file = (vma.dev, vma.inode);
        // Its first mapping has the headers.
        while let Some(v) = n.checked_sub(1).and_then(|n| maps.vmas.get(n)) {
            if (v.dev, v.inode) != file {
                break;
            }
            n -= 1;
        }
        let base = maps.vmas.get(n)?.start;
        const HEADER: usize = 56;
        let head: [u8; 64] = bytes(base)?;
        if !head.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let count = usize::from(head[56]).min(64);
        let headers = block(base.wrapping_add(u64_of(&head, 32)?), count * HEADER);
        let mut bias = None;
        let (mut loads, mut end) = (Vec::new(), base);
        let (mut unwind, mut dynamic, mut notes) = (None, None, Vec::new());
        for n in 0..count {
            let header = headers.get(n * HEADER..)?;
            let (kind, offset) = (u32_of(header, 0)?, u64_of(header, 8)?);
            let (address, len) = (u64_of(header, 16)?, u64_of(header, 40)?);
            if kind == PT_LOAD {
                if offset == 0 {
                    bias = Some(base.wrapping_sub(address & !(PAGE_SIZE - 1)));
                }
                let start = bias?.wrapping_add(address);
                loads.push((start, start.checked_add(len)?));
                end = end.max(start.checked_add(len)?);
            } else if kind == PT_GNU_EH_FRAME {
                unwind = Some((address, len));
            } else if kind == PT_DYNAMIC {
                dynamic = Some((address, len));
            } else if kind == PT_NOTE {
                notes.push(Some((address, len)));
            }
        }
        let bias = bias?;
        let mapped = |part: Option<(u64, u64)>| {
            let (at, len) = part?;
            let start = bias.wrapping_add(at);
            Some((start, start.checked_add(len)?))
        };
        Some(Object {
            start: base,
            end: end.checked_next_multiple_of(PAGE_SIZE)?,
            bias,
            loads,
            unwind: mapped(unwind),
            dynamic: mapped(dynamic),
            notes: notes.into_iter().filter_map(mapped).collect(),
        })
    }

    /// The build ID, which distinguishes the file from others of its name.
    pub fn build_id(&self) -> Option<Vec<u8>> {
        const NT_GNU_BUILD_ID: u32 = 3;
        const OWNER: &[u8] = b"GNU\0";
        const HEADER: usize = 12;
        /// Notes that are longer are not read to their end.
        const MOST: u64 = 1 << 12;
        const LONGEST: usize = 64;
        self.notes.iter().find_map(|(at, end)| {
            let notes = block(*at, (end - at).min(MOST) as usize);
            let mut notes = notes.as_slice();
            loop {
                let owner = u32_of(notes, 0)? as usize;
                let (len, kind) = (u32_of(notes, 4)? as usize, u32_of(notes, 8)?);
                let behind = HEADER.checked_add(owner.checked_next_multiple_of(4)?)?;
                let id = notes.get(behind..behind.checked_add(len)?)?;
                let usual = (1..=LONGEST).contains(&len);
                if kind == NT_GNU_BUILD_ID && notes.get(HEADER..HEADER + owner)? == OWNER && usual {
                    return Some(id.to_vec());
                }
                notes = notes.get(behind + len.checked_next_multiple_of(4)?..)?;
            }
        })
    }

    /// Values of these tags in its dynamic section.
    pub fn dynamic<const N: usize>(&self, tags: [u64; N]) -> [Option<u64>; N] {
        /// Longer sections are not read to their end.
        const MOST: u64 = 1 << 16;
        let mut found = [None; N];
        let Some((at, end)) = self.dynamic else {
            return found;
        };
        let section = block(at, end.saturating_sub(at).min(MOST) as usize);
        for entry in section.chunks_exact(16) {
            let Some((tag, value)) = u64_of(entry, 0).zip(u64_of(entry, 8)) else {
                break;
            };
            if tag == 0 {
                break;
            }
            for (_, said) in tags.iter().zip(&mut found).filter(|(of, _)| **of == tag) {
                *said = Some(value);
            }
        }
        found
    }

    /// An address of that section. The loader turns the address in the file into that in memory, but not in each object.
    pub fn loaded(&self, address: u64) -> u64 {
        match address < self.start {
            true => self.bias.wrapping_add(address),
            false => address,
        }
    }

    /// Returns whether it is a library that every program of its language has, by the name that it is linked by.
    pub fn is_runtime(&self) -> bool {
        const DT_SONAME: u64 = 14;
        /// Longer names are not theirs.
        const NAME: usize = 32;
        let [texts, name] = self.dynamic([DT_STRTAB, DT_SONAME]);
        let Some((texts, name)) = texts.zip(name) else {
            return false;
        };
        let texts = self.loaded(texts);
        let mut bytes = [0; NAME];
        let known = text::read(texts.wrapping_add(name), &mut bytes);
        let bytes = bytes.get(..known).unwrap_or_default();
        let end = bytes.iter().position(|b| *b == 0);
        end.and_then(|end| bytes.get(..end))
            .is_some_and(ulpf_lib::runtime_library::is_runtime)
    }

    /// The table of functions, `[start, end)`.
    pub fn unwind_header(&self) -> Option<(u64, u64)> {
        // Version 1; tables relative to themselves, count as it is, entries relative to the table.
        self.unwind
            .filter(|u| u.0 < u.1 && bytes(u.0) == Some([1, 0x1b, 0x03, 0x3b]))
    }

    /// Start of the data that it points to, and the end of its mapping.
    pub fn frames(&self) -> Option<(u64, u64)> {
        let field = self.unwind_header()?.0.wrapping_add(4);
        let start = relative(field, field)?;
        let load = self.loads.iter().find(|l| l.0 <= start && start < l.1)?;
        Some((start, load.1))
    }

    /// The function of this file that holds `pc`, `[start, end)`.
    pub fn function(&self, pc: u64) -> Option<(u64, u64)> {
        self.loads.iter().find(|l| l.0 <= pc && pc < l.1)?;
        let table = self.unwind_header()?.0;
        let entry = |n: u64| table.wrapping_add(12 + n * 8);
        let (mut low, mut high) = (0, u64::from(u32_at(table.wrapping_add(8))?));
        while low < high {
            let middle = (low + high) / 2;
            if relative(table, entry(middle))? <= pc {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let entry = entry(low.checked_sub(1)?);
        let start = relative(table, entry)?;
        let described = relative(table, entry.wrapping_add(4))?;
        // Length, its own origin, the function's start relative to itself, its length.
        let field = described.wrapping_add(8);
        let same = relative(field, field)? == start;
        let len = u64::from(u32_at(described.wrapping_add(12))?);
        (same && pc - start < len && len <= LONGEST).then_some((start, start + len))
    }
}

/// The first address of the function that holds `pc`.
pub fn start(pc: u64, maps: &Snapshot) -> Option<u64> {
    bounds(pc, maps).map(|function| function.0)
}

/// The function that holds `pc`, `[start, end)`.
pub fn bounds(pc: u64, maps: &Snapshot) -> Option<(u64, u64)> {
    let n = maps.index(pc);
    maps.vmas.get(n).filter(|v| v.start <= pc)?;
    Object::at(n, maps)?.function(pc)
}
