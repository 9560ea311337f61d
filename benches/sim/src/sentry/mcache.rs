// SPDX-License-Identifier: GPL-2.0-or-later
//! The M-cache (section 2.1): entries with permissions for the lines of a page. On the processor's
//! side they are tagged by page and domain, on the network's by the line that holds the metadata.
//! Software fills it; replaced entries are dropped.

use super::lines::{LINES, Permission};

#[derive(Clone)]
pub struct Entry {
    pub page: u64,
    pub domain: u32,
    pub permissions: [Permission; LINES],
    /// MPA: the line in which software keeps them.
    pub metadata: u64,
}

pub struct MCache {
    ways: Vec<Option<(Entry, u64)>>,
    associativity: usize,
    clock: u64,
}

impl MCache {
    pub fn new(entries: usize, associativity: usize) -> MCache {
        MCache {
            ways: vec![None; entries],
            associativity: associativity.min(entries),
            clock: 0,
        }
    }

    fn set_of(&mut self, page: u64) -> &mut [Option<(Entry, u64)>] {
        let sets = self.ways.len() / self.associativity;
        let first = (page as usize % sets) * self.associativity;
        &mut self.ways[first..first + self.associativity]
    }

    pub fn find(&mut self, page: u64, domain: u32) -> Option<&Entry> {
        self.clock += 1;
        let now = self.clock;
        let found = self
            .set_of(page)
            .iter_mut()
            .flatten()
            .find(|(e, _)| e.page == page && e.domain == domain)?;
        found.1 = now;
        Some(&found.0)
    }

    pub fn put(&mut self, entry: Entry) {
        self.clock += 1;
        let now = self.clock;
        let set = self.set_of(entry.page);
        let same = |w: &Option<(Entry, u64)>| {
            w.as_ref()
                .is_some_and(|(e, _)| (e.page, e.domain) == (entry.page, entry.domain))
        };
        let at = set
            .iter()
            .position(same)
            .or_else(|| (0..set.len()).min_by_key(|&n| set[n].as_ref().map_or(0, |w| w.1)));
        if let Some(at) = at {
            set[at] = Some((entry, now));
        }
    }

    /// Invalidates entries after a store to the metadata; returns how many.
    pub fn invalidate(&mut self, metadata: u64) -> u64 {
        let mut gone = 0;
        for w in &mut self.ways {
            if w.as_ref().is_some_and(|(e, _)| e.metadata == metadata) {
                *w = None;
                gone += 1;
            }
        }
        gone
    }
}
