//! Sets the wanted guards in few system calls.

use alloc::vec::Vec;

use linux_raw_sys::general::RLIMIT_AS;

use super::page_map::{PROT_READ, WINDOW_OVERLAP};
use super::plan::{FILL_GAP, Move};
use super::runs::Runs;
use super::{Guards, MANY_WINDOWS, Moved, Origin, WINDOW_SIZES, Window, os, refuse};
use crate::addr::{PAGE_SIZE, TargetAddr};
use crate::pages::{Guard, PageRun};
use crate::refusal::Refusal;
use crate::sys::Errno;
use refuse::Unarmed;

/// (start, end, record, wanted guard)
type Change = (u64, u64, Moved, Option<Guard>);

/// Bytes of pages that are moved at a time, so that a large run does not exist twice meanwhile.
pub(super) const CHUNK: u64 = 64 << 20;
const NO_FILE: Errno = Errno(linux_raw_sys::errno::EBADF as i32);
/// "Page of a guard region" in /proc/self/pagemap (Linux 6.15), "present", "swapped".
const PM_GUARD: u64 = 1 << 58;
const PM_CONTENT: u64 = 1 << 63 | 1 << 62;

impl Guards {
    /// Makes the guards those of `wanted` (ascending and disjoint, as [`crate::Watchlist::pages`]
    /// gives them): moves pages that are not moved yet, sets, changes and lifts guards. Pages whose
    /// guard is lifted stay moved.
    ///
    /// Returns the pages that could not be armed. Pages where the program has no memory, or may not make the access
    /// anyway, are not among them: see [`Guards::wants`].
    pub fn apply(&mut self, wanted: impl IntoIterator<Item = PageRun>) -> Vec<Unarmed> {
        let mut wanted: Vec<PageRun> = wanted.into_iter().collect();
        let mut unarmed = Vec::new();
        let fresh = self.fresh.take();
        let settled = wanted.iter().all(|r| self.settled(r));
        let moves = fresh.filter(|_| !settled && self.prepare().is_ok());
        if let Some(moves) = moves.and_then(|fresh| self.plan_fresh(&wanted, fresh)) {
            self.unlooked += 1;
            for m in moves {
                self.pending.remove(m.start, m.end);
                self.unmapped.remove(m.start, m.end);
                self.carry_out(m, &wanted, &mut unarmed);
            }
            self.set_guards(&wanted, &mut unarmed);
            return unarmed;
        }
        self.pending.clear();
        self.unmapped.clear();
        if !settled {
            self.snapshot = None;
            match self
                .prepare()
                .and_then(|()| self.read_maps().map_err(refuse::no_maps))
            {
                Ok(()) => {
                    let fill = self.coarsen(&mut wanted);
                    let moves = self.plan(&wanted, fill, &mut unarmed);
                    self.snapshot = None;
                    for m in moves {
                        self.carry_out(m, &wanted, &mut unarmed);
                    }
                }
                Err(refusal) => {
                    let wanted = wanted.iter().filter(|r| !self.settled(r));
                    unarmed.extend(wanted.map(|&run| Unarmed {
                        run,
                        refusal: refusal.clone(),
                    }));
                }
            }
        }
        self.set_guards(&wanted, &mut unarmed);
        self.trim();
        unarmed
    }

    /// Moves pages as [`Guards::apply`] does, without a guard. Returns `false` if some cannot be moved.
    pub fn move_pages(&mut self, addr: TargetAddr, len: u64) -> bool {
        let run = PageRun {
            start: addr.page(),
            end: TargetAddr((addr.0 + len).next_multiple_of(PAGE_SIZE)),
            guard: Guard::NoWrite,
        };
        let wanted = [run];
        let pending = core::mem::replace(&mut self.pending, Runs::new());
        let unmapped = core::mem::replace(&mut self.unmapped, Runs::new());
        self.snapshot = None;
        if !self.has_moved(&run) && self.prepare().is_ok() && self.read_maps().is_ok() {
            let mut unarmed = Vec::new();
            let moves = self.plan(&wanted, 0, &mut unarmed);
            self.snapshot = None;
            for m in moves {
                self.carry_out(m, &wanted, &mut unarmed);
            }
        }
        self.pending = pending;
        self.unmapped = unmapped;
        self.has_moved(&run)
    }

    fn has_moved(&self, run: &PageRun) -> bool {
        let mut pages = (run.start.0..run.end.0).step_by(PAGE_SIZE as usize);
        pages.all(|at| self.moved.get(at).is_some())
    }

