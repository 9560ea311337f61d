//! All watches, ordered by address, for the query which of them an access overlaps.
//!
//! A watch is one 128-bit word (`watchlist/entry.rs`). Blocks hold up to [`CAP`] words, and a directory orders the blocks
//! by their first word. A tree over the directory has the largest end below each node ([`FANOUT`] children a node). So
//! overlapping, nested and huge ranges cost a query no more than the watches it reports.
//!
//! ```text
//!     levels[2]  [ max ]                               largest end of 256 blocks
//!     levels[1]  [ max  max  max … ]                   … of 16 blocks
//!     levels[0]  [ m m m m m m … ]                     … of a block
//!     firsts     [ k k k k k k … ]   slots → blocks[slot] = { len, entries[31] }
//! ```
//!
//! **Concurrency.** Program threads query (`watchlist/query.rs`) in the fault handler. Methods that take `&mut self` run
//! on the stub's task while all program threads are parked.

mod entry;
mod pages;
mod query;

use alloc::vec::Vec;

use crate::pages::PageRun;
use crate::watch::{WatchId, WatchKind, WatchRange};
use entry::{Block, CAP};
use pages::Pages;

pub(crate) use entry::Entry;
pub use entry::WATCH_ID_END;

/// Children of a node in the tree of largest ends.
const FANOUT: usize = 16;

/// See the head of the module.
#[derive(Default)]
pub struct Watchlist {
    /// Pool of blocks; a block keeps its slot for life.
    blocks: Vec<Block>,
    free: Vec<u32>,
    /// First word of each block, ascending, and the block's slot.
    firsts: Vec<Entry>,
    slots: Vec<u32>,
    /// Largest ends; `levels[0]` runs parallel to `firsts`.
    levels: Vec<Vec<u64>>,
    /// Slot of the block that holds watch number n, plus one; zero: no such watch.
    by_id: Vec<u32>,
    len: usize,
}

impl Watchlist {
    /// An empty list, which has no memory yet.
    pub const fn new() -> Watchlist {
        Watchlist {
            blocks: Vec::new(),
            free: Vec::new(),
            firsts: Vec::new(),
            slots: Vec::new(),
            levels: Vec::new(),
            by_id: Vec::new(),
            len: 0,
        }
    }
    /// Number of watches.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Bytes of memory behind the list.
    pub fn memory(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>()
            + self.free.capacity() * 4
            + self.firsts.capacity() * size_of::<Entry>()
            + self.slots.capacity() * 4
            + self.levels.iter().map(|l| l.capacity() * 8).sum::<usize>()
            + self.by_id.capacity() * 4
    }

    // ---- the whole list --------------------------------------------------------------------

    fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        self.slots
            .iter()
            .filter_map(|&s| self.blocks.get(s as usize))
            .flat_map(|b| b.used().iter().copied())
    }

    /// All watches in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (WatchId, WatchRange, WatchKind)> + '_ {
        self.entries().map(|e| (e.id(), e.range(), e.kind()))
    }

    /// The pages under the watches as maximal runs that need the same guard, ascending.
    pub fn pages(&self) -> impl Iterator<Item = PageRun> + '_ {
        Pages::of(self.entries())
    }

    /// As [`Watchlist::pages`], for all watches but these few.
    pub fn pages_without<'a>(&'a self, out: &'a [WatchId]) -> impl Iterator<Item = PageRun> + 'a {
        Pages::of(self.entries().filter(move |e| !out.contains(&e.id())))
    }

    // ---- changes: the world is parked ------------------------------------------------------

    /// Adds a watch. `false`, and nothing happens, when the number is in use or the range does not
    /// fit user space (it ends above 2^47).
    pub fn insert(&mut self, id: WatchId, range: WatchRange, kind: WatchKind) -> bool {
        match Entry::new(id, range, kind) {
            Some(e) if self.entry(id).is_none() => {
                self.insert_entry(e);
                true
            }
            _ => false,
        }
    }

    /// Adds many watches in one go, in O((n + k) log k); returns how many were taken (see
    /// [`Watchlist::insert`]; of two with the same number the later one is dropped).
    pub fn insert_bulk(
        &mut self,
        watches: impl Iterator<Item = (WatchId, WatchRange, WatchKind)>,
    ) -> usize {
        let mut fresh: Vec<Entry> = Vec::with_capacity(watches.size_hint().0);
        for (id, range, kind) in watches {
            let Some(e) = Entry::new(id, range, kind) else {
                continue;
            };
            let slot = self.id_slot(id);
            if *slot == 0 {
                *slot = u32::MAX; // taken; the real slot follows
                fresh.push(e);
            }
        }
        let taken = fresh.len();
        self.merge(fresh);
        taken
    }

    /// Adds entries whose numbers are new to the list and unique.
    pub(crate) fn merge(&mut self, mut fresh: Vec<Entry>) {
        if fresh.len() < 64 || fresh.len() < self.len / 16 {
            for e in fresh {
                self.insert_entry(e);
            }
            return;
        }
        if self.len > 0 {
            fresh.reserve_exact(self.len);
            fresh.extend(self.entries());
        }
        fresh.sort_unstable();
        self.load(&fresh);
    }

    /// Removes a watch by its number.
    pub fn remove(&mut self, id: WatchId) -> Option<(WatchRange, WatchKind)> {
        let e = self.entry(id)?;
        self.remove_entry(e);
        Some((e.range(), e.kind()))
    }

    /// Removes one watch of exactly this range and kind: the one with the highest number.
    pub fn remove_range(&mut self, range: WatchRange, kind: WatchKind) -> Option<WatchId> {
        let e = self.last_matching(range, kind, |_| true)?;
        self.remove_entry(e);
        Some(e.id())
    }

    /// Removes all watches and gives their memory back.
    pub fn clear(&mut self) {
        *self = Watchlist::new();
    }

    /// The entry with the highest number among those of exactly this range and kind that `f` takes.
    pub(crate) fn last_matching(
        &self,
        range: WatchRange,
        kind: WatchKind,
        f: impl Fn(Entry) -> bool,
    ) -> Option<Entry> {
        let (low, high) = Entry::new(WatchId(0), range, kind)?.key_range();
        let mut index = self.firsts.partition_point(|&e| e <= high);
        while index > 0 {
            index -= 1;
            let block = &self.blocks[self.slots[index] as usize];
            for &e in block.used().iter().rev() {
                if e < low {
                    return None;
                }
                if e <= high && f(e) {
                    return Some(e);
                }
            }
        }
        None
    }

    /// Sets or clears the staging mark of a watch.
    pub(crate) fn set_staged(&mut self, id: WatchId, staged: bool) {
        let Some(slot) = self.by_id.get(id.0 as usize).and_then(|s| s.checked_sub(1)) else {
            return;
        };
        let block = &mut self.blocks[slot as usize];
        let len = block.len as usize;
        if let Some(e) = block.entries[..len].iter_mut().find(|e| e.id() == id) {
            e.0 = e.0 & !1 | staged as u128;
            let e = *e;
            // The directory's copy of the first word need not know: the mark never changes order.
            debug_assert!(e.staged() == staged);
        }
    }

    fn id_slot(&mut self, id: WatchId) -> &mut u32 {
        let i = id.0 as usize;
        if i >= self.by_id.len() {
            if i >= self.by_id.capacity() {
                let more = (i + 1 - self.by_id.len()).max(self.by_id.len() / 8).max(64);
                self.by_id.reserve_exact(more);
            }
            self.by_id.resize(i + 1, 0);
        }
        &mut self.by_id[i]
    }

    fn new_block(&mut self) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.blocks[slot as usize].len = 0;
            return slot;
        }
        if self.blocks.len() == self.blocks.capacity() {
            self.blocks.reserve_exact((self.blocks.len() / 8).max(4));
        }
        self.blocks.push(Block::EMPTY);
        (self.blocks.len() - 1) as u32
    }

    /// Index of the block that holds or should hold `e`.
    fn block_index(&self, e: Entry) -> usize {
        self.firsts
            .partition_point(|&first| first <= Entry(e.0 | 1))
            .saturating_sub(1)
    }

    fn insert_entry(&mut self, e: Entry) {
        if self.slots.is_empty() {
            let slot = self.new_block();
            self.add_to_directory(0, slot, e);
        }
        let mut index = self.block_index(e);
        let slot = self.slots[index] as usize;
        if self.blocks[slot].len as usize == CAP {
            let new = self.new_block();
            // Ascending insertion leaves full blocks behind; anything else splits in the middle.
            let appending = index + 1 == self.slots.len() && self.blocks[slot].entries[CAP - 1] < e;
            let keep = if appending { CAP } else { CAP / 2 + 1 };
            let upper = self.blocks[slot].entries;
            let upper = &upper[keep..];
            for (i, &moved) in upper.iter().enumerate() {
                self.blocks[new as usize].entries[i] = moved;
                *self.id_slot(moved.id()) = new + 1;
            }
            self.blocks[new as usize].len = upper.len() as u32;
            self.blocks[slot].len = keep as u32;
            let first = upper.first().copied().unwrap_or(e);
            self.add_to_directory(index + 1, new, first);
            self.update_max(index);
            if e >= first {
                index += 1;
            }
        }
        let slot = self.slots[index];
        let block = &mut self.blocks[slot as usize];
        let at = block.used().partition_point(|&x| x < e);
        block.insert(at, e);
        self.firsts[index] = block.entries[0];
        *self.id_slot(e.id()) = slot + 1;
        self.update_max(index);
        self.len += 1;
    }

    pub(crate) fn remove_entry(&mut self, e: Entry) {
        // Equal starts of neighbouring blocks cannot mislead: words are unique.
        let index = self.block_index(e);
        let Some(&slot) = self.slots.get(index) else {
            return;
        };
        let block = &mut self.blocks[slot as usize];
        let Some(at) = block.used().iter().position(|x| x.same_watch(e)) else {
            return;
        };
        block.remove(at);
        self.by_id[e.id().0 as usize] = 0;
        self.len -= 1;
        if block.len == 0 {
            self.remove_from_directory(index);
            return;
        }
        self.firsts[index] = block.entries[0];
        self.update_max(index);
        self.join_with_next(index);
    }

    /// Keeps blocks at least a quarter full on average.
    fn join_with_next(&mut self, index: usize) {
        let Some(&next) = self.slots.get(index + 1) else {
            return;
        };
        let slot = self.slots[index] as usize;
        let (have, more) = (
            self.blocks[slot].len as usize,
            self.blocks[next as usize].len as usize,
        );
        if have + more > CAP / 2 {
            return;
        }
        for i in 0..more {
            let e = self.blocks[next as usize].entries[i];
            self.blocks[slot].entries[have + i] = e;
            *self.id_slot(e.id()) = slot as u32 + 1;
        }
        self.blocks[slot].len = (have + more) as u32;
        self.remove_from_directory(index + 1);
        self.update_max(index);
    }

    /// Replaces the whole content by ascending entries.
    fn load(&mut self, entries: &[Entry]) {
        let blocks = entries.len().div_ceil(CAP);
        self.blocks.clear();
        self.free.clear();
        self.firsts.clear();
        self.slots.clear();
        self.levels.clear();
        self.blocks.reserve_exact(blocks);
        self.firsts.reserve_exact(blocks);
        self.slots.reserve_exact(blocks);
        let mut ends = Vec::with_capacity(blocks);
        for (slot, chunk) in entries.chunks(CAP).enumerate() {
            let mut block = Block::EMPTY;
            block.entries[..chunk.len()].copy_from_slice(chunk);
            block.len = chunk.len() as u32;
            for e in chunk {
                *self.id_slot(e.id()) = slot as u32 + 1;
            }
            ends.push(block.max_end());
            self.firsts.push(chunk[0]);
            self.slots.push(slot as u32);
            self.blocks.push(block);
        }
        self.levels.push(ends);
        self.len = entries.len();
        self.rebuild_levels(0);
    }

    fn add_to_directory(&mut self, index: usize, slot: u32, first: Entry) {
        self.firsts.insert(index, first);
        self.slots.insert(index, slot);
        if self.levels.is_empty() {
            self.levels.push(Vec::new());
        }
        let end = self.blocks[slot as usize].max_end();
        self.levels[0].insert(index, end);
        self.rebuild_levels(index);
    }

    fn remove_from_directory(&mut self, index: usize) {
        self.free.push(self.slots[index]);
        self.firsts.remove(index);
        self.slots.remove(index);
        self.levels[0].remove(index);
        self.rebuild_levels(index);
    }

    /// Makes the tree over `levels[0]` right again from block `from` on.
    fn rebuild_levels(&mut self, from: usize) {
        let (mut level, mut from) = (0, from);
        while self.levels[level].len() > FANOUT {
            from /= FANOUT;
            if self.levels.len() == level + 1 {
                self.levels.push(Vec::new());
                from = 0;
            }
            let (below, above) = self.levels.split_at_mut(level + 1);
            let (below, above) = (&below[level], &mut above[0]);
            above.truncate(from);
            above.extend(
                below[from * FANOUT..]
                    .chunks(FANOUT)
                    .map(|c| c.iter().copied().max().unwrap_or(0)),
            );
            level += 1;
        }
        self.levels.truncate(level + 1);
    }

    /// Block `index` has changed: carries its largest end up.
    fn update_max(&mut self, index: usize) {
        self.levels[0][index] = self.blocks[self.slots[index] as usize].max_end();
        let mut node = index;
        for level in 1..self.levels.len() {
            node /= FANOUT;
            let below = &self.levels[level - 1];
            let children = &below[node * FANOUT..below.len().min((node + 1) * FANOUT)];
            let max = children.iter().copied().max().unwrap_or(0);
            if self.levels[level][node] == max {
                break;
            }
            self.levels[level][node] = max;
        }
    }
}

#[cfg(test)]
mod tests;
