//! Giving moved memory back, and following what the program does to its mappings.

use alloc::vec::Vec;

use super::apply::CHUNK;
use super::maps::Snapshot;
use super::os::InChild;
use super::page_map::{PROT_EXEC, PROT_READ, PROT_WRITE, WINDOW_OVERLAP};
use super::{Guards, Moved, Origin, os, refuse};
use crate::addr::{PAGE_SIZE, TargetAddr};
use crate::place;
use crate::refusal::Refusal;
use crate::sys::Errno;

impl Guards {
    /// Puts the moved pages of `[addr, addr + len)` back into private memory, with content and
    /// protection as the program knows them, without guards. Shared mappings lose guard and alias.
    /// On failure the pages that could not be given back are as before. Guards that are still wanted
    /// return with the next [`Guards::apply`].
    ///
    /// # Errors
    /// No memory, or no room for mappings, for the returning pages.
    pub fn release(&mut self, addr: TargetAddr, len: u64) -> Result<(), Refusal> {
        let (from, to) = pages(addr, len);
        let mut result = Ok(());
        let runs: Vec<(u64, u64, Moved)> = self.moved.within(from, to).collect();
        // A large run goes back piece by piece, so that it does not exist twice meanwhile.
        let pieces = |&(s, e, moved): &(u64, u64, Moved)| {
            (s..e)
                .step_by(CHUNK as usize)
                .map(move |at| (at, e.min(at + CHUNK), moved))
        };
        let runs: Vec<(u64, u64, Moved)> = runs.iter().flat_map(pieces).collect();
        let shared = |r: &(u64, u64, Moved)| r.2.origin == Origin::Shared;
        for group in runs.chunk_by(|a, b| a.1 == b.0 && a.1 - a.0 < CHUNK && shared(a) == shared(b))
        {
            let done = if group[0].2.origin == Origin::Shared {
                self.release_shared(group)
            } else {
                self.unmove(group)
            };
            result = result.and(done);
        }
        self.drop_dups(from, to);
        result
    }

    /// Gives everything back, for a detach: afterwards nothing of the guards is left in the program
    /// but the (empty) page map.
    ///
    /// # Errors
    /// No memory for the returning pages; the pages that could be given back have been.
    pub fn release_all(&mut self) -> Result<(), Refusal> {
        self.release(TargetAddr(0), os::FILE_SIZE)?;
        self.pending.clear();
        self.drop_windows();
        Ok(())
    }

    fn unmove(&mut self, runs: &[(u64, u64, Moved)]) -> Result<(), Refusal> {
        let (start, end) = (runs[0].0, runs[runs.len() - 1].1);
        let refusal = |e| refuse::no_return(start, end, e);
        // Older kernels unmap the old pages before they find out that there are no new ones.
        let Some(file) = &self.file else {
            return Ok(());
        };
        if self.live {
            return self.unmove_live(runs);
        }
        os::could_map_private(end - start).map_err(refusal)?;
        let data = self.data(start, end);
        os::map_private_over(start, end - start).map_err(refusal)?;
        for (mut s, e) in data {
            while s < e {
                match file.fetch(s, s, e - s) {
                    0 => break,
                    n => s += n as u64,
                }
            }
        }
        for &(s, e, moved) in runs {
            if moved.prot != PROT_READ | PROT_WRITE {
                let _ = os::protect(s, e - s, moved.prot);
            }
            os::advise_of_fork(s, e - s, moved.in_child);
            os::lock_as(s, e - s, moved.locked);
        }
        file.punch(start, end);
        self.empties(start, end);
        self.erase(start, end);
        Ok(())
    }

    fn release_shared(&mut self, runs: &[(u64, u64, Moved)]) -> Result<(), Refusal> {
        for &(s, e, moved) in runs {
            self.lift(s, e, &moved)
                .map_err(|error| refuse::no_return(s, e, error))?;
            self.erase(s, e);
        }
        Ok(())
    }

    pub(super) fn punch(&self, start: u64, end: u64) {
        if let Some(file) = &self.file {
            file.punch(start, end);
        }
        self.empties(start, end);
    }