    /// Whether [`Guards::apply`] would move, guard or release a page.
    pub fn would_change(&self, wanted: &[PageRun]) -> bool {
        let mut guarded = self.moved.iter().filter(|(_, _, m)| m.guard.is_some());
        let mut present = guarded.next();
        for run in wanted {
            let mut at = run.start.0;
            while at < run.end.0 {
                match present {
                    Some((start, end, m)) if start == at && m.guard == Some(run.guard) => {
                        at = end;
                        present = guarded.next();
                        if at > run.end.0 {
                            // Longer than this run: of the next one, if that follows at once.
                            present = Some((run.end.0, end, m));
                            at = run.end.0;
                        }
                    }
                    _ => return true,
                }
            }
        }
        present.is_some()
    }

    /// Releases pages whose guards were removed, once there are many. A few stay, because a debugger tends to watch the
    /// same places again.
    fn trim(&mut self) {
        const KEEP: u64 = 1024 * PAGE_SIZE;
        let (mut idle, mut guarded) = (Vec::new(), 0);
        let near = FILL_GAP.max(PAGE_SIZE);
        for (start, end, moved) in self.moved.iter() {
            if moved.guard.is_some() {
                guarded += end - start;
                continue;
            }
            // Neighbours of a guarded page stay.
            let has_guard = |at: u64| self.moved.get(at).is_some_and(|m| m.2.guard.is_some());
            let from = if has_guard(start.saturating_sub(1)) {
                start + near
            } else {
                start
            };
            let to = if has_guard(end) {
                end.saturating_sub(near)
            } else {
                end
            };
            if from < to {
                idle.push((from, to));
            }
        }
        let total: u64 = idle.iter().map(|(s, e)| e - s).sum();
        if total > KEEP && total > guarded {
            for (start, end) in idle {
                if (self.in_use)(start, end) {
                    continue;
                }
                // If memory is short they stay where they are, which does no harm.
                let _ = self.release(TargetAddr(start), end - start);
            }
        }
    }

    fn carry_out(&mut self, m: Move, wanted: &[PageRun], unarmed: &mut Vec<Unarmed>) {
        let mut at = m.start;
        while at < m.end {
            let mut part = Move { start: at, ..m };
            if (self.in_use)(at, m.end) {
                part.end = at + PAGE_SIZE;
            }
            let held = part.end < m.end || m.end == at + PAGE_SIZE;
            let result = if held && (self.in_use)(at, part.end) {
                Err((part.end, refuse::in_use(at, part.end)))
            } else if m.origin == Origin::Shared {
                self.duplicate(part)
            } else {
                self.move_private(part)
            };
            match result {
                Ok(end) => at = end,
                Err((end, refusal)) => {
                    // Of interest only where a guard is wanted; neighbours may fail.
                    for run in wanted.iter().filter(|r| r.start.0 < end && at < r.end.0) {
                        let (s, e) = (run.start.0.max(at), run.end.0.min(end));
                        let run = PageRun {
                            start: TargetAddr(s),
                            end: TargetAddr(e),
                            guard: run.guard,
                        };
                        unarmed.push(Unarmed {
                            run,
                            refusal: refusal.clone(),
                        });
                    }
                    at = end;
                }
            }
        }
    }

    /// Moves the beginning of `m` and returns its end; on failure, the end of the range for which the reason holds.
    fn move_private(&mut self, m: Move) -> Result<u64, (u64, Refusal)> {
        let (start, prot) = (m.start, m.prot);
        let (va, window) = self
            .window_for(start)
            .map_err(|e| (m.end, refuse::no_alias(start, m.end, e)))?;
        let mut end = m.end.min(va + window.len).min(start + CHUNK);
        self.map
            .prepare(start, end, &mut self.tables)
            .map_err(|e| (end, refuse::no_alias(start, end, e)))?;
        let Some(file) = &self.file else {
            return Err((end, refuse::no_memfd(NO_FILE)));
        };
        if self.strict {
            file.allocate(start, end)
                .map_err(|e| (end, refuse::no_memory(start, end, e)))?;
        }
        let unreadable = prot & PROT_READ == 0;
        if unreadable {
            os::protect(start, end - start, prot | PROT_READ)
                .map_err(|e| (end, refuse::no_move(start, end, e)))?;
        } else if self.live {
            self.hold_writers(start, end, prot)
                .map_err(|e| (end, refuse::no_move(start, end, e)))?;
        }
        let copied = self.copy_content(file, start, end, m.origin);
        let give_up = |end, refusal| {
            file.punch(start, end);
            if unreadable || self.live {
                let _ = os::protect(start, end - start, prot);
            }
            Err((end, refusal))
        };
        if let Err((copied, e)) = copied {
            if copied == start {
                return give_up(
                    start + PAGE_SIZE,
                    refuse::no_content(start, start + PAGE_SIZE, e),
                );
            }
            file.punch(copied, end);
            if self.live {
                let _ = os::protect(copied, end - copied, prot);
            }
            end = copied;
        }
        if let Err(e) = self.map_primary(start, end - start, prot) {
            return give_up(end, refuse::no_move(start, end, e));
        }
        os::lock_as(start, end - start, m.locked);
        self.record(
            start,
            end,
            Moved {
                prot,
                guard: None,
                origin: m.origin,
                in_child: m.in_child,
                locked: m.locked,
            },
        );
        Ok(end)
    }

