//! Patches of accesses that will be met soon: those behind a hot one through the same pointer. They need not fault a few times
//! each, and the world rests already.

use core::sync::atomic::Ordering::Relaxed;

use ulpf_engine::patch::ahead;
use ulpf_lib::TargetAddr;
use ulpf_lib::pages::Guard;

use super::Patches;
use crate::control::text;
use ulpf_stub_handlers::check::entries;
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::patches;
use ulpf_stub_handlers::rest::AtRest;

/// So many bytes behind an access are looked at.
const BYTES: usize = 64;

impl Patches {
    /// Where all of a heap is watched, or checked: what the access at `pc`, which has met `page`, has behind it.
    pub(super) fn foresee(&mut self, pc: u64, page: u64) {
        self.foreseen.clear();
        if !entries::ON.load(Relaxed) && !self.classes.are_mostly_whole() {
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
        let loads = g().page_map.entry(TargetAddr(page)).guard() == Some(Guard::NoAccess);
        let all = ahead(pc, code.get(..n).unwrap_or(&[]), loads);
        self.foreseen = all;
    }

    /// They get their patches, if the one before them has one (`worth`), and they can without more ado.
    pub(super) fn make_foreseen(&mut self, rest: &mut AtRest, worth: bool) {
        let all = match worth {
            true => self.foreseen.clone(),
            false => Default::default(),
        };
        for at in all {
            let table = patches::table();
            let Ok(maps) = self.maps() else { break };
            let (start, pun) = match table.at(at) {
                None if table.of(at).is_none() => (at, None),
                Some(p) if !p.group.checks(at) && p.group.part(at).is_some() => {
                    (p.start(), p.group.pun())
                }
                _ => continue,
            };
            if !table.refused.contains_key(&at) {
                // (If it cannot be, it is tried again when it is hot, by other ways.)
                let _ = self.place(rest, at, start, pun, &maps);
            }
        }
        self.foreseen.clear();
    }
}