    /// The parts of moved private memory that are not holes.
    pub(super) fn data(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut parts = Vec::new();
        let mut at = start;
        while let Some((s, e)) = self.file.as_ref().and_then(|f| f.next_data(at, end)) {
            parts.push((s, e));
            at = e;
        }
        parts
    }

    /// The parts of `[start, end)` that may have content, ascending: all that has not moved, and moved memory without the
    /// holes of the memory file. (To read a hole would give it memory.)
    pub fn content(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        if self.file.is_none() {
            return alloc::vec![(start, end)];
        }
        let mut parts = Vec::new();
        let mut at = start;
        while at < end {
            let stop = match self.moved.get(at) {
                Some((_, stop, moved)) => {
                    let stop = stop.min(end);
                    match moved.origin {
                        Origin::Shared => parts.push((at, stop)),
                        _ => parts.extend(self.data(at, stop)),
                    }
                    stop
                }
                None => {
                    let stop = self.next_moved(at, end);
                    parts.push((at, stop));
                    stop
                }
            };
            at = stop;
        }
        parts
    }

    #[cfg(test)]
    pub(super) fn data_pages(&self, start: u64, end: u64) -> u64 {
        self.data(start, end)
            .iter()
            .map(|(s, e)| (e - s) / PAGE_SIZE)
            .sum()
    }

    /// From the alias to the primary address, which private memory has taken over (in a forked child,
    /// which has no descriptor of the file).
    fn copy_back(&self, start: u64, end: u64) {
        let mut at = start;
        while at < end {
            let Some((va, window)) = self.window_of(at) else {
                return;
            };
            let stop = end.min(va + window.len);
            // No system call that a sandbox of the program could object to.
            os::copy_plain(at, window.alias + (at - va), stop - at);
            at = stop;
        }
    }

    /// Removes the duplicates of `[from, to)`; the parts on either side stay.
    fn drop_dups(&mut self, from: u64, to: u64) {
        let hit: Vec<u64> = self
            .dups
            .iter()
            .filter(|&(&s, w)| s < to && from < s + w.len)
            .map(|(&s, _)| s)
            .collect();
        for va in hit {
            let Some(w) = self.dups.remove(&va) else {
                continue;
            };
            let (cut_from, cut_to) = (va.max(from), (va + w.len).min(to));
            os::unmap(w.alias + (cut_from - va), cut_to - cut_from);
            if va < cut_from {
                self.dups.insert(
                    va,
                    super::Window {
                        len: cut_from - va,
                        ..w
                    },
                );
            }
            if cut_to < va + w.len {
                let rest = super::Window {
                    len: va + w.len - cut_to,
                    alias: w.alias + (cut_to - va),
                    ..w
                };
                self.dups.insert(cut_to, rest);
            }
        }
    }

    fn drop_windows(&mut self) {
        for w in core::mem::take(&mut self.windows).into_values() {
            os::unmap(w.alias, w.len + WINDOW_OVERLAP);
        }
    }

    /// Drops the records of `[addr, addr + len)`, which the program has unmapped or replaced (munmap, MAP_FIXED, shmdt;
    /// brk downwards). To be called after the system call.
    pub fn forget(&mut self, addr: TargetAddr, len: u64) {
        let (from, to) = pages(addr, len);
        let runs: Vec<(u64, u64, Moved)> = self.moved.within(from, to).collect();
        for (s, e, moved) in runs {
            self.erase(s, e);
            if moved.origin != Origin::Shared {
                self.punch(s, e);
            }
        }
        self.drop_dups(from, to);
    }

    /// Whether [`Guards::set_prot`], [`Guards::discard`] and [`Guards::unmap`] can replace the program's own call in
    /// `[addr, addr + len)`. They can if all of it is private anonymous memory that has moved, and is neither code nor locked.
    pub fn can_change(&self, addr: TargetAddr, len: u64) -> bool {
        let Ok((from, to)) = whole_pages(addr, len) else {
            return false;
        };
        let mut at = from;
        while at < to {
            match self.moved.get(at) {
                Some((_, end, m))
                    if m.origin == Origin::Anonymous && !m.locked && m.prot & PROT_EXEC == 0 =>
                {
                    at = end;
                }
                _ => return false,
            }
        }
        true
    }

