// SPDX-License-Identifier: GPL-2.0-or-later
//! An access before it is made: may it be?

use super::{Abort, Cause};
use crate::costs::Step;
use crate::memory::PAGE;
use crate::mmu::{NONE, forbids};
use crate::state::{End, State, Uc, code_at};
use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpAccess};
use unicorn_engine::unicorn_const::MemType;

/// Whether the instruction reads, changes and writes one operand. Then its load is checked as a
/// store.
fn modifies(uc: &Uc, pc: u64) -> bool {
    let bytes = code_at(uc, pc);
    let i = Decoder::with_ip(64, &bytes, pc, DecoderOptions::NONE).decode();
    InstructionInfoFactory::new()
        .info(&i)
        .used_memory()
        .iter()
        .any(|m| matches!(m.access(), OpAccess::ReadWrite | OpAccess::ReadCondWrite))
}

impl State {
    #[inline]
    pub(crate) fn touch(&mut self, uc: &mut Uc, addr: u64, len: u64, write: bool) {
        if let Some(abort) = &mut self.abort {
            if write && let Ok(old) = uc.mem_read_as_vec(addr, len as usize) {
                abort.undo.push((addr, old));
            }
            return;
        }
        if let Some(o) = &mut self.observer {
            (o.access)(addr, len, write);
        }
        self.piece(uc, addr, (addr, len), write);
        let next = (addr | (PAGE - 1)).wrapping_add(1);
        if next - addr < len && self.abort.is_none() {
            self.piece(uc, next, (addr, len), write);
        }
    }

    /// The part of an access on the page of `at`.
    #[inline]
    fn piece(&mut self, uc: &mut Uc, at: u64, access: (u64, u64), write: bool) {
        let pc = self.pc;
        if self.device_guards(uc, at, access, write) {
            return;
        }
        let seen = &mut self.modifies;
        let store = || write || *seen.entry(pc).or_insert_with(|| modifies(uc, pc));
        let t = self.mmu.access(pc, at, store, |byte| {
            let mut b = [0];
            uc.mem_read(byte, &mut b).ok().map(|()| b[0])
        });
        match t.hit {
            true => self.stats.tlb_hits += 1,
            false => {
                self.stats.tlb_misses += 1;
                if self.full {
                    self.stats.charge(&self.costs, Step::Walk);
                }
            }
        }
        if let Some(permission) = t.fault {
            self.fault(uc, at, access, write, permission);
        }
    }

    fn fault(&mut self, uc: &mut Uc, at: u64, access: (u64, u64), write: bool, permission: u8) {
        let store = write || self.modifies.get(&self.pc) == Some(&true);
        // If both would fault, it is the kernel's.
        if !self.space.permits(at, 1, if store { 2 } else { 1 }) {
            return;
        }
        // A store to a region of the device's that permits more is honoured now.
        let now = self.walk(uc, at);
        if self.device.is_ours() && !forbids(now, store) {
            self.mmu.tlb.set_permission(at >> 12, now);
            return;
        }
        if !self.watches.is_empty() || self.debug.guards(at) {
            self.serve(uc, at, access, write);
            return;
        }
        self.begin_abort(
            uc,
            at,
            store,
            Cause::User(permission),
            Some((access, write)),
        );
    }

    /// Guard ranges come before permissions.
    #[inline]
    fn device_guards(&mut self, uc: &mut Uc, at: u64, access: (u64, u64), write: bool) -> bool {
        if !self.has_guards() || !self.guarded(uc, at, write) {
            return false;
        }
        self.begin_abort(uc, at, write, Cause::Guard, Some((access, write)));
        true
    }

    /// Checks an instruction fetch; true if it faults, which only the permission NONE causes. There
    /// is no instruction TLB, so the tables hold at once.
    #[cold]
    pub(crate) fn fetch(&mut self, uc: &mut Uc, pc: u64) -> bool {
        if self.space.guarded_by(pc).is_none() || self.walk(uc, pc) != NONE {
            return false;
        }
        self.stats.instructions += 1;
        self.charged = false;
        self.mmu.cr17 = pc;
        self.begin_abort(uc, pc, false, Cause::Fetch(NONE), None);
        true
    }

    /// An access that the kernel's tables forbid: the program gets a signal.
    pub(crate) fn kernel_fault(&mut self, uc: &mut Uc, kind: MemType, addr: u64) {
        if self.abort.is_some() {
            return;
        }
        let store = matches!(kind, MemType::WRITE_UNMAPPED | MemType::WRITE_PROT);
        let unmapped = matches!(kind, MemType::WRITE_UNMAPPED | MemType::READ_UNMAPPED);
        let code = if unmapped { 1 } else { 2 };
        self.begin_abort(uc, addr, store, Cause::Kernel(code), None);
    }

    fn begin_abort(
        &mut self,
        uc: &mut Uc,
        addr: u64,
        store: bool,
        cause: Cause,
        made: Option<((u64, u64), bool)>,
    ) {
        let Some(mut context) = self.context.take() else {
            return;
        };
        let saved = uc.context_save(&mut context);
        self.context = Some(context);
        if saved.is_err() {
            self.end = Some(End::Failed("unicorn cannot save its state".into()));
        } else {
            let undo = match made {
                Some(((at, len), true)) => uc
                    .mem_read_as_vec(at, len as usize)
                    .map_or(vec![], |old| vec![(at, old)]),
                _ => vec![],
            };
            self.abort = Some(Abort {
                addr,
                store,
                cause,
                undo,
            });
        }
        let _ = uc.emu_stop();
    }

    /// The modelled handler: looks the access up, and permits it.
    fn serve(&mut self, uc: &Uc, at: u64, (addr, len): (u64, u64), write: bool) {
        let watched = self.debug.guards(at) && self.debug.touched(uc, self.pc, addr, len, write);
        let now = (self.stats.instructions, at);
        if std::mem::replace(&mut self.served, now) == now {
            return;
        }
        self.stats.faults += 1;
        let next = self.watches.partition_point(|w| w.1 <= addr);
        match self.watches.get(next).is_some_and(|w| w.0 < addr + len) || watched {
            true => self.stats.hits += 1,
            false => self.stats.false_positives += 1,
        }
        if self.full {
            self.charge_entry();
            self.stats.charge(&self.costs, Step::Lookup);
            self.stats.handler_cycles += self.costs.of(Step::Lookup);
            self.stats.charge(&self.costs, Step::Return);
        }
    }
}
