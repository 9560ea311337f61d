//! Queries of program threads in the fault handler: which watches an access overlaps. They allocate nothing, take no lock
//! and never panic.

use super::entry::Entry;
use super::{FANOUT, Watchlist};
use crate::addr::TargetAddr;
use crate::watch::{WatchId, WatchKind, WatchRange};

/// The bytes of an access.
struct Span {
    addr: u64,
    end: u64,
}

impl Watchlist {
    /// Calls `f` for every watch that shares a byte with `[addr, addr + len)`, in ascending order.
    pub fn for_each_overlap<F: FnMut(WatchId, WatchRange, WatchKind)>(
        &self,
        addr: TargetAddr,
        len: u64,
        f: &mut F,
    ) {
        self.visit(addr, len, &mut |e| {
            f(e.id(), e.range(), e.kind());
            true
        });
    }

    /// Whether any watch shares a byte with `[addr, addr + len)`.
    pub fn any_overlap(&self, addr: TargetAddr, len: u64) -> bool {
        !self.visit(addr, len, &mut |_| false)
    }

    /// As [`Watchlist::for_each_overlap`], while `f` returns true.
    pub fn overlaps_while<F: FnMut(WatchId, WatchRange, WatchKind) -> bool>(
        &self,
        addr: TargetAddr,
        len: u64,
        f: &mut F,
    ) {
        self.visit(addr, len, &mut |e| f(e.id(), e.range(), e.kind()));
    }

    /// Range and kind of a watch.
    pub fn get(&self, id: WatchId) -> Option<(WatchRange, WatchKind)> {
        self.entry(id).map(|e| (e.range(), e.kind()))
    }

    pub(crate) fn entry(&self, id: WatchId) -> Option<Entry> {
        let slot = self.by_id.get(id.0 as usize)?.checked_sub(1)?;
        self.blocks
            .get(slot as usize)?
            .used()
            .iter()
            .find(|e| e.id() == id)
            .copied()
    }

    /// Calls `f` until it returns false; returns whether it never did.
    fn visit<F: FnMut(Entry) -> bool>(&self, addr: TargetAddr, len: u64, f: &mut F) -> bool {
        if len == 0 {
            return true;
        }
        let span = Span {
            addr: addr.0,
            end: addr.0.saturating_add(len),
        };
        // Blocks from here on start above the access.
        let blocks_end = self.firsts.partition_point(|e| e.start() < span.end);
        let Some(top) = self.levels.len().checked_sub(1) else {
            return true;
        };
        self.descend(top, 0, usize::MAX, blocks_end, &span, f)
    }

    /// Visits nodes `[from, to)` of a level. Recursion is as deep as the tree: 5 for a million.
    fn descend<F: FnMut(Entry) -> bool>(
        &self,
        level: usize,
        from: usize,
        to: usize,
        blocks_end: usize,
        span: &Span,
        f: &mut F,
    ) -> bool {
        let Some(nodes) = self.levels.get(level) else {
            return true;
        };
        for (i, &max_end) in nodes.iter().enumerate().take(to).skip(from) {
            // First block below node i; FANOUT is 16.
            if i.wrapping_shl(4 * level as u32) >= blocks_end {
                return true;
            }
            if max_end <= span.addr {
                continue;
            }
            let go_on = match level.checked_sub(1) {
                Some(below) => self.descend(
                    below,
                    i * FANOUT,
                    i.wrapping_add(1) * FANOUT,
                    blocks_end,
                    span,
                    f,
                ),
                None => self.visit_block(i, span, f),
            };
            if !go_on {
                return false;
            }
        }
        true
    }

    fn visit_block<F: FnMut(Entry) -> bool>(&self, index: usize, span: &Span, f: &mut F) -> bool {
        let Some(block) = self
            .slots
            .get(index)
            .and_then(|&s| self.blocks.get(s as usize))
        else {
            return true;
        };
        for &e in block.used() {
            if e.start() >= span.end {
                break;
            }
            if e.end() > span.addr && !f(e) {
                return false;
            }
        }
        true
    }
}
