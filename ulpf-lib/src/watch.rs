//! Watches: a range, a kind, an identity.

use crate::addr::TargetAddr;

/// The accesses that a watch reports (GDB: `watch`, `rwatch`, `awatch`; packets Z2, Z3, Z4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum WatchKind {
    /// Stores, also as a part of read-modify-write (Z2).
    Write = 1,
    /// Loads, also as a part of read-modify-write (Z3).
    Read = 2,
    /// Both (Z4).
    Access = 3,
}

/// Kind of an instruction's access to bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum AccessKind {
    /// Loads them.
    Read = 1,
    /// Stores to them.
    Write = 2,
    /// Loads, changes and stores them.
    ReadWrite = 3,
}

impl AccessKind {
    /// Whether it loads.
    pub const fn reads(self) -> bool {
        self as u8 & 1 != 0
    }
    /// Whether it stores.
    pub const fn writes(self) -> bool {
        self as u8 & 2 != 0
    }
}

impl WatchKind {
    /// The word in commands and answers.
    pub const fn word(self) -> &'static str {
        match self {
            WatchKind::Write => "w",
            WatchKind::Read => "r",
            WatchKind::Access => "rw",
        }
    }

    /// Parses the word of [`WatchKind::word`].
    pub fn parse(word: &str) -> Option<WatchKind> {
        Some(match word {
            "w" => WatchKind::Write,
            "r" => WatchKind::Read,
            "rw" => WatchKind::Access,
            _ => return None,
        })
    }

    /// Whether an access of this kind is a hit, given that it overlaps the range.
    pub const fn sees(self, access: AccessKind) -> bool {
        match self {
            WatchKind::Write => access.writes(),
            WatchKind::Read => access.reads(),
            WatchKind::Access => true,
        }
    }
}

/// Number of a watch: an index into the counters that the command and the target share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(transparent)]
pub struct WatchId(pub u32);

/// A half-open byte range `[start, start + len)`; `len` is never zero and the end never wraps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct WatchRange {
    /// First byte.
    pub start: TargetAddr,
    /// In bytes; at least one.
    pub len: u64,
}

impl WatchRange {
    /// `None` when `len` is zero or the end would wrap.
    pub const fn new(start: TargetAddr, len: u64) -> Option<WatchRange> {
        if len == 0 || start.0.checked_add(len).is_none() {
            return None;
        }
        Some(WatchRange { start, len })
    }
    /// One past the last byte.
    pub const fn end(self) -> TargetAddr {
        TargetAddr(self.start.0 + self.len)
    }
    /// Whether it shares a byte with `[addr, addr + len)`. `len` is at least 1, and that end does not wrap.
    pub const fn overlaps(self, addr: TargetAddr, len: u64) -> bool {
        addr.0 < self.end().0 && self.start.0 < addr.0 + len
    }
}