    /// Copies the pages that have content into the file; on failure, the first that could not be
    /// copied.
    fn copy_content(
        &self,
        file: &os::File,
        start: u64,
        end: u64,
        origin: Origin,
    ) -> Result<(), (u64, Errno)> {
        if origin == Origin::File {
            return copy_all(file, start, end);
        }
        let Some(pagemap) = self.pagemap.as_ref() else {
            return copy_without_zeros(file, start, end);
        };
        let mut words = alloc::vec![0u64; 4096.min(((end - start) / PAGE_SIZE) as usize)];
        let mut at = start;
        while at < end {
            let want = words.len().min(((end - at) / PAGE_SIZE) as usize);
            let got = match pagemap.read_words(&mut words[..want], at / PAGE_SIZE * 8) {
                Ok(n) if n > 0 => n,
                _ => return copy_all(file, at, end),
            };
            if self.outer.is_some_and(|o| (o.present)()) {
                // Content may be there that is not mapped where the program has it.
                return copy_all(file, at, end);
            }
            for group in words[..got].chunk_by(|a, b| a & PM_CONTENT != 0 && b & PM_CONTENT != 0) {
                let stop = at + group.len() as u64 * PAGE_SIZE;
                if group[0] & PM_GUARD != 0 {
                    return Err((at, Errno(linux_raw_sys::errno::EFAULT as i32)));
                }
                if group[0] & PM_CONTENT != 0 {
                    copy_all(file, at, stop)?;
                }
                at = stop;
            }
        }
        Ok(())
    }

    /// The window that holds `at`, made if need be.
    fn window_for(&mut self, at: u64) -> Result<(u64, Window), Errno> {
        if let Some(found) = self.window_of(at) {
            return Ok(found);
        }
        self.drop_empty_windows();
        let mut result = Err(Errno(linux_raw_sys::errno::ENOMEM as i32));
        // Windows count against the program's limit of address space: small ones if it has one.
        let room = os::limit(RLIMIT_AS).map_or(u64::MAX, |l| l.0) / 64;
        let least = WINDOW_SIZES[WINDOW_SIZES.len() - 1].0;
        for (len, most) in WINDOW_SIZES {
            if len > room.max(least) || self.windows.len() >= most {
                continue;
            }
            let va = at & !(len - 1);
            if self.windows.range(va..va + len).next().is_some() {
                continue; // a smaller one was made here when room was short
            }
            let Some(file) = &self.file else {
                return Err(NO_FILE);
            };
            match file.map_window(va, len + WINDOW_OVERLAP) {
                Ok(alias) => {
                    let window = Window {
                        len,
                        alias,
                        writable: true,
                    };
                    self.windows.insert(va, window);
                    (self.emptied)(alias, len + WINDOW_OVERLAP);
                    return Ok((va, window));
                }
                Err(e) => result = Err(e),
            }
        }
        result
    }

    /// Drops windows without moved pages: a collector that frees memory and takes other would otherwise create windows
    /// without end.
    fn drop_empty_windows(&mut self) {
        if self.windows.len() < self.windows_looked_at.max(MANY_WINDOWS) {
            return;
        }
        let (moved, in_use) = (&self.moved, self.in_use);
        self.windows.retain(|va, w| {
            let end = va + w.len;
            let stays = moved.within(*va, end).next().is_some() || in_use(*va, end);
            if !stays {
                os::unmap(w.alias, w.len + WINDOW_OVERLAP);
            }
            stays
        });
        self.windows_looked_at = self.windows.len() * 2;
    }

    /// Gives the beginning of a shared mapping an alias.
    fn duplicate(&mut self, m: Move) -> Result<u64, (u64, Refusal)> {
        let start = m.start;
        let (va, window) = match self.dup_of(start) {
            Some(found) => found,
            None => self
                .new_dup(m)
                .map_err(|e| (m.end, refuse::no_alias(start, m.end, e)))?,
        };
        let end = m.end.min(va + window.len);
        self.map
            .prepare(start, end, &mut self.tables)
            .map_err(|e| (end, refuse::no_alias(start, end, e)))?;
        self.record(
            start,
            end,
            Moved {
                prot: m.prot,
                guard: None,
                origin: Origin::Shared,
                in_child: m.in_child,
                locked: m.locked,
            },
        );
        Ok(end)
    }

