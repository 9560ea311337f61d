//! Watches as a debugger handles them: removed and re-inserted at every stop.
//!
//! GDB removes and re-inserts each of its watches whenever the program stops. So a removal only marks the watch, and an
//! insertion of the same range and kind clears the mark. [`StagedWatches::commit`] returns the real changes since the
//! last commit.

mod different;

use alloc::vec::Vec;

use crate::watch::{WatchId, WatchKind, WatchRange};
use crate::watchlist::{Entry, WATCH_ID_END, Watchlist};

/// A watchlist whose changes take effect together.
///
/// Owned by the stub's task. All changes, staged ones too, happen while the program is parked;
/// between a change and [`StagedWatches::commit`] the program must not run.
#[derive(Default)]
pub struct StagedWatches {
    list: Watchlist,
    /// Inserted since the last look-up; not yet in `list`.
    fresh: Vec<Entry>,
    /// Numbers of watches that were marked at some time since the last commit.
    marked: Vec<WatchId>,
    /// Number of watches that carry the mark now.
    marks: usize,
    next_id: u32,
    /// Numbers from here on were given out after the last commit.
    first_new: u32,
    /// Older numbers that came back after it.
    again: Vec<WatchId>,
}

/// The difference that a commit makes.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct Changes {
    /// In force from now on.
    pub added: Vec<(WatchId, WatchRange, WatchKind)>,
    /// No longer in force.
    pub removed: Vec<(WatchId, WatchRange, WatchKind)>,
}

impl Changes {
    /// Whether there is no difference.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }
}

impl StagedWatches {
    /// No watches, and nothing to commit.
    pub const fn new() -> StagedWatches {
        StagedWatches {
            list: Watchlist::new(),
            fresh: Vec::new(),
            marked: Vec::new(),
            marks: 0,
            next_id: 0,
            first_new: 0,
            again: Vec::new(),
        }
    }

    /// The watches in force. Complete after [`StagedWatches::commit`].
    pub fn list(&self) -> &Watchlist {
        &self.list
    }

    /// Numbers from here on take effect with the next commit.
    pub fn first_new(&self) -> u32 {
        self.first_new
    }

    /// The list as it will be in force after a commit.
    pub fn coming(&mut self) -> &Watchlist {
        self.flush();
        &self.list
    }

    /// Whether this watch will be in force after a commit.
    pub fn holds(&self, id: WatchId) -> bool {
        match self.list.entry(id) {
            Some(e) => !e.staged(),
            None => self.fresh.iter().any(|e| e.id() == id),
        }
    }

    /// A watch, also one that has been removed since the last commit and may come back.
    pub fn get(&self, id: WatchId) -> Option<(WatchRange, WatchKind)> {
        let fresh = || self.fresh.iter().find(|e| e.id() == id);
        let fresh = || fresh().map(|e| (e.range(), e.kind()));
        self.list.get(id).or_else(fresh)
    }

    /// Number of watches that will be in force after a commit.
    pub fn len(&self) -> usize {
        self.list.len() + self.fresh.len() - self.marks
    }
    /// Whether no watch will be in force.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Restores a watch that was removed since the last commit. Returns `None` if no such watch has this range and kind;
    /// check whether it can be armed ([`crate::guard::Guards::check`]) and [`StagedWatches::insert`] it.
    pub fn restore(&mut self, range: WatchRange, kind: WatchKind) -> Option<WatchId> {
        self.restore_one(range, kind, |_| true)
    }

    /// As [`StagedWatches::restore`], for a watch that `which` accepts.
    pub fn restore_one(
        &mut self,
        range: WatchRange,
        kind: WatchKind,
        which: impl Fn(WatchId) -> bool,
    ) -> Option<WatchId> {
        if self.marks == 0 {
            return None;
        }
        let wanted = |e: Entry| e.staged() && which(e.id());
        let e = self.list.last_matching(range, kind, wanted)?;
        self.list.set_staged(e.id(), false);
        self.marks -= 1;
        Some(e.id())
    }

    /// Adds a watch, or puts it back with its old number. `None` when the range does not fit user
    /// space or the numbers are used up.
    pub fn insert(&mut self, range: WatchRange, kind: WatchKind) -> Option<WatchId> {
        self.restore(range, kind)
            .or_else(|| self.insert_new(range, kind))
    }

    /// Adds a watch with a number of its own.
    pub fn insert_new(&mut self, range: WatchRange, kind: WatchKind) -> Option<WatchId> {
        if self.next_id >= WATCH_ID_END {
            return None;
        }
        let id = WatchId(self.next_id);
        self.fresh.push(Entry::new(id, range, kind)?);
        self.next_id += 1;
        Some(id)
    }

    /// Restores a removed watch under its old number, also if it was removed before the last commit. Returns false if
    /// that number is in use, or was never given out.
    pub fn insert_again(&mut self, id: WatchId, range: WatchRange, kind: WatchKind) -> bool {
        self.flush();
        match self.list.entry(id) {
            Some(e) if e.staged() && (e.range(), e.kind()) == (range, kind) => {
                self.list.set_staged(id, false);
                self.marks -= 1;
                return true;
            }
            Some(_) => return false,
            None => {}
        }
        let Some(entry) = Entry::new(id, range, kind).filter(|_| id.0 < self.next_id) else {
            return false;
        };
        self.fresh.push(entry);
        self.again.push(id);
        true
    }

