// SPDX-License-Identifier: GPL-2.0-or-later
//! What the kernel touches on the program's behalf, and guard ranges.

use crate::errno::EFAULT;
use crate::memory::PAGE;
use crate::mmu::forbids;
use crate::state::{State, Uc};
use ulpf_lib::device::abi::{self, EVENT_GUARD, EVENT_KERNEL_READ, EVENT_KERNEL_WRITE};

const INFO_WRITE: u16 = abi::INFO_WRITE as u16;

impl State {
    /// Whether an access to a page with a mark is stopped. (A logged page is open from then on.)
    #[cold]
    pub(crate) fn guarded(&mut self, uc: &Uc, addr: u64, store: bool) -> bool {
        let Some(&mark) = self.device.guards.get(&(addr / PAGE)) else {
            return false;
        };
        self.event(uc, EVENT_GUARD, addr, u16::from(store) * INFO_WRITE);
        if mark == abi::GUARD_LOG {
            self.device.guards.remove(&(addr / PAGE));
        }
        mark == abi::GUARD_STOP
    }

    #[inline]
    pub(crate) fn has_guards(&self) -> bool {
        !self.device.guards.is_empty()
    }

    /// A system call reads or writes memory: what the permissions forbid is an event for each page, and
    /// done nevertheless; what a guard range stops is EFAULT.
    pub(crate) fn kernel_touches(
        &mut self,
        uc: &Uc,
        at: u64,
        len: u64,
        store: bool,
    ) -> Result<(), i64> {
        if !self.device.is_ours() || len == 0 {
            return Ok(());
        }
        let end = at.saturating_add(len);
        for page in at / PAGE..=(end - 1) / PAGE {
            let first = at.max(page * PAGE);
            let Some(id) = self.space.guarded_by(first) else {
                continue;
            };
            if self.guarded(uc, first, store) {
                return Err(EFAULT);
            }
            if !forbids(self.walk(uc, first), store) {
                continue;
            }
            if self.device.of(id).refuses {
                return Err(EFAULT);
            }
            if self
                .device
                .reported
                .contains(&(page << 1 | u64::from(store)))
            {
                continue;
            }
            self.device.reported.push(page << 1 | u64::from(store));
            let (kind, info) = match store {
                true => (EVENT_KERNEL_WRITE, INFO_WRITE),
                false => (EVENT_KERNEL_READ, 0),
            };
            self.event(uc, kind, first, info);
        }
        Ok(())
    }

    /// Whether the kernel's store there would fail, by the space's policy.
    pub(crate) fn refuses(&mut self, uc: &Uc, at: u64, len: u64) -> bool {
        if !self.device.is_ours() || len == 0 {
            return false;
        }
        (at / PAGE..=(at.saturating_add(len) - 1) / PAGE).any(|page| {
            let first = at.max(page * PAGE);
            let space = self.space.guarded_by(first);
            space.is_some_and(|id| self.device.of(id).refuses)
                && forbids(self.walk(uc, first), true)
        })
    }

    /// A call begins: it has made no events yet.
    pub(crate) fn call_begins(&mut self) {
        self.device.reported.clear();
    }
}