    /// Whether all moved pages of `[addr, addr + len)` have this protection.
    pub fn has_prot(&self, addr: TargetAddr, len: u64, prot: u8) -> bool {
        let (from, to) = pages(addr, len);
        self.moved.within(from, to).all(|(_, _, m)| m.prot == prot)
    }

    /// Performs the program's madvise(MADV_DONTNEED) on whole pages. Moved private pages read as zeros from now on, as
    /// anonymous memory does. Pages that are not moved get the call itself. Moved file pages keep their content, because
    /// they cannot show the file again.
    ///
    /// # Errors
    /// The kernel does not give the memory back.
    pub fn discard(&mut self, addr: TargetAddr, len: u64) -> Result<(), Errno> {
        let (from, to) = whole_pages(addr, len)?;
        let runs: Vec<(u64, u64, Moved)> = self.moved.within(from, to).collect();
        let mut at = from;
        for (s, e, moved) in runs {
            if at < s {
                os::dont_need(at, s - at)?;
            }
            if matches!(moved.origin, Origin::Anonymous | Origin::Stack) {
                self.punch(s, e);
                if let Some(file) = self.file.as_ref().filter(|_| self.strict) {
                    let _ = file.allocate(s, e);
                }
            }
            at = e;
        }
        if at < to {
            os::dont_need(at, to - at)
        } else {
            Ok(())
        }
    }

    /// Performs the program's munmap(2) for memory that [`Guards::can_change`].
    ///
    /// # Errors
    /// munmap(2)'s; nothing has changed.
    pub fn unmap(&mut self, addr: TargetAddr, len: u64) -> Result<(), Errno> {
        let (from, to) = whole_pages(addr, len)?;
        os::try_unmap(from, to - from)?;
        self.forget(addr, len);
        Ok(())
    }

    /// In the place of the program's mprotect(2): moved pages keep their guards, others get
    /// the protection as they are. As mprotect, stops with an error at the first gap. Call
    /// [`Guards::apply`] afterwards if [`Guards::wants`] says so.
    ///
    /// # Errors
    /// mprotect(2)'s, at the page where it has stopped.
    pub fn set_prot(&mut self, addr: TargetAddr, len: u64, prot: u8) -> Result<(), Errno> {
        let (from, to) = whole_pages(addr, len)?;
        let runs: Vec<(u64, u64, Moved)> = self.moved.within(from, to).collect();
        let mut at = from;
        for (s, e, moved) in runs {
            if at < s {
                os::protect(at, s - at, prot)?;
            }
            let new = Moved { prot, ..moved };
            os::protect(s, e - s, self.mapped_prot(&new))?;
            self.record(s, e, new);
            at = e;
        }
        if at < to {
            os::protect(at, to - at, prot)?;
        }
        Ok(())
    }

    /// Lifts the guards of `[addr, addr + len)` for one step or one system call, or sets them again.
    pub fn open(&self, addr: TargetAddr, len: u64, open: bool) {
        let (from, to) = pages(addr, len);
        for (s, e, moved) in self.moved.within(from, to) {
            self.open_run(s, e, &moved, open);
        }
    }

    /// The program has locked what lies in `[addr, addr + len)` (mlock(2)), or unlocked it. The mappings themselves
    /// are so already; to be called before any of it is released.
    pub fn set_locks(&mut self, addr: TargetAddr, len: u64, locked: bool) {
        let (from, to) = pages(addr, len);
        let runs: Vec<(u64, u64, Moved)> = self.moved.within(from, to).collect();
        for (s, e, moved) in runs.into_iter().filter(|r| r.2.locked != locked) {
            self.moved.insert(s, e, Moved { locked, ..moved });
        }
    }

