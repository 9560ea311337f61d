// SPDX-License-Identifier: GPL-2.0-or-later
//! The watches, and what their pages have to forbid for them.

use super::Debug;
use crate::machine::{State, Uc};
use crate::memory::PAGE;
use crate::mmu::{NONE, RO, RW};
use std::collections::{BTreeSet, HashMap};
use ulpf_bridge::Filter;
use ulpf_bridge::Kind;

/// Bytes of all watches together; larger ones are refused.
pub const MAX_WATCHED: u64 = 1 << 30;

/// What is to become of its hits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wish {
    /// Those that pass the filter stop the machine.
    pub stop: bool,
    pub filter: Option<Filter>,
}

impl Default for Wish {
    fn default() -> Wish {
        Wish {
            stop: true,
            filter: None,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watch {
    pub addr: u64,
    pub len: u64,
    pub kind: Kind,
    pub hits: u64,
    /// Writes that left the value as it was.
    pub silent: u64,
    pub filtered: u64,
    pub stops: u64,
    pub wish: Wish,
    /// Hits that all of the filter but `skip` and `count` has let pass.
    pub(super) passed: u64,
    /// The user knows that its condition cannot be evaluated.
    pub(super) told: bool,
}

/// The watches of one page, and which of its bytes they cover: most accesses to a busy page touch none.
pub(super) struct Page {
    pub(super) ids: BTreeSet<u64>,
    bits: [u64; PAGE as usize / 64],
    /// Accesses to it that met no watch.
    pub(super) false_positives: u64,
}

impl Default for Page {
    fn default() -> Page {
        Page {
            ids: BTreeSet::new(),
            bits: [0; PAGE as usize / 64],
            false_positives: 0,
        }
    }
}

impl Page {
    fn cover(&mut self, page: u64, w: &Watch) {
        let (from, to) = (w.addr.max(page), (w.addr + w.len).min(page + PAGE));
        for byte in from - page..to - page {
            self.bits[byte as usize / 64] |= 1 << (byte % 64);
        }
    }

    fn covers(&self, page: u64, addr: u64, end: u64) -> bool {
        let (from, to) = (addr.max(page), end.min(page + PAGE));
        (from - page..to - page).any(|byte| self.bits[byte as usize / 64] >> (byte % 64) & 1 != 0)
    }
}

impl Debug {
    /// Its number, and the permissions of the pages that are different now.
    pub fn add(&mut self, addr: u64, len: u64, kind: Kind) -> (u64, Vec<(u64, u8)>) {
        self.add_as(addr, len, kind, Wish::default())
    }

    pub fn add_as(&mut self, addr: u64, len: u64, kind: Kind, wish: Wish) -> (u64, Vec<(u64, u8)>) {
        self.next += 1;
        let id = self.next;
        let w = Watch {
            addr,
            len,
            kind,
            hits: 0,
            silent: 0,
            filtered: 0,
            stops: 0,
            wish,
            passed: 0,
            told: false,
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

    /// What a page has to forbid for its watches.
    fn permission(&self, page: u64) -> u8 {
        let Some(Page { ids, .. }) = self.pages.get(&page) else {
            return RW;
        };
        match ids
            .iter()
            .all(|id| self.watches.get(id).is_none_or(|w| w.kind == Kind::Write))
        {
            true => RO,
            false => NONE,
        }
    }

    /// Another filter; false: there is no such watch.
    pub fn filter(&mut self, id: u64, filter: Option<Filter>) -> bool {
        let Some(w) = self.watches.get_mut(&id) else {
            return false;
        };
        (w.wish.filter, w.passed, w.told) = (filter, 0, false);
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

impl State {
    /// A watch for a debugger. The error says why not, and what to do.
    pub fn arm(
        &mut self,
        uc: &mut Uc,
        addr: u64,
        len: u64,
        kind: Kind,
        wish: Wish,
    ) -> Result<u64, String> {
        if len == 0 || addr.checked_add(len).is_none() {
            return Err(format!("{len} bytes at {addr:#x} are no memory"));
        }
        if self.debug.watched + len > MAX_WATCHED {
            return Err(format!(
                "all watches together would have more than {MAX_WATCHED} bytes; watch less"
            ));
        }
        if !self.space.is_mapped(addr, len) {
            return Err(format!(
                "nothing is mapped at {addr:#x} (+{len}); set the watch when the program has this memory"
            ));
        }
        if self.mmu.cr18 != 0 || self.device.is_ours() {
            return Err("the program has a handler for user-level page faults itself, and the machine has one such handler; use `--backend signal`".into());
        }
        let (id, changes) = self.debug.add_as(addr, len, kind, wish);
        self.mmu.write_once = false;
        for (page, permission) in changes {
            self.set_permission(uc, page, permission);
        }
        Ok(id)
    }

    /// False: there is no such watch.
    pub fn disarm(&mut self, uc: &mut Uc, id: u64) -> bool {
        let Some(changes) = self.debug.remove(id) else {
            return false;
        };
        for (page, permission) in changes {
            self.set_permission(uc, page, permission);
        }
        self.mmu.write_once = !self.debug.has_watches() && self.watches.is_empty();
        true
    }
}

fn pages(w: &Watch) -> impl Iterator<Item = u64> + Clone + use<> {
    (w.addr & !(PAGE - 1)..w.addr + w.len).step_by(PAGE as usize)
}
