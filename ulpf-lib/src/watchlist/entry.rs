//! One watch as a 128-bit word, whose natural order is the order by start, length, kind and number; a block of them.
//!
//! ```text
//! 127            81 80            34 33  32 31           1 0
//! |   start : 47   |    len : 47    | kind |   id : 31    |staged|
//! ```

use crate::addr::TargetAddr;
use crate::watch::{WatchId, WatchKind, WatchRange};

/// Watches a block can hold: with its header it fills 512 bytes.
pub(super) const CAP: usize = 31;
/// One past the highest watch number.
pub const WATCH_ID_END: u32 = 1 << 31;
const ADDR_BITS: u32 = 47;
const ADDR_MASK: u64 = (1 << ADDR_BITS) - 1;

/// One watch, packed. Order: start, length, kind, id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub(crate) struct Entry(pub(super) u128);

impl Entry {
    pub(super) const NONE: Entry = Entry(0);

    /// `None` for what user space cannot hold: a range that ends above 2^47, a number of 2^31 or more.
    pub(crate) fn new(id: WatchId, range: WatchRange, kind: WatchKind) -> Option<Entry> {
        if range.len == 0
            || range.start.0.checked_add(range.len)? > 1 << ADDR_BITS
            || id.0 >= WATCH_ID_END
        {
            return None;
        }
        Some(Entry(
            (range.start.0 as u128) << 81
                | ((range.len & ADDR_MASK) as u128) << 34
                | (kind as u128) << 32
                | (id.0 as u128) << 1,
        ))
    }
    #[inline]
    pub(crate) fn start(self) -> u64 {
        (self.0 >> 81) as u64
    }
    #[inline]
    pub(super) fn len(self) -> u64 {
        (self.0 >> 34) as u64 & ADDR_MASK
    }
    #[inline]
    pub(super) fn end(self) -> u64 {
        self.start().wrapping_add(self.len())
    }
    #[inline]
    pub(crate) fn id(self) -> WatchId {
        WatchId((self.0 as u32) >> 1)
    }
    #[inline]
    pub(crate) fn kind(self) -> WatchKind {
        match (self.0 >> 32) & 3 {
            1 => WatchKind::Write,
            2 => WatchKind::Read,
            _ => WatchKind::Access,
        }
    }
    #[inline]
    pub(crate) fn range(self) -> WatchRange {
        WatchRange {
            start: TargetAddr(self.start()),
            len: self.len(),
        }
    }
    /// Marked for removal by the staging layer; still counts until the removal is committed.
    pub(crate) fn staged(self) -> bool {
        self.0 & 1 != 0
    }
    pub(super) fn same_watch(self, other: Entry) -> bool {
        (self.0 ^ other.0) >> 1 == 0
    }
    /// Lowest word of all watches of this range and kind, and the highest.
    pub(super) fn key_range(self) -> (Entry, Entry) {
        let low = self.0 >> 32 << 32;
        (Entry(low), Entry(low | 0xffff_ffff))
    }
}

#[repr(C)]
pub(super) struct Block {
    pub(super) len: u32,
    pub(super) entries: [Entry; CAP],
}

const _: () = assert!(size_of::<Block>() == 512);

impl Block {
    pub(super) const EMPTY: Block = Block {
        len: 0,
        entries: [Entry::NONE; CAP],
    };

    #[inline]
    pub(super) fn used(&self) -> &[Entry] {
        self.entries.get(..self.len as usize).unwrap_or(&[])
    }
    pub(super) fn max_end(&self) -> u64 {
        self.used().iter().map(|e| e.end()).max().unwrap_or(0)
    }
    pub(super) fn insert(&mut self, at: usize, e: Entry) {
        let len = self.len as usize;
        self.entries.copy_within(at..len, at + 1);
        self.entries[at] = e;
        self.len += 1;
    }
    pub(super) fn remove(&mut self, at: usize) {
        let len = self.len as usize;
        self.entries.copy_within(at + 1..len, at);
        self.len -= 1;
    }
}
