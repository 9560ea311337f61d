//! Checks whether a watch can be armed.

use super::refuse::{self, Why};
use super::{Guards, Piece, VSYSCALL};
use crate::addr::{TargetAddr, USER_END};
use crate::pages::PageRun;
use crate::refusal::Refusal;
use crate::watch::{WatchKind, WatchRange};

impl Guards {
    /// Checks whether this watch can be armed. Cheap for many watches in one stop: the mappings are read once (see
    /// [`Guards::resumed`]).
    ///
    /// # Errors
    /// The reason, at the first address of the range that cannot be guarded.
    pub fn check(&mut self, range: WatchRange, kind: WatchKind) -> Result<(), Refusal> {
        match self.check_awaiting(range, kind)? {
            None => Ok(()),
            Some(at) => Err(refuse::watch(range, kind, at, Why::Unmapped)),
        }
    }

    /// As [`Guards::check`], for a watch that may wait for its memory. Returns the first address that is not mapped yet.
    ///
    /// # Errors
    /// The reason, at the first address of the range that can never be guarded.
    pub fn check_awaiting(
        &mut self,
        range: WatchRange,
        kind: WatchKind,
    ) -> Result<Option<TargetAddr>, Refusal> {
        let refusal = |at: u64, why: Why| refuse::watch(range, kind, TargetAddr(at), why);
        if range.end().0 > USER_END {
            let why = if range.start.page() == VSYSCALL {
                Why::Vsyscall
            } else {
                Why::NotUser
            };
            return Err(refusal(range.start.0.max(USER_END), why));
        }
        let run = PageRun::of(range, kind);
        if self.moved.covers(run.start.0, run.end.0) {
            return Ok(None);
        }
        self.prepare()?;
        self.read_maps().map_err(refuse::no_maps)?;
        self.resolve_odd(&run);
        let mut at = run.start.0;
        let mut unmapped = None;
        while at < run.end.0 {
            let (end, piece) = self.piece(at, run.end.0, run.guard);
            let first = at.max(range.start.0);
            match piece {
                Piece::No(Why::Unmapped) => unmapped = unmapped.or(Some(TargetAddr(first))),
                Piece::No(why) => return Err(refusal(first, why)),
                _ => {}
            }
            at = end;
        }
        Ok(unmapped)
    }

    /// Whether debug registers can watch memory of this range that cannot be guarded. `code`: also executable memory.
    pub fn only_registers(&mut self, range: WatchRange, kind: WatchKind, code: bool) -> bool {
        let run = PageRun::of(range, kind);
        if range.end().0 > USER_END || self.read_maps().is_err() {
            return false;
        }
        let (mut at, mut any) = (run.start.0, false);
        while at < run.end.0 {
            let (end, piece) = self.piece(at, run.end.0, run.guard);
            match piece {
                Piece::No(Why::HugePages | Why::Keyed | Why::Device) => any = true,
                Piece::No(Why::Text) if code => any = true,
                Piece::No(_) => return false,
                _ => {}
            }
            at = end;
        }
        any
    }
}
