// SPDX-License-Identifier: GPL-2.0-or-later
//! Which watches there are, and what their pages have to forbid for them.

use super::Debug;
use super::watch::{Page, Watch, WatchRequest};
use crate::memory::PAGE;
use crate::mmu::{NONE, RO, RW};
use std::collections::HashMap;
use ulpf_lib::WatchKind;
use ulpf_lib::filter::Filter;

impl Debug {
    /// Its number, and the permissions of the pages that are different now.
    pub fn add(&mut self, addr: u64, len: u64, kind: WatchKind) -> (u64, Vec<(u64, u8)>) {
        self.add_as(addr, len, kind, WatchRequest::default())
    }

    pub fn add_as(
        &mut self,
        addr: u64,
        len: u64,
        kind: WatchKind,
        request: WatchRequest,
    ) -> (u64, Vec<(u64, u8)>) {
        self.next += 1;
        let id = self.next;
        let w = Watch {
            addr,
            len,
            kind,
            counts: Default::default(),
            request,
            passed: 0,
            reported: false,
        };
        let pages = pages(&w);
        self.watched += len;
        self.watches.insert(id, w);
        let change = |page| {
            let was = self.permission(page);
            let entry = self.pages.entry(page).or_default();
            entry.ids.insert(id);
            entry.cover(page, &self.watches[&id]);
            let is = self.permission(page);
            (was != is).then_some((page, is))
        };
        (id, pages.filter_map(change).collect())
    }

    /// `None`: there is no such watch.
    pub fn remove(&mut self, id: u64) -> Option<Vec<(u64, u8)>> {
        let all = pages(self.watches.get(&id)?);
        let was: Vec<_> = all.clone().map(|p| (p, self.permission(p))).collect();
        self.watched -= self.watches.remove(&id).map_or(0, |w| w.len);
        for page in all {
            let Some(mut entry) = self.pages.remove(&page) else {
                continue;
            };
            entry.ids.remove(&id);
            if !entry.ids.is_empty() {
                let ids = std::mem::take(&mut entry.ids);
                entry.bits.fill(0);
                for w in ids.iter().filter_map(|id| self.watches.get(id)) {
                    entry.cover(page, w);
                }
                self.pages.insert(page, Page { ids, ..entry });
            }
        }
        let now = was.into_iter().map(|(p, old)| (p, old, self.permission(p)));
        Some(now.filter(|c| c.1 != c.2).map(|c| (c.0, c.2)).collect())
    }

    /// The permission that the watches of a page require.
    fn permission(&self, page: u64) -> u8 {
        let Some(Page { ids, .. }) = self.pages.get(&page) else {
            return RW;
        };
        match ids.iter().all(|id| {
            self.watches
                .get(id)
                .is_none_or(|w| w.kind == WatchKind::Write)
        }) {
            true => RO,
            false => NONE,
        }
    }

    /// Another filter; false: there is no such watch.
    pub fn filter(&mut self, id: u64, filter: Option<Filter>) -> bool {
        let Some(w) = self.watches.get_mut(&id) else {
            return false;
        };
        (w.request.filter, w.passed, w.reported) = (filter, 0, false);
        true
    }

    /// Accesses beside watches, by the first watch of each page.
    pub fn false_positives(&self) -> HashMap<u64, u64> {
        let mut all = HashMap::new();
        for page in self.pages.values().filter(|p| p.false_positives > 0) {
            if let Some(id) = page.ids.first() {
                *all.entry(*id).or_default() += page.false_positives;
            }
        }
        all
    }

    pub fn guards(&self, addr: u64) -> bool {
        self.pages.contains_key(&(addr & !(PAGE - 1)))
    }

    pub(super) fn overlapping(&self, addr: u64, len: u64) -> Vec<u64> {
        let end = addr.saturating_add(len);
        let mut ids: Vec<u64> = (addr & !(PAGE - 1)..end)
            .step_by(PAGE as usize)
            .filter_map(|page| self.pages.get(&page).filter(|p| p.covers(page, addr, end)))
            .flat_map(|p| &p.ids)
            .copied()
            .filter(|id| {
                self.watches
                    .get(id)
                    .is_some_and(|w| addr < w.addr + w.len && w.addr < end)
            })
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

fn pages(w: &Watch) -> impl Iterator<Item = u64> + Clone + use<> {
    (w.addr & !(PAGE - 1)..w.addr + w.len).step_by(PAGE as usize)
}
