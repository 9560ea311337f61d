//! Watches that are switched off: removed from the list, so that they cost nothing. Their numbers, counters and filters
//! are kept for when they are switched on again.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use ulpf_lib::ring::listed;
use ulpf_lib::{WatchId, WatchKind, WatchRange};

use super::watches::IfUnmapped;
use super::{Control, watch_table};
use crate::inferior::Refusal;
use ulpf_lib::command::Placement;
use ulpf_stub_handlers::global::g;

#[derive(Default)]
pub struct Disabled(Vec<(WatchId, WatchRange, WatchKind)>);

impl Disabled {
    pub fn list(&self) -> impl Iterator<Item = (WatchId, WatchRange, WatchKind)> + '_ {
        self.0.iter().copied()
    }

    pub fn has(&self, id: WatchId) -> bool {
        self.find(id).is_some()
    }

    fn find(&self, id: WatchId) -> Option<usize> {
        self.0.iter().position(|w| w.0 == id)
    }

    /// Forgets a watch that will not be switched on again. `None`: it is not off.
    pub fn forget(&mut self, id: WatchId) -> Option<(WatchRange, WatchKind)> {
        let at = self.find(id)?;
        let (_, range, kind) = self.0.swap_remove(at);
        if let Some(line) = g().listed(id) {
            line.what.fetch_and(!listed::OFF, Release);
        }
        Some((range, kind))
    }
}

fn refusal(id: WatchId, why: &str, what_to_do: &str) -> Refusal {
    Refusal {
        what: alloc::format!("watch {}", id.0),
        why: why.into(),
        what_to_do: what_to_do.into(),
    }
}

impl Control {
    pub fn switch_off(&mut self, id: WatchId) -> Result<(), Refusal> {
        if self.disabled.has(id) {
            return Ok(());
        }
        if self.heap.list().any(|(heap, _)| heap == id) {
            let what_to_do = "take it away, and set it again when it is wanted";
            return Err(refusal(
                id,
                "a watch on the heap is not switched off",
                what_to_do,
            ));
        }
        if self.paths.has(id) {
            self.switch_path(id, false);
            return Ok(());
        }
        self.own(id)?;
        let Some((range, kind)) = self.staged.remove_id(id) else {
            return Err(no_such_watch(id));
        };
        watch_table::switched_off(id, range, kind);
        self.disabled.0.push((id, range, kind));
        Ok(())
    }

    pub fn switch_on(&mut self, id: WatchId) -> Result<(), Refusal> {
        if self.paths.has(id) {
            self.switch_path(id, true);
            return Ok(());
        }
        let Some((_, range, kind)) = self
            .disabled
            .find(id)
            .and_then(|at| self.disabled.0.get(at))
            .copied()
        else {
            return match self.staged.holds(id) {
                true => Ok(()),
                false => Err(no_such_watch(id)),
            };
        };
        let placement = g().attributes(id).placement;
        let (placement, _) = self.possible(range, kind, (placement, true), IfUnmapped::Await)?;
        self.disabled.forget(id);
        if !self.staged.insert_again(id, range, kind) {
            return Err(no_such_watch(id));
        }
        if placement == Placement::Register {
            self.force_register(id);
        }
        Ok(())
    }

    /// Refuses the debugger's own watches, which it removes and inserts as it likes.
    fn own(&self, id: WatchId) -> Result<(), Refusal> {
        match self.staged.holds(id) && !g().is_out_of_band(id) {
            true => Err(refusal(
                id,
                "it is the debugger's own",
                "disable or delete it there (GDB: info watchpoints)",
            )),
            false => Ok(()),
        }
    }
}

fn no_such_watch(id: WatchId) -> Refusal {
    let what_to_do = "`monitor ulpf stats` lists all";
    refusal(id, "there is no watch with that number", what_to_do)
}
