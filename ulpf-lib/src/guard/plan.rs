//! Plans which pages are to be moved for the wanted guards, and finds those that cannot be moved.

use alloc::vec::Vec;

use linux_raw_sys::general::RLIMIT_STACK;

use super::flags;
use super::maps::mapping_at;
use super::os::{InChild, MappingAt};
use super::page_map::{PROT_READ, PROT_WRITE};
use super::refuse::{Unarmed, Why};
use super::runs::Runs;
use super::{Guards, Origin, Piece, os, refuse};
use crate::addr::{PAGE_SIZE, TargetAddr, USER_END};
use crate::pages::{Guard, PageRun};
use crate::refusal::Refusal;

/// Pages to be moved that have the same properties.
#[derive(Clone, Copy)]
pub(super) struct Move {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) prot: u8,
    pub(super) origin: Origin,
    pub(super) in_child: InChild,
    pub(super) locked: bool,
    /// Bounds of the mapping, for shared ones: these are duplicated whole.
    pub(super) vma: (u64, u64),
}

/// Unguarded pages between two guarded runs that are moved along when mappings run short.
pub(super) const FILL_GAP: u64 = 16 * PAGE_SIZE;
/// A lone guarded page costs up to this many mappings: the two neighbours, itself, and what it cuts off.
const VMAS_PER_RUN: u64 = 4;
impl Guards {
    /// Whether the run is moved and guarded already; its neighbours are then done as well.
    pub(super) fn settled(&self, run: &PageRun) -> bool {
        let mut at = run.start.0;
        while at < run.end.0 {
            match self.moved.get(at) {
                Some((_, end, moved)) if moved.guard.is_some() => at = end,
                _ => return false,
            }
        }
        true
    }

    /// Keeps the number of mappings below the kernel's limit (vm.max_map_count), of which a quarter
    /// stays with the program: guards whole stretches instead of single pages where these lie close.
    /// More false positives, but nothing is missed. Returns how wide gaps are to be moved along.
    pub(super) fn coarsen(&self, wanted: &mut Vec<PageRun>) -> u64 {
        let vmas = self.snapshot.as_ref().map_or(&[][..], |s| &s.vmas);
        let foreign = vmas.iter().filter(|v| !self.is_file(v)).count() as u64;
        let room = (self.max_map_count / 4 * 3).saturating_sub(foreign);
        let runs = wanted.len() as u64;
        if runs * VMAS_PER_RUN <= room / 2 {
            return 0;
        }
        if runs * VMAS_PER_RUN > room {
            let mut gaps: Vec<u64> = wanted
                .windows(2)
                .map(|w| w[1].start.0 - w[0].end.0)
                .collect();
            gaps.sort_unstable();
            let merge = (runs - room / VMAS_PER_RUN) as usize;
            let widest = gaps
                .get(merge.min(gaps.len()).saturating_sub(1))
                .copied()
                .unwrap_or(0);
            let mut coarse: Vec<PageRun> = Vec::new();
            for &run in wanted.iter() {
                match coarse.last_mut() {
                    Some(last) if run.start.0 - last.end.0 <= widest => {
                        last.end = run.end;
                        last.guard = last.guard.max(run.guard);
                    }
                    _ => coarse.push(run),
                }
            }
            *wanted = coarse;
        }
        FILL_GAP
    }

    /// Computes the moves for `wanted` (ascending), neighbours included.
    pub(super) fn plan(
        &mut self,
        wanted: &[PageRun],
        fill: u64,
        unarmed: &mut Vec<Unarmed>,
    ) -> Vec<Move> {
        let mut moves: Vec<Move> = Vec::new();
        let mut done = 0; // everything below is planned
        for (i, run) in wanted.iter().enumerate() {
            if self.settled(run) {
                done = done.max(run.end.0);
                continue;
            }
            self.resolve_odd(run);
            let below = run.start.0.saturating_sub(PAGE_SIZE).max(done);
            self.plan_bystanders((below, run.start.0), run, run.start.0, &mut moves);
            self.plan_run(*run, &mut moves, unarmed);
            done = run.end.0;
            let next = wanted.get(i + 1).map_or(USER_END, |r| r.start.0);
            let above = if next - done <= fill {
                next
            } else {
                next.min(done + PAGE_SIZE)
            };
            self.plan_bystanders((done, above), run, run.end.0 - PAGE_SIZE, &mut moves);
            done = done.max(above);
        }
        moves
    }

