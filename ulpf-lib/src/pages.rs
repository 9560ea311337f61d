//! The guard that a page needs so that no access to its watches is missed.

use crate::addr::{PAGE_SIZE, TargetAddr};
use crate::watch::{WatchKind, WatchRange};

/// Accesses that the primary mapping of a page must forbid. Ordered by strength.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(u8)]
pub enum Guard {
    /// Loads succeed, stores fault: enough for write watches.
    NoWrite = 1,
    /// Every access faults: read and access watches (x86 cannot forbid loads alone).
    NoAccess = 2,
}

impl Guard {
    /// The weakest guard under which a watch of this kind misses nothing.
    pub const fn needed_by(kind: WatchKind) -> Guard {
        match kind {
            WatchKind::Write => Guard::NoWrite,
            WatchKind::Read | WatchKind::Access => Guard::NoAccess,
        }
    }
}

/// Pages `[start, end)` that need the same guard; both ends page aligned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRun {
    /// First page.
    pub start: TargetAddr,
    /// One past the last page.
    pub end: TargetAddr,
    /// The guard that all of them need.
    pub guard: Guard,
}

impl PageRun {
    /// The pages that a watch touches.
    pub fn of(range: WatchRange, kind: WatchKind) -> PageRun {
        PageRun {
            start: range.start.page(),
            end: page_up(range.end()),
            guard: Guard::needed_by(kind),
        }
    }
    /// In bytes.
    pub const fn len(&self) -> u64 {
        self.end.0 - self.start.0
    }
    /// No page at all.
    pub const fn is_empty(&self) -> bool {
        self.end.0 == self.start.0
    }
    /// Whether this address is on one of the pages.
    pub const fn contains(&self, addr: TargetAddr) -> bool {
        self.start.0 <= addr.0 && addr.0 < self.end.0
    }
}

/// First page boundary at or above `addr` (saturating at the last one).
pub const fn page_up(addr: TargetAddr) -> TargetAddr {
    match addr.0.checked_add(PAGE_SIZE - 1) {
        Some(a) => TargetAddr(a).page(),
        None => TargetAddr(u64::MAX).page(),
    }
}
