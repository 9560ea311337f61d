//! The program's heap: its address ranges.

use alloc::vec::Vec;

use super::maps::VmaKind;
use super::page_map::{PROT_EXEC, PROT_WRITE};
use super::thread_memory::ThreadMemory;
use super::{Guards, HeapAndData, LARGEST_HEAP, Origin, os, refuse};
use crate::addr::PAGE_SIZE;
use crate::refusal::Refusal;

impl Guards {
    /// The ranges that hold the program's allocations, ascending: `brk` (the area below the program break) and private
    /// anonymous memory, readable or merely reserved. Excluded are code, .bss, and what the C library has mapped for these
    /// threads. The kernel may have merged these with the program's own mappings. (A stack that the program has allocated is
    /// its heap.)
    ///
    /// # Errors
    /// /proc/self/maps cannot be read.
    pub fn heap(
        &mut self,
        brk: (u64, u64),
        threads: &[ThreadMemory],
    ) -> Result<HeapAndData, Refusal> {
        self.snapshot = None;
        self.read_maps().map_err(refuse::no_maps)?;
        let vmas = self.snapshot.take().map_or(Vec::new(), |s| s.vmas);
        let mut parts: Vec<(u64, u64)> = Vec::new();
        let mut data: Vec<(u64, u64)> = Vec::new();
        let is_data = |prot: u8| prot & PROT_WRITE != 0 && prot & PROT_EXEC == 0;
        // Mapped file data, and the anonymous memory that follows it without a gap.
        let mut data_end = 0;
        // The file that is mapped last, and the address of its first mapping.
        let mut object = (0, 0, 0);
        // It has a mapping with code.
        let mut has_code = false;
        for vma in &vmas {
            if vma.shared && !self.is_file(vma) {
                continue;
            }
            // (Guards have changed the protection of what has moved.)
            let mut pieces: Vec<(u64, u64, Option<Origin>, u8)> = Vec::new();
            if self.is_file(vma) {
                let moved = self.moved.within(vma.start, vma.end);
                pieces.extend(moved.map(|(s, e, m)| (s, e, Some(m.origin), m.prot)));
            } else {
                let origin = match vma.kind {
                    VmaKind::Anonymous => Some(Origin::Anonymous),
                    VmaKind::File | VmaKind::Odd | VmaKind::OddFile => Some(Origin::File),
                    _ => None,
                };
                pieces.push((vma.start, vma.end, origin, vma.prot));
            }
            let not: Vec<(u64, u64)> = threads
                .iter()
                .filter_map(|t| t.of((vma.start, vma.end)))
                .collect();
            for (mut start, end, origin, prot) in pieces {
                let Some(origin) = origin else { continue };
                if origin == Origin::File {
                    data_end = end;
                    if !self.is_file(vma) && (vma.dev, vma.inode) != (object.0, object.1) {
                        object = (vma.dev, vma.inode, start);
                        has_code = false;
                    }
                    has_code |= prot & PROT_EXEC != 0;
                    // (Not of a file that the program has mapped as data.)
                    let within = || end_of_object(object.2).is_some_and(|end| start < end);
                    let is_objects = || has_code && within();
                    if is_data(prot) && !self.is_ours(start) && is_objects() {
                        push(&mut data, start, end);
                    }
                    continue;
                }
                if start == data_end && !(brk.0..brk.1).contains(&start) {
                    // The kernel may have merged .bss and heap into one mapping.
                    let bss = match end_of_object(object.2) {
                        _ if (start..end).contains(&brk.0) => brk.0,
                        Some(bss) => bss.next_multiple_of(PAGE_SIZE),
                        None => end,
                    };
                    let from = start;
                    start = bss.clamp(start, end);
                    let follows_data = data.last().is_some_and(|last| last.1 == from);
                    if is_data(prot) && from < start && follows_data && !self.is_ours(from) {
                        push(&mut data, from, start);
                    }
                    data_end = start;
                }
                let heap = origin == Origin::Anonymous
                    && prot & PROT_EXEC == 0
                    && end - start < LARGEST_HEAP
                    && !self.is_alias(start);
                while heap && start < end {
                    let thread = not.iter().find(|n| (n.0..n.1).contains(&start));
                    if let Some(stop) = self.end_of_ours(start).or(thread.map(|n| n.1)) {
                        start = stop;
                        continue;
                    }
                    let threads = not.iter().map(|n| n.0).filter(|at| *at > start);
                    let stop = threads.fold(self.next_of_ours(start, end), u64::min);
                    push(&mut parts, start, stop);
                    start = stop;
                }
            }
        }
        Ok(HeapAndData { heap: parts, data })
    }

    /// Whether memory of ours at `at` lies outside of our place.
    pub fn is_ours(&self, at: u64) -> bool {
        self.end_of_ours(at).is_some() || self.is_alias(at)
    }
}

/// Where the .bss ends of the executable or library whose first mapping begins at `base`; 0 for another file. `None`: its
/// headers cannot be read.
fn end_of_object(base: u64) -> Option<u64> {
    const MAGIC: u64 = u64::from_le_bytes(*b"\x7fELF\x02\x01\x01\0");
    const PT_LOAD: u32 = 1;
    // Elf64_Ehdr and Elf64_Phdr (elf(5)), in words.
    let mut header = [0; 8];
    let read = |words: &mut [u64], at: u64| {
        let len = size_of_val(words);
        (os::try_copy(words.as_mut_ptr() as u64, at, len as u64) == Ok(len)).then_some(())
    };
    read(&mut header, base)?;
    // (Another ABI has another last byte.)
    if header[0] << 8 != MAGIC << 8 {
        return Some(0);
    }
    let (table, count) = (header[4], header[7] & 0xffff);
    let mut headers = alloc::vec![0; 7 * count as usize];
    read(&mut headers, base.saturating_add(table))?;
    let loads = || {
        headers
            .as_chunks::<7>()
            .0
            .iter()
            .filter(|h| h[0] as u32 == PT_LOAD)
    };
    let first = loads().map(|h| h[2] & !(PAGE_SIZE - 1)).min().unwrap_or(0);
    let end = loads()
        .map(|h| h[2].saturating_add(h[5]))
        .max()
        .unwrap_or(0);
    Some(base.wrapping_sub(first).wrapping_add(end))
}

fn push(parts: &mut Vec<(u64, u64)>, start: u64, end: u64) {
    match parts.last_mut() {
        Some(last) if last.1 == start => last.1 = end,
        _ => parts.push((start, end)),
    }
}