    /// The moves for `wanted` (ascending) if `fresh` ([`Guards::has_mapped`]) holds all that is to be moved. Neighbours stay:
    /// accesses across the edges take the slow path. `None`: the mappings are to be looked at.
    pub(super) fn plan_fresh(&self, wanted: &[PageRun], fresh: (u64, u64)) -> Option<Vec<Move>> {
        /// Looks that are spared in a row: the number of mappings is to be known roughly.
        const MOST_UNLOOKED: u32 = 256;
        let few = wanted.len() as u64 * VMAS_PER_RUN <= self.max_map_count / 8;
        if !few || self.unlooked >= MOST_UNLOOKED || flags::any() || self.outer.is_some() {
            return None;
        }
        let mut moves: Vec<Move> = Vec::new();
        for run in wanted {
            let mut at = run.start.0;
            while at < run.end.0 {
                if let Some((_, end, moved)) = self.moved.get(at) {
                    moved.guard?;
                    at = end;
                    continue;
                }
                let next = |runs: &Runs<Guard>, limit| {
                    runs.within(at, limit).next().map_or(limit, |(s, ..)| s)
                };
                let end = self.next_moved(at, run.end.0);
                if let Some((_, known, guard)) = self.pending.get(at) {
                    // There is still nothing to guard.
                    let known = known.min(end);
                    if guard != run.guard || at < fresh.1 && fresh.0 < known {
                        return None;
                    }
                    at = known;
                    continue;
                }
                let end = next(&self.pending, end);
                if at < fresh.0
                    || fresh.1 < end
                    || self.lent.meets(at, end)
                    || self.next_of_ours(at, end) < end
                {
                    return None;
                }
                // (Its protection is another one under READ_IMPLIES_EXEC of personality(2).)
                let is_plain = |m: MappingAt| {
                    m.prot == PROT_READ | PROT_WRITE
                        && !m.shared
                        && m.inode == 0
                        && m.start <= at
                        && end <= m.end
                };
                mapping_at(at).filter(|m| is_plain(*m))?;
                moves.push(Move {
                    start: at,
                    end,
                    prot: PROT_READ | PROT_WRITE,
                    origin: Origin::Anonymous,
                    in_child: InChild::Copy,
                    locked: false,
                    vma: (0, 0),
                });
                at = end;
            }
        }
        Some(moves)
    }

    fn plan_run(&mut self, run: PageRun, moves: &mut Vec<Move>, unarmed: &mut Vec<Unarmed>) {
        let mut at = run.start.0;
        while at < run.end.0 {
            let (end, piece) = self.piece(at, run.end.0, run.guard);
            let part = PageRun {
                start: TargetAddr(at),
                end: TargetAddr(end),
                guard: run.guard,
            };
            match piece {
                Piece::Moved => {}
                Piece::Latent => self.pending.insert(at, end, run.guard),
                Piece::No(Why::Unmapped) => {
                    self.pending.insert(at, end, run.guard);
                    self.unmapped.insert(at, end, ());
                }
                Piece::Movable {
                    prot,
                    origin,
                    in_child,
                    locked,
                } => match self.keep_stack_growing(at) {
                    Ok(()) => push(
                        moves,
                        Move {
                            start: at,
                            end,
                            prot,
                            origin,
                            in_child,
                            locked,
                            vma: self.bounds(at, origin),
                        },
                    ),
                    Err(why) => unarmed.push(refused(part, why)),
                },
                Piece::No(why) => unarmed.push(refused(part, why)),
            }
            at = end;
        }
    }

