//! The program's heap: its address ranges.

use alloc::vec::Vec;

use super::maps::VmaKind;
use super::page_map::PROT_EXEC;
use super::thread_memory::ThreadMemory;
use super::{Guards, LARGEST_HEAP, Origin, refuse};
use crate::refusal::Refusal;

impl Guards {
    /// The ranges that hold the program's allocations, ascending: `brk` (the area below the program break) and private
    /// anonymous memory, readable or merely reserved. Excluded are code, memory that directly follows mapped file data (a
    /// .bss), and what the C library has mapped for these threads. The kernel may have merged that with the program's own
    /// mappings. (A stack that the program has allocated is its heap.)
    ///
    /// # Errors
    /// /proc/self/maps cannot be read.
    pub fn heap(
        &mut self,
        brk: (u64, u64),
        threads: &[ThreadMemory],
    ) -> Result<Vec<(u64, u64)>, Refusal> {
        self.snapshot = None;
        self.read_maps().map_err(refuse::no_maps)?;
        let vmas = self.snapshot.take().map_or(Vec::new(), |s| s.vmas);
        let mut parts: Vec<(u64, u64)> = Vec::new();
        // Mapped file data, and the anonymous memory that follows it without a gap.
        let mut data_end = 0;
        for vma in &vmas {
            if vma.shared && !self.is_file(vma) {
                continue;
            }
            let mut pieces: Vec<(u64, u64, Option<Origin>)> = Vec::new();
            if self.is_file(vma) {
                let moved = self.moved.within(vma.start, vma.end);
                pieces.extend(moved.map(|(s, e, m)| (s, e, Some(m.origin))));
            } else {
                let origin = match vma.kind {
                    VmaKind::Anonymous => Some(Origin::Anonymous),
                    VmaKind::File | VmaKind::Odd | VmaKind::OddFile => Some(Origin::File),
                    _ => None,
                };
                pieces.push((vma.start, vma.end, origin));
            }
            let not: Vec<(u64, u64)> = threads
                .iter()
                .filter_map(|t| t.of((vma.start, vma.end)))
                .collect();
            for (mut start, end, origin) in pieces {
                let Some(origin) = origin else { continue };
                if origin == Origin::File {
                    data_end = end;
                    continue;
                }
                if start == data_end && !(brk.0..brk.1).contains(&start) {
                    // The kernel may have merged .bss and heap into one mapping.
                    start = if (start..end).contains(&brk.0) {
                        brk.0
                    } else {
                        end
                    };
                    data_end = start;
                }
                let heap = origin == Origin::Anonymous
                    && vma.prot & PROT_EXEC == 0
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
        Ok(parts)
    }

    /// Whether memory of ours at `at` lies outside of our place.
    pub fn is_ours(&self, at: u64) -> bool {
        self.end_of_ours(at).is_some() || self.is_alias(at)
    }
}

fn push(parts: &mut Vec<(u64, u64)>, start: u64, end: u64) {
    match parts.last_mut() {
        Some(last) if last.1 == start => last.1 = end,
        _ => parts.push((start, end)),
    }
}