    /// As [`Guards::set_locks`] for a call that has failed: the kernel is asked what it has locked.
    ///
    /// # Errors
    /// /proc/self/maps cannot be read: the records stay as they were.
    pub fn look_at_locks(&mut self, addr: TargetAddr, len: u64) -> Result<(), Refusal> {
        let mut snapshot = Snapshot::read().map_err(refuse::no_maps)?;
        snapshot.resolve();
        let (from, to) = pages(addr, len);
        for vma in snapshot
            .vmas
            .iter()
            .filter(|v| v.start < to && from < v.end)
        {
            let (from, to) = (vma.start.max(from), vma.end.min(to));
            self.set_locks(TargetAddr(from), to - from, vma.locked);
        }
        Ok(())
    }

    /// Follows a mlockall(2) that has locked all mappings and filled nothing: unlocks our own memory and, with `fill`,
    /// fills the program's (its guards are open).
    ///
    /// # Errors
    /// As [`Guards::look_at_locks`].
    pub fn lock_whole(&mut self, fill: bool) -> Result<(), Refusal> {
        let snapshot = Snapshot::read().map_err(refuse::no_maps)?;
        for vma in &snapshot.vmas {
            if self.is_ours(vma.start) {
                os::lock(vma.start, vma.end - vma.start, false);
            } else if fill {
                os::lock(vma.start, vma.end - vma.start, true);
            }
        }
        self.set_locks(TargetAddr(0), os::FILE_SIZE, true);
        Ok(())
    }

    /// Before a fork, on the stub's task: notes what the child will have to copy. The program stays
    /// parked until the child has called [`Guards::privatize_in_child`].
    pub fn prepare_fork(&mut self) {
        let mut parts = Vec::new();
        for (s, e, moved) in self.moved.iter() {
            if moved.origin != Origin::Shared && moved.in_child == InChild::Copy {
                parts.extend(self.data(s, e));
            }
        }
        self.fork_data = Some(parts);
    }

    /// Runs in the child of a fork, whose memory is a copy except for the moved pages, which it still shares. Makes those
    /// private, removes guards and aliases and empties the page map. Allocates nothing and needs no descriptor. On
    /// failure the child must not continue.
    ///
    /// # Errors
    /// No memory for the copy; the child must not continue.
    pub fn privatize_in_child(&mut self) -> Result<(), Errno> {
        let mut data = self.fork_data.iter().flatten().copied().peekable();
        for (s, e, moved) in self.moved.iter() {
            if matches!(moved.in_child, InChild::Nothing { .. }) {
                if moved.origin != Origin::Shared {
                    os::unmap(s, e - s);
                }
                continue;
            }
            if moved.origin == Origin::Shared {
                self.lift(s, e, &moved)?;
                continue;
            }
            os::map_private_over(s, e - s)?;
            os::advise_of_fork(s, e - s, moved.in_child);
            while let Some(part) = data.next_if(|part| part.0 < e) {
                self.copy_back(part.0, part.1);
            }
            if moved.prot != PROT_READ | PROT_WRITE {
                os::protect(s, e - s, moved.prot)?;
            }
        }
        self.unmap_all();
        Ok(())
    }

    fn unmap_all(&self) {
        for &(at, len) in &self.tables {
            place::zero(at, len);
        }
        for w in self.windows.values() {
            os::unmap(w.alias, w.len + WINDOW_OVERLAP);
        }
        for w in self.dups.values() {
            os::unmap(w.alias, w.len);
        }
    }
}

fn pages(addr: TargetAddr, len: u64) -> (u64, u64) {
    let end = addr.0.saturating_add(len).saturating_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1);
    (addr.page().0, end.min(os::FILE_SIZE))
}

/// As the kernel rounds the arguments of memory calls.
fn whole_pages(addr: TargetAddr, len: u64) -> Result<(u64, u64), Errno> {
    if addr != addr.page() {
        return Err(Errno(linux_raw_sys::errno::EINVAL as i32));
    }
    match addr.0.checked_add(len) {
        Some(end) if end <= os::FILE_SIZE => Ok(pages(addr, len)),
        _ => Err(Errno(linux_raw_sys::errno::ENOMEM as i32)),
    }
}