    /// Pages that are moved without a guard, where that is possible; `edge` is the guarded page of `run` beside them.
    fn plan_bystanders(
        &mut self,
        (start, end): (u64, u64),
        run: &PageRun,
        edge: u64,
        moves: &mut Vec<Move>,
    ) {
        // Moved pages of a file would no longer show the file. Beside other memory they stay, and accesses across the
        // edge take the slow path.
        let of_file = self.origin(edge, run.guard) == Some(Origin::File);
        let mut at = start;
        while at < end {
            // A page that does not permit the access cannot be part of a straddling one.
            let (stop, piece) = self.piece(at, end, run.guard);
            if let Piece::Movable {
                prot,
                origin,
                in_child,
                locked,
            } = piece
                && prot & super::PROT_EXEC == 0
                && (origin != Origin::File || of_file)
            {
                let from = if self.growing_page(at) == Some(at) {
                    at + PAGE_SIZE
                } else {
                    at
                };
                push(
                    moves,
                    Move {
                        start: from,
                        end: stop,
                        prot,
                        origin,
                        in_child,
                        locked,
                        vma: self.bounds(at, origin),
                    },
                );
            }
            at = stop;
        }
    }

    fn origin(&self, at: u64, guard: Guard) -> Option<Origin> {
        match self.piece(at, at + PAGE_SIZE, guard).1 {
            Piece::Movable { origin, .. } => Some(origin),
            Piece::Moved => self.moved.get(at).map(|m| m.2.origin),
            _ => None,
        }
    }

    fn bounds(&self, at: u64, origin: Origin) -> (u64, u64) {
        let vma = self
            .snapshot
            .as_ref()
            .and_then(|s| s.at(at))
            .filter(|_| origin == Origin::Shared);
        vma.map_or((0, 0), |v| (v.start, v.end))
    }

    /// If `at` is the stack's lowest page, makes the stack one page longer.
    fn keep_stack_growing(&mut self, at: u64) -> Result<(), Why> {
        let Some(snapshot) = &self.snapshot else {
            return Ok(());
        };
        let index = snapshot.index(at);
        let Some(vma) = snapshot.vmas.get(index).copied() else {
            return Ok(());
        };
        if self.growing_page(at) != Some(at) {
            return Ok(());
        }
        let new_start = vma.start.saturating_sub(PAGE_SIZE);
        let top = snapshot.vmas[index..]
            .iter()
            .scan(vma.start, |end, v| {
                // Moved parts of the stack lie in between.
                (v.start == *end).then(|| {
                    *end = v.end;
                    v.end
                })
            })
            .last()
            .unwrap_or(vma.end);
        let soft = os::limit(RLIMIT_STACK).map_or(0, |l| l.0);
        // The kernel keeps 256 pages free below a stack (stack_guard_gap).
        let floor = index
            .checked_sub(1)
            .and_then(|i| snapshot.vmas.get(i))
            .map_or(0, |v| v.end)
            + 256 * PAGE_SIZE;
        if top - new_start > soft || new_start < floor {
            return Err(Why::StackEnd);
        }
        os::touch(new_start);
        if let Some(vma) = self.snapshot.as_mut().and_then(|s| s.vmas.get_mut(index)) {
            vma.start = new_start;
        }
        Ok(())
    }
}

fn push(moves: &mut Vec<Move>, m: Move) {
    match moves.last_mut() {
        Some(last)
            if last.end == m.start
                && last.prot == m.prot
                && last.origin == m.origin
                && last.in_child == m.in_child
                && last.locked == m.locked
                && last.vma == m.vma =>
        {
            last.end = m.end
        }
        _ if m.start < m.end => moves.push(m),
        _ => {}
    }
}

fn refused(run: PageRun, why: Why) -> Unarmed {
    let (why, what_to_do) = refuse::words(run.start, why);
    let what = alloc::format!("cannot guard {}-{}", run.start, run.end);
    Unarmed {
        run,
        refusal: Refusal {
            what,
            why,
            what_to_do,
        },
    }
}
