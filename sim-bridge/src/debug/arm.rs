// SPDX-License-Identifier: GPL-2.0-or-later
//! Watches that a debugger sets while the program rests.

use super::watch::{MAX_WATCHED, WatchRequest};
use crate::state::{State, Uc};
use ulpf_lib::WatchKind;

impl State {
    /// A watch for a debugger. The error says why not, and what to do.
    pub fn arm(
        &mut self,
        uc: &mut Uc,
        addr: u64,
        len: u64,
        kind: WatchKind,
        request: WatchRequest,
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
        let (id, changes) = self.debug.add_as(addr, len, kind, request);
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