    /// Duplicates the mapping around `m.start`: whole if there is room, else just what is needed.
    fn new_dup(&mut self, m: Move) -> Result<(u64, Window), Errno> {
        const GIB: u64 = 1 << 30;
        let below = self
            .dups
            .range(..m.start)
            .next_back()
            .map_or(0, |(&s, w)| s + w.len);
        let above = self
            .dups
            .range(m.start..)
            .next()
            .map_or(u64::MAX, |(&s, _)| s);
        let whole = (
            m.vma.0.max(m.start & !(GIB - 1)).max(below),
            m.vma.1.min((m.start & !(GIB - 1)) + GIB).min(above),
        );
        let mut result = Err(Errno(linux_raw_sys::errno::ENOMEM as i32));
        for (va, end) in [whole, (m.start, m.end.min(above))] {
            match os::duplicate(va, end - va) {
                Ok((alias, writable)) => {
                    let window = Window {
                        len: end - va,
                        alias,
                        writable,
                    };
                    self.dups.insert(va, window);
                    (self.emptied)(alias, end - va);
                    return Ok((va, window));
                }
                Err(e) => result = Err(e),
            }
        }
        result
    }

    /// Sets, changes and lifts guards of moved pages.
    fn set_guards(&mut self, wanted: &[PageRun], unarmed: &mut Vec<Unarmed>) {
        let mut changes: Vec<Change> = Vec::new();
        let mut next = 0;
        for (start, end, moved) in self.moved.iter() {
            let mut at = start;
            while at < end {
                while wanted.get(next).is_some_and(|r| r.end.0 <= at) {
                    next += 1;
                }
                let (stop, guard) = match wanted.get(next) {
                    Some(r) if r.start.0 <= at => (r.end.0.min(end), Some(r.guard)),
                    Some(r) => (r.start.0.min(end), None),
                    None => (end, None),
                };
                if guard != moved.guard {
                    changes.push((at, stop, moved, guard));
                }
                at = stop;
            }
        }
        let shall = |c: &Change| Moved { guard: c.3, ..c.2 };
        let groups: Vec<&[Change]> = changes
            .chunk_by(|a, b| a.1 == b.0 && self.alike(&shall(a)) == self.alike(&shall(b)))
            .collect();
        let range = |g: &&[Change]| (g[0].0, g[g.len() - 1].1, shall(&g[0]));
        let differs = |g: &&&[Change]| {
            let wanted = self.alike(&shall(&g[0]));
            g.iter().any(|c| self.alike(&c.2) != wanted)
        };
        let ranges: Vec<_> = groups.iter().filter(differs).map(range).collect();
        let mut failed = self.close_all(&ranges).into_iter().peekable();
        for group in groups {
            if let Some((_, e)) = failed.next_if(|(start, _)| *start == group[0].0) {
                for c in group.iter().filter(|c| c.3 > c.2.guard) {
                    let run = PageRun {
                        start: TargetAddr(c.0),
                        end: TargetAddr(c.1),
                        guard: c.3.unwrap_or(Guard::NoWrite),
                    };
                    unarmed.push(Unarmed {
                        run,
                        refusal: refuse::no_move(c.0, c.1, e),
                    });
                }
                continue;
            }
            for &(start, end, moved, guard) in group {
                self.record(start, end, Moved { guard, ..moved });
            }
        }
    }
}

/// As [`copy_all`], but for pages of zeros. A process that has changed its user may not read its pagemap, so nothing else
/// says which pages have no content.
fn copy_without_zeros(file: &os::File, start: u64, end: u64) -> Result<(), (u64, Errno)> {
    const WORDS: usize = PAGE_SIZE as usize / size_of::<u64>();
    const PAGES: usize = 16;
    let is_zero = |page: &[u64; WORDS]| page.iter().all(|word| *word == 0);
    let mut words = alloc::vec![0u64; PAGES * WORDS];
    let mut at = start;
    while at < end {
        let want = words.len().min((end - at) as usize / size_of::<u64>());
        let (to, len) = (words.as_mut_ptr() as u64, (want * size_of::<u64>()) as u64);
        let got = match os::try_copy(to, at, len).map(|n| n / size_of::<u64>()) {
            Ok(n) if n >= WORDS => &words[..n],
            _ => return copy_all(file, at, end),
        };
        for group in got.as_chunks().0.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
            let stop = at + group.len() as u64 * PAGE_SIZE;
            if !is_zero(&group[0]) {
                copy_all(file, at, stop)?;
            }
            at = stop;
        }
    }
    Ok(())
}

fn copy_all(file: &os::File, start: u64, end: u64) -> Result<(), (u64, Errno)> {
    let mut at = start;
    while at < end {
        match file.fill(at, at, end - at) {
            Ok(n) if n > 0 => at += n,
            Ok(_) => {
                return Err((
                    at & !(PAGE_SIZE - 1),
                    Errno(linux_raw_sys::errno::EFAULT as i32),
                ));
            }
            Err(e) => return Err((at & !(PAGE_SIZE - 1), e)),
        }
    }
    Ok(())
}
