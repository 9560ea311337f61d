//! Patches of accesses that will be met soon: accesses behind a hot one through the same pointer, and accesses that
//! were hot in an earlier run (`hot.rs`). They need not fault a few times each, and the world is stopped already.

use core::sync::atomic::Ordering::Relaxed;

use ulpf_engine::patch::following;
use ulpf_lib::pages::Guard;
use ulpf_lib::{PAGE_SIZE, TargetAddr};

use super::Patches;
use crate::control::text;
use ulpf_stub_handlers::check::entries;
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::hot_sites;
use ulpf_stub_handlers::patches;
use ulpf_stub_handlers::stopped::Stopped;
use ulpf_stub_tables::edit::Edit;

/// Number of bytes behind an access that are examined.
const BYTES: usize = 64;

impl Patches {
    /// Returns whether all accesses to a heap probably count.
    fn are_looked_for(&self) -> bool {
        entries::ON.load(Relaxed) || self.classes.are_mostly_covered()
    }

    /// Accesses in the same page of code as the one at `pc`, which has met `page`, that were hot in an earlier run.
    pub(super) fn serve_hinted(&mut self, stopped: &mut Stopped, pc: u64, page: u64) {
        if !self.are_looked_for() {
            return;
        }
        let Ok(maps) = self.maps() else { return };
        self.hot.look(pc, &maps);
        if !hot_sites::is_hinted(pc) {
            return;
        }
        let code = pc & !(PAGE_SIZE - 1);
        self.window.open_page(code);
        self.predicted = self
            .hot
            .take(code, pc, self.window.code(), leads_to_loads(page));
        for at in self.predicted.clone() {
            let refused = patches::table().refused.contains_key(&at);
            if !refused && !patches::is_patched(at) {
                // (If it cannot be, it is tried again when it is hot.)
                let _ = self.make(stopped, at);
            }
        }
        self.predicted.clear();
        self.window.close();
    }

    /// Keeps the hot accesses for the next run.
    pub fn keep(&self) {
        self.hot.keep();
    }

    /// Where all of a heap is watched or checked: finds further accesses behind the one at `pc`, which has met `page`.
    pub(super) fn predict(&mut self, pc: u64, page: u64) {
        self.predicted.clear();
        if !self.are_looked_for() {
            return;
        }
        let Ok(maps) = self.maps() else { return };
        let Some(vma) = maps.at(pc).filter(|vma| text::may_patch(vma)) else {
            return;
        };
        let mut code = [0; BYTES];
        let room = (vma.end - pc).min(BYTES as u64) as usize;
        let n = code
            .get_mut(..room)
            .map_or(0, |to| self.window.read(pc, to));
        let all = following(pc, code.get(..n).unwrap_or(&[]), leads_to_loads(page));
        self.predicted = all;
    }

    /// Patches them, if the access before them has a patch (`worth`), and no further work is needed.
    pub(super) fn patch_predicted(&mut self, stopped: &mut Stopped, worth: bool) {
        let all = match worth {
            true => self.predicted.clone(),
            false => Default::default(),
        };
        for at in all {
            let list = patches::list();
            let Ok(maps) = self.maps() else { break };
            let (start, pun) = match list.covering(at) {
                None if list.checking(at).is_none() => (at, None),
                Some(p) if !p.group.checks(at) && p.group.part(at).is_some() => {
                    (p.start(), p.group.pun())
                }
                _ => continue,
            };
            if !patches::table().refused.contains_key(&at) {
                // (If that fails, it is tried again when it is hot, in other ways.)
                let _ = self.place(stopped, at, start, pun, &maps);
            }
        }
        self.predicted.clear();
    }
}

/// Returns whether loads from this page fault, too.
fn leads_to_loads(page: u64) -> bool {
    g().page_map.entry(TargetAddr(page)).guard() == Some(Guard::NoAccess)
}