    /// A number without a range, under which several watches are reported as one.
    pub fn reserve(&mut self) -> Option<WatchId> {
        let id = WatchId(self.next_id);
        (self.next_id < WATCH_ID_END).then(|| {
            self.next_id += 1;
            id
        })
    }

    /// Removes one watch of exactly this range and kind. Two insertions need two removals.
    pub fn remove(&mut self, range: WatchRange, kind: WatchKind) -> Option<WatchId> {
        self.remove_one(range, kind, |_| true)
    }

    /// As [`StagedWatches::remove`], for a watch that `which` accepts.
    pub fn remove_one(
        &mut self,
        range: WatchRange,
        kind: WatchKind,
        which: impl Fn(WatchId) -> bool,
    ) -> Option<WatchId> {
        self.flush();
        let wanted = |e: Entry| !e.staged() && which(e.id());
        let e = self.list.last_matching(range, kind, wanted)?;
        self.mark(e.id());
        Some(e.id())
    }

    /// Removes a watch by its number.
    pub fn remove_id(&mut self, id: WatchId) -> Option<(WatchRange, WatchKind)> {
        self.flush();
        let e = self.list.entry(id).filter(|e| !e.staged())?;
        self.mark(id);
        Some((e.range(), e.kind()))
    }

    /// Removes all watches.
    pub fn remove_all(&mut self) {
        self.flush();
        let ids: Vec<WatchId> = self.list.iter().map(|(id, ..)| id).collect();
        for id in ids {
            if self.list.entry(id).is_some_and(|e| !e.staged()) {
                self.mark(id);
            }
        }
    }

    /// Puts the staged changes into force and returns them. A watch that was removed and restored, or inserted and
    /// removed, does not appear.
    pub fn commit(&mut self) -> Changes {
        let mut changes = Changes::default();
        if self.marks > 0 {
            self.flush();
            self.again.sort_unstable();
            for id in core::mem::take(&mut self.marked) {
                let Some(e) = self.list.entry(id).filter(|e| e.staged()) else {
                    continue;
                };
                self.list.remove_entry(e);
                if id.0 < self.first_new && self.again.binary_search(&id).is_err() {
                    changes.removed.push((id, e.range(), e.kind()));
                }
            }
            self.marks = 0;
        }
        self.marked.clear();
        self.flush();
        let new = (self.first_new..self.next_id).map(WatchId);
        // (One that was given out after the last commit is among the new ones anyway.)
        let first_new = self.first_new;
        let again = core::mem::take(&mut self.again);
        for id in again.into_iter().filter(|id| id.0 < first_new).chain(new) {
            if let Some((range, kind)) = self.list.get(id) {
                changes.added.push((id, range, kind));
            }
        }
        self.first_new = self.next_id;
        changes
    }

    fn mark(&mut self, id: WatchId) {
        self.list.set_staged(id, true);
        self.marked.push(id);
        self.marks += 1;
    }

