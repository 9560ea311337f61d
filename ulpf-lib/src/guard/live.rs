//! Guards of a process that watches itself (`libulpf`): its threads are not parked while pages move.
//!
//! The guard itself holds writers back. A page loses its write permission before it is copied, so a writer faults. The
//! caller's fault handler then waits until the change is over and lets the instruction run again. Readers notice nothing:
//! the replacement page holds the same bytes and is mapped in one system call. During a change the caller must keep out
//! handlers that perform accesses through the alias.
//!
//! The guards get no notice of what the program does to its mappings either: [`Guards::reconcile`] checks.

use alloc::vec::Vec;

use super::maps::Snapshot;
use super::page_map::{PROT_READ, PROT_WRITE};
use super::{Guards, Moved, Origin, os, refuse};
use crate::addr::TargetAddr;
use crate::refusal::Refusal;
use crate::sys::Errno;

impl Guards {
    /// From now on the program's threads run while guards change (head of the module).
    pub fn live(&mut self) {
        self.live = true;
    }

    /// Declares that `outer` may guard the same memory: /proc does not show the program's own mappings while it is
    /// present.
    pub fn within(&mut self, outer: super::OuterGuards) {
        self.outer = Some(outer);
    }

    /// Writers of `[start, end)` fault until something takes its place.
    pub(super) fn hold_writers(&self, start: u64, end: u64, prot: u8) -> Result<(), Errno> {
        if prot & PROT_WRITE == 0 {
            return Ok(());
        }
        os::protect(start, end - start, prot & !PROT_WRITE)
    }

    /// As `unmove`, but the returning memory is filled before it is put in its place.
    pub(super) fn unmove_live(&mut self, runs: &[(u64, u64, Moved)]) -> Result<(), Refusal> {
        let (start, end) = (runs[0].0, runs[runs.len() - 1].1);
        let refusal = |e| refuse::no_return(start, end, e);
        let Some(file) = &self.file else {
            return Ok(());
        };
        let fresh = os::map_private(end - start).map_err(refusal)?;
        for &(s, e, moved) in runs {
            let held = self.mapped_prot(&moved) & !PROT_WRITE;
            if held != self.mapped_prot(&moved) {
                os::protect(s, e - s, held).map_err(refusal)?;
            }
        }
        for (mut s, e) in self.data(start, end) {
            while s < e {
                match file.fetch(s, fresh + (s - start), e - s) {
                    0 => break,
                    n => s += n as u64,
                }
            }
        }
        for &(s, e, moved) in runs {
            if moved.prot != PROT_READ | PROT_WRITE {
                let _ = os::protect(fresh + (s - start), e - s, moved.prot);
            }
            os::advise_of_fork(fresh + (s - start), e - s, moved.in_child);
        }
        // In pieces of one mapping each, because mremap(2) accepts no more.
        for &(s, e, _) in runs {
            os::place_over(s, fresh + (s - start), e - s).map_err(refusal)?;
        }
        for &(s, e, moved) in runs {
            os::lock_as(s, e - s, moved.locked);
        }
        self.punch(start, end);
        self.erase(start, end);
        Ok(())
    }

    /// Forgets pages that the program has meanwhile unmapped or replaced. Returns whether the memory file is still ours:
    /// the program may have closed its descriptor.
    ///
    /// # Errors
    /// /proc/self/maps cannot be read.
    pub fn reconcile(&mut self) -> Result<bool, Refusal> {
        let Some(file) = &self.file else {
            return Ok(true);
        };
        if file.identity() != Ok(self.identity) {
            return Ok(false);
        }
        let snapshot = Snapshot::read().map_err(refuse::no_maps)?;
        let mut gone: Vec<(u64, u64)> = Vec::new();
        for (start, end, moved) in self.moved.iter() {
            if moved.origin == Origin::Shared {
                continue;
            }
            let mut at = start;
            while at < end {
                let vma = snapshot.vmas.get(snapshot.index(at));
                let (stop, ours) = match vma {
                    Some(v) if v.start <= at => (v.end.min(end), self.is_file(v)),
                    Some(v) => (v.start.min(end), false),
                    None => (end, false),
                };
                if !ours {
                    gone.push((at, stop));
                }
                at = stop;
            }
        }
        for (start, end) in gone {
            self.forget(TargetAddr(start), end - start);
        }
        self.snapshot = None;
        Ok(true)
    }

    /// Write-protects the moved private pages before a fork, so that they do not change while the child copies them; with
    /// `false`, restores the protection in the parent.
    pub fn freeze(&self, frozen: bool) {
        for (s, e, moved) in self.moved.iter() {
            let prot = self.mapped_prot(&moved);
            if moved.origin != Origin::Shared && prot & PROT_WRITE != 0 {
                let now = if frozen { prot & !PROT_WRITE } else { prot };
                let _ = os::protect(s, e - s, now);
            }
        }
    }
}
