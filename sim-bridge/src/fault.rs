// SPDX-License-Identifier: GPL-2.0-or-later
//! One access: the MMU's model looks at it, and if it faults, the handler is entered, and left.
//!
//! Unicorn cannot take back an instruction from within a hook: after a refused store it goes on to the
//! instruction's end. So a user-level fault is a transaction. The hook saves the processor's state,
//! which is that of the instruction's beginning (of the iteration's, in a string instruction), asks
//! Unicorn to stop, and every store until it does is noted with what was there before. Then memory and
//! processor are put back, and the handler is entered. What an instruction of several stores (MOVUPS
//! is two) has stored before the one that faults stays, as with micro-operations.

use crate::costs::{DELIVERY, Step};
use crate::device::{STACK_MIN, ring};
use crate::instructions::{Instruction, Op};
use crate::machine::{End, State, Uc, code_at};
use crate::memory::PAGE;
use crate::mmu::{NONE, RO, forbids};
use crate::signals::{self, Info, SIGSEGV};
use crate::tables::{Leaf, bits_of};
use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpAccess};
use unicorn_engine::RegisterX86 as R;
use unicorn_engine::unicorn_const::MemType;

/// Flags that are clear in a handler: TF, DF, NT, RF, AC.
const CLEARED: u64 = 1 << 8 | 1 << 10 | 1 << 14 | 1 << 16 | 1 << 18;
const RED_ZONE: u64 = 128;
const FRAME: u64 = 64;
/// Where it has the address to go on at.
const IP: u64 = 24;
const INFO_WRITE: u64 = 1;
const INFO_FETCH: u64 = 2;
const INFO_STACK: u64 = 4;
/// Handlers nested deeper than this are not told apart.
const NESTED: usize = 256;
/// Faults of one instruction whose handler returns, each time, without having changed anything.
const STUCK: u32 = 100_000;
/// A stack pointer so far below a handler's frame is on another stack.
const FAR: u64 = 1 << 20;

/// Who forbids the access.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The user's tables, with this permission.
    User(u8),
    /// The same, for the instruction itself.
    Fetch(u8),
    /// The kernel's; the code of its SIGSEGV.
    Kernel(i32),
    /// A guard range.
    Guard,
}

/// A fault that waits for Unicorn to stop.
pub(crate) struct Abort {
    addr: u64,
    store: bool,
    cause: Cause,
    /// Address and what was there, in the order of the stores.
    undo: Vec<(u64, Vec<u8>)>,
}

const REGISTERS: [R; 16] = [
    R::RAX,
    R::RCX,
    R::RDX,
    R::RBX,
    R::RSP,
    R::RBP,
    R::RSI,
    R::RDI,
    R::R8,
    R::R9,
    R::R10,
    R::R11,
    R::R12,
    R::R13,
    R::R14,
    R::R15,
];