    fn flush(&mut self) {
        if !self.fresh.is_empty() {
            self.list.merge(core::mem::take(&mut self.fresh));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::TargetAddr;

    fn range(start: u64, len: u64) -> WatchRange {
        WatchRange::new(TargetAddr(start), len).unwrap()
    }

    #[test]
    fn one_of_several_equal_ones() {
        let mut w = StagedWatches::new();
        let there = (range(8, 4), WatchKind::Write);
        let ids = [(); 3].map(|()| w.insert(there.0, there.1).unwrap());
        w.commit();
        let second = |id| id == ids[1];
        assert_eq!(w.remove_one(there.0, there.1, second), Some(ids[1]));
        assert_eq!(w.remove_one(there.0, there.1, second), None);
        assert_eq!(w.commit().removed, [(ids[1], there.0, there.1)]);
        assert!(w.holds(ids[0]) && w.holds(ids[2]));
    }

    #[test]
    fn what_may_come_back_is_known() {
        let mut w = StagedWatches::new();
        let here = (range(8, 4), WatchKind::Read);
        let id = w.insert(here.0, here.1).unwrap();
        assert_eq!(w.get(id), Some(here));
        w.commit();
        w.remove_id(id);
        assert_eq!((w.get(id), w.holds(id)), (Some(here), false));
        w.commit();
        assert_eq!(w.get(id), None);
    }

    #[test]
    fn an_old_number_comes_back() {
        let mut w = StagedWatches::new();
        let here = (range(8, 4), WatchKind::Read);
        let id = w.insert(here.0, here.1).unwrap();
        let other = w.insert(range(16, 4), WatchKind::Read).unwrap();
        w.commit();
        assert!(!w.insert_again(id, here.0, here.1), "it is there");
        w.remove_id(id);
        assert!(w.insert_again(id, here.0, here.1));
        assert!(w.commit().is_empty(), "nothing has changed");
        w.remove_id(id);
        assert_eq!(w.commit().removed, [(id, here.0, here.1)]);
        assert!(!w.insert_again(WatchId(99), here.0, here.1), "nobody's");
        assert!(w.insert_again(id, here.0, here.1) && w.holds(id));
        // Removed again before the commit.
        w.remove_id(id);
        assert!(w.commit().is_empty());
        assert!(w.insert_again(id, here.0, here.1));
        assert_eq!(w.commit().added, [(id, here.0, here.1)]);
        assert_eq!(w.len(), 2);
        w.remove_id(other);
        assert_eq!(w.commit().removed.len(), 1);
    }

    #[test]
    fn removing_and_inserting_again_changes_nothing_and_keeps_the_numbers() {
        let mut w = StagedWatches::new();
        let ids: Vec<_> = (0..100)
            .map(|i| w.insert(range(i * 8, 8), WatchKind::Write).unwrap())
            .collect();
        assert_eq!(w.commit().added.len(), 100);
        for round in 0..3 {
            for i in 0..100 {
                assert_eq!(
                    w.remove(range(i * 8, 8), WatchKind::Write),
                    Some(ids[i as usize]),
                    "round {round}"
                );
            }
            assert_eq!(w.len(), 0);
            for i in 0..100 {
                assert_eq!(
                    w.insert(range(i * 8, 8), WatchKind::Write),
                    Some(ids[i as usize])
                );
            }
            assert!(w.commit().is_empty());
            assert_eq!(w.list().len(), 100);
        }
    }

    #[test]
    fn only_the_difference_is_named() {
        let mut w = StagedWatches::new();
        let a = w.insert(range(0x1000, 4), WatchKind::Write).unwrap();
        let b = w.insert(range(0x2000, 4), WatchKind::Read).unwrap();
        w.commit();
        w.remove(range(0x1000, 4), WatchKind::Write);
        w.remove(range(0x2000, 4), WatchKind::Read);
        assert_eq!(
            w.restore(range(0x2000, 4), WatchKind::Write),
            None,
            "another kind is another watch"
        );
        assert_eq!(w.restore(range(0x2000, 4), WatchKind::Read), Some(b));
        let c = w.insert(range(0x3000, 1), WatchKind::Access).unwrap();
        w.insert(range(0x4000, 1), WatchKind::Access).unwrap();
        w.remove(range(0x4000, 1), WatchKind::Access);
        let changes = w.commit();
        assert_eq!(changes.added, [(c, range(0x3000, 1), WatchKind::Access)]);
        assert_eq!(changes.removed, [(a, range(0x1000, 4), WatchKind::Write)]);
        assert!(w.commit().is_empty());
    }

    proptest::proptest! {
        #[test]
        fn agrees_with_a_plain_multiset(ops in proptest::collection::vec((0u8..8, 0u64..6, 1u64..3, 0usize..3), 0..200)) {
            use std::collections::BTreeMap;
            let mut w = StagedWatches::new();
            // Staged and committed watches: (range, kind) → number of them.
            let kinds = [WatchKind::Write, WatchKind::Read, WatchKind::Access];
            let (mut staged, mut committed) = (BTreeMap::new(), BTreeMap::<WatchId, (WatchRange, WatchKind)>::new());
            for (op, at, len, k) in ops {
                let (r, kind) = (range(0x1000 + at * 2, len), kinds[k]);
                let count = staged.entry((r, k)).or_insert(0usize);
                match op {
                    0..4 => {
                        w.insert(r, kind).unwrap();
                        *count += 1;
                    }
                    4..7 => {
                        proptest::prop_assert_eq!(w.remove(r, kind).is_some(), *count > 0);
                        *count = count.saturating_sub(1);
                    }
                    _ => {
                        let changes = w.commit();
                        for (id, r, kind) in changes.removed {
                            proptest::prop_assert_eq!(committed.remove(&id), Some((r, kind)));
                        }
                        for (id, r, kind) in changes.added {
                            proptest::prop_assert!(committed.insert(id, (r, kind)).is_none());
                        }
                        let mut now: Vec<_> = committed.iter().map(|(id, w)| (*id, *w)).collect();
                        now.sort_unstable_by_key(|w| w.0);
                        let mut list: Vec<_> = w.list().iter().map(|(id, r, k)| (id, (r, k))).collect();
                        list.sort_unstable_by_key(|w| w.0);
                        proptest::prop_assert_eq!(now, list);
                    }
                }
                proptest::prop_assert_eq!(w.len(), staged.values().sum::<usize>());
            }
        }
    }

    #[test]
    fn two_identical_insertions_need_two_removals() {
        let mut w = StagedWatches::new();
        let r = range(0x1000, 8);
        let ids = [
            w.insert(r, WatchKind::Write).unwrap(),
            w.insert(r, WatchKind::Write).unwrap(),
        ];
        w.commit();
        assert!(w.remove(r, WatchKind::Write).is_some());
        w.commit();
        assert!(w.list().any_overlap(TargetAddr(0x1003), 1));
        assert_eq!(w.remove(r, WatchKind::Write), Some(ids[0]));
        assert_eq!(w.remove(r, WatchKind::Write), None);
        w.commit();
        assert!(w.list().is_empty());
    }
}