/// Does the instruction read, change and write one operand? Then its load is checked as a store.
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

    /// May the instruction be fetched? Of these permissions only NONE says no. There is no TLB of
    /// instructions: the tables hold at once.
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

    /// What the kernel's tables forbid: the program's signal.
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

    fn charge_entry(&mut self) {
        self.stats.charge(&self.costs, Step::Raise);
        for step in DELIVERY {
            self.stats.charge(&self.costs, step);
        }
    }

    /// Nothing of the instruction has happened.
    pub(crate) fn take_back(&mut self, uc: &mut Uc, abort: &Abort) -> Result<(), End> {
        let mut ok = abort
            .undo
            .iter()
            .rev()
            .all(|(addr, old)| uc.mem_write(*addr, old).is_ok());
        ok &= self
            .context
            .as_ref()
            .is_some_and(|c| uc.context_restore(c).is_ok());
        if !ok {
            return Err(End::Failed(
                "unicorn cannot take an instruction back".into(),
            ));
        }
        self.stats.instructions -= 1;
        if self.full {
            self.uncharge();
        }
        Ok(())
    }

    pub(crate) fn deliver(&mut self, uc: &mut Uc, abort: &Abort) -> Result<(), End> {
        let get = |uc: &Uc, r| uc.reg_read(r).unwrap_or(0);
        let (pc, sp, flags) = (get(uc, R::RIP), get(uc, R::RSP), get(uc, R::EFLAGS));
        let at = abort.addr;
        let fetch = matches!(abort.cause, Cause::Fetch(_));
        let segv = |code| Info {
            code,
            value: at,
            trap: 14,
            error: 4
                | u64::from(code != 1)
                | (u64::from(abort.store) << 1)
                | (u64::from(fetch) << 4),
        };
        let verb = if abort.store { "store" } else { "load" };
        let permission = match abort.cause {
            Cause::User(permission) | Cause::Fetch(permission) => permission,
            Cause::Kernel(code) => {
                let why = match code {
                    1 => format!("a {verb} where nothing is mapped, at {at:#x} by {pc:#x}"),
                    _ => format!(
                        "a {verb} that the page's protection forbids, at {at:#x} by {pc:#x}"
                    ),
                };
                return signals::raise(uc, self, SIGSEGV, segv(code), why);
            }
            Cause::Guard => {
                let why = format!("a {verb} in a guard range, at {at:#x} by {pc:#x}");
                return signals::raise(uc, self, SIGSEGV, segv(2), why);
            }
        };
        self.stats.faults += 1;
        let kind = (u64::from(abort.store) * INFO_WRITE) | (u64::from(fetch) * INFO_FETCH);
        let mut info = kind | (u64::from(permission) << 8);
        self.progress(pc, at)?;
        let space = self.space.guarded_by(at);
        let handler = space.and_then(|id| self.device.of(id).handler);
        let (entry, cookie) = handler.map_or((self.mmu.cr18, 0), |h| (h.entry, h.cookie));
        if entry == 0 {
            self.event(uc, ring::UNHANDLED, at, info as u16);
            let why = format!(
                "the user's tables forbid the access to {at:#x} by {pc:#x}, and there is no handler"
            );
            return signals::raise(uc, self, SIGSEGV, segv(2), why);
        }
        let on_signal_stack = handler.is_some_and(|h| h.on_signal_stack);
        let (base, length) = match on_signal_stack {
            true => self.thread().alternate,
            false => self.thread().exceptions,
        };
        if on_signal_stack && length == 0 {
            self.event(uc, ring::UNDELIVERED, at, info as u16);
            let why = format!(
                "the access to {at:#x} by {pc:#x} is forbidden, and the thread has no signal stack for the handler"
            );
            return signals::raise(uc, self, SIGSEGV, segv(128), why);
        }
        let below = sp.wrapping_sub(RED_ZONE + FRAME) & !15;
        let frame = match length {
            0 => below,
            _ => {
                info |= INFO_STACK;
                match sp > base && sp <= base + length {
                    true if below < base + STACK_MIN => 0,
                    true => below,
                    false => (base + length - FRAME) & !15,
                }
            }
        };
        let words = [at, info, cookie, pc, 0x33, flags, sp, 0x2b];
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let room = self.space.permits(frame, FRAME, 2) && self.walk(uc, frame) == 0;
        if !room || uc.mem_write(frame, &bytes).is_err() {
            self.event(uc, ring::UNDELIVERED, at, info as u16);
            let why = format!("no room for the handler's frame at {frame:#x}");
            return signals::raise(uc, self, SIGSEGV, segv(128), why);
        }
        let set = |uc: &mut Uc, r, v| {
            uc.reg_write(r, v)
                .map_err(|e| End::Failed(format!("unicorn: {e:?}")))
        };
        set(uc, R::RSP, frame)?;
        set(uc, R::EFLAGS, flags & !CLEARED)?;
        set(uc, R::RIP, entry)?;
        if let Some(id) = space {
            self.device.of(id).counts.upcalls += 1;
        }
        if self.full {
            self.charge_entry();
            self.paid = true;
        }
        if self.frames.is_empty() {
            self.entered = self.stats.cycles;
            self.in_handler = 0;
        }
        // Handlers that were left by longjmp leave their frames.
        if self.frames.len() == NESTED {
            self.frames.remove(0);
        }
        self.frames.push(frame);
        Ok(())
    }

    /// An instruction that faults again, at once, for ever: its handler neither permits nor makes the access.
    fn progress(&mut self, pc: u64, at: u64) -> Result<(), End> {
        let again = std::mem::replace(&mut self.back, u64::MAX) == self.stats.instructions;
        self.stuck = if again { self.stuck + 1 } else { 0 };
        match self.stuck < STUCK {
            true => Ok(()),
            false => Err(End::Failed(format!(
                "the handler of user-level page faults has returned {STUCK} times to {pc:#x} without permitting the access to {at:#x}, or making it"
            ))),
        }
    }

    /// A handler may be left without an instruction of ours: its stack pointer tells.
    pub(crate) fn handler_left(&mut self, uc: &Uc) {
        let sp = uc.reg_read(R::RSP).unwrap_or(0);
        while let Some(&frame) = self.frames.last() {
            if sp < frame + FRAME && frame - sp.min(frame) < FAR {
                return;
            }
            if self.is_about_to_return(uc, frame, sp) {
                return;
            }
            self.frames.pop();
            self.back = self.stats.instructions;
            self.mmu.once.returned(self.pc);
            if self.frames.is_empty() && self.full {
                self.stats.handler_cycles += self.stats.cycles - self.entered;
            }
        }
    }

    /// `ret` as a handler's last instruction (uapi/ulpf.h): by then the stack pointer is the program's, below its
    /// red zone, and what it finds there is where the frame says to go on.
    fn is_about_to_return(&self, uc: &Uc, frame: u64, sp: u64) -> bool {
        let mut code = [0];
        let (mut ip, mut top) = ([0; 8], [0; 8]);
        uc.mem_read(self.pc, &mut code).is_ok()
            && matches!(code, [0xc2 | 0xc3])
            && uc.mem_read(frame + IP, &mut ip).is_ok()
            && uc.mem_read(sp, &mut top).is_ok()
            && ip == top
    }

    /// One of ours; or `iretq`, for which Unicorn has no descriptor tables.
    pub(crate) fn execute(&mut self, uc: &mut Uc, pc: u64, i: Instruction) -> Result<(), End> {
        let register = REGISTERS[i.register];
        let value = uc.reg_read(register).unwrap_or(0);
        let mut next = pc + i.length;
        match i.op {
            Op::SetTlbRo => self.mmu.tlb.set_permission(value >> 12, RO),
            Op::SetTlbRw => self.mmu.tlb.set_permission(value >> 12, 0),
            Op::WriteCr16 => self.mmu.cr16 = value,
            Op::WriteCr18 => self.mmu.cr18 = value,
            Op::ReadCr17 => _ = uc.reg_write(register, self.mmu.cr17),
            Op::Uliret | Op::Iretq => {
                let skip = if i.op == Op::Uliret { 24 } else { 0 };
                let sp = uc.reg_read(R::RSP).unwrap_or(0);
                let mut bytes = [0; 40];
                if uc.mem_read(sp.wrapping_add(skip), &mut bytes).is_err() {
                    return Err(End::Signal(
                        11,
                        format!("ULIRET at {pc:#x} finds no frame at {sp:#x}"),
                    ));
                }
                let word = |n: usize| {
                    u64::from_le_bytes(bytes[n * 8..n * 8 + 8].try_into().unwrap_or_default())
                };
                // Of the flags those that a user may set.
                let _ = uc.reg_write(R::EFLAGS, word(2) & 0x25_4dd5 | 0x202);
                let _ = uc.reg_write(R::RSP, word(3));
                next = word(0);
                self.mmu.once.returned(next);
                let outermost = self.frames.len() == 1;
                self.frames.pop();
                self.back = self.stats.instructions;
                if self.full {
                    // The step is all that the instruction costs.
                    self.uncharge();
                    if outermost {
                        self.stats.handler_cycles += self.stats.cycles - self.entered;
                    }
                    self.stats.charge(&self.costs, Step::Return);
                }
            }
        }
        uc.reg_write(R::RIP, next)
            .map_err(|e| End::Failed(format!("unicorn: {e:?}")))
    }

    /// The cycles of the instruction that has just begun.
    fn uncharge(&mut self) {
        if !std::mem::take(&mut self.charged) {
            return;
        }
        let cycles = self.costs.of(Step::Instruction);
        self.stats.cycles -= cycles;
        self.stats.steps[Step::Instruction as usize] -= cycles;
    }

    /// What the user's tables say now, whatever the TLB knows.
    pub fn walk(&self, uc: &Uc, addr: u64) -> u8 {
        let read = |at| {
            let mut b = [0];
            uc.mem_read(at, &mut b).ok().map(|()| b[0])
        };
        self.mmu.tables.walk(self.mmu.cr16, addr, read)
    }

    /// ULPF_OP_SET for one page: tables, and what the TLB knows.
    pub fn set_permission(&mut self, uc: &mut Uc, page: u64, permission: u8) {
        if self.mmu.cr16 == 0 {
            self.mmu.cr16 = self.mmu.tables.frame();
        }
        let (at, shift) = bits_of(page);
        let change = |b: u8| b & !(3 << shift) | permission << shift;
        match self.mmu.tables.leaf_or_own(self.mmu.cr16, page) {
            Some(Leaf::Own(n)) => {
                let byte = &mut self.mmu.tables.own(n)[at as usize];
                *byte = change(*byte);
            }
            Some(Leaf::User(region)) => {
                let mut b = [0];
                if uc.mem_read(region + at, &mut b).is_ok() {
                    let _ = uc.mem_write(region + at, &[change(b[0])]);
                }
            }
            None => {}
        }
        self.mmu.tlb.forget(page >> 12);
    }
}
