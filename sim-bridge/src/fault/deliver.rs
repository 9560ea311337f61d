// SPDX-License-Identifier: GPL-2.0-or-later
//! The handler: its frame, its entry, its end.

use super::{Abort, Cause};
use crate::costs::{DELIVERY, Step};
use crate::instructions::{Instruction, Op};
use crate::mmu::RO;
use crate::registers::{ENCODED, USER_CS, USER_DS};
use crate::signals::{Info, SIGSEGV, deliver as signals};
use crate::state::{End, State, Uc};
use std::mem::offset_of;
use ulpf_lib::device::abi::{self, Frame, Structure};
use ulpf_lib::eflags;
use unicorn_engine::RegisterX86 as R;

/// Flags that are clear in a handler.
const CLEARED: u64 = eflags::TF | eflags::DF | eflags::NT | eflags::RF | eflags::AC;
const FRAME: u64 = size_of::<Frame>() as u64;
/// Where it has the address to go on at.
const IP: u64 = offset_of!(Frame, ip) as u64;
/// Limit of nested handlers that are distinguished.
const NESTED: usize = 256;
/// Faults of one instruction whose handler returns, each time, without having changed anything.
const STUCK: u32 = 100_000;
/// A stack pointer so far below a handler's frame is on another stack.
const FAR: u64 = 1 << 20;

impl State {
    pub(super) fn charge_entry(&mut self) {
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
        let kind =
            (u64::from(abort.store) * abi::INFO_WRITE) | (u64::from(fetch) * abi::INFO_FETCH);
        let mut info = kind | (u64::from(permission) << abi::INFO_PERM_SHIFT);
        self.progress(pc, at)?;
        let space = self.space.guarded_by(at);
        let handler = space.and_then(|id| self.device.of(id).handler);
        let (entry, cookie) = handler.map_or((self.mmu.cr18, 0), |h| (h.entry, h.cookie));
        if entry == 0 {
            self.event(uc, abi::EVENT_UNHANDLED, at, info as u16);
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
            self.event(uc, abi::EVENT_UNDELIVERED, at, info as u16);
            let why = format!(
                "the access to {at:#x} by {pc:#x} is forbidden, and the thread has no signal stack for the handler"
            );
            return signals::raise(uc, self, SIGSEGV, segv(128), why);
        }
        let below = sp.wrapping_sub(abi::RED_ZONE + FRAME) & !15;
        let frame = match length {
            0 => below,
            _ => {
                info |= abi::INFO_STACK;
                match sp > base && sp <= base + length {
                    true if below < base + abi::STACK_MIN => 0,
                    true => below,
                    false => (base + length - FRAME) & !15,
                }
            }
        };
        let mut bytes = [0; FRAME as usize];
        Frame {
            addr: at,
            info,
            cookie,
            ip: pc,
            cs: USER_CS,
            flags,
            sp,
            ss: USER_DS,
        }
        .write_to(&mut bytes);
        let room = self.space.permits(frame, FRAME, 2) && self.walk(uc, frame) == 0;
        if !room || uc.mem_write(frame, &bytes).is_err() {
            self.event(uc, abi::EVENT_UNDELIVERED, at, info as u16);
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

    /// Whether the next instruction is the `ret` at a handler's end (uapi/ulpf.h). By then the stack pointer is
    /// the program's, below its red zone, and the word there is the frame's `ip`.
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
        let register = ENCODED[i.register];
        let value = uc.reg_read(register).unwrap_or(0);
        let mut next = pc + i.length;
        match i.op {
            Op::SetTlbRo => self.mmu.tlb.set_permission(value >> 12, RO),
            Op::SetTlbRw => self.mmu.tlb.set_permission(value >> 12, 0),
            Op::WriteCr16 => self.mmu.cr16 = value,
            Op::WriteCr18 => self.mmu.cr18 = value,
            Op::ReadCr17 => _ = uc.reg_write(register, self.mmu.cr17),
            Op::Uliret | Op::Iretq => {
                let skip = if i.op == Op::Uliret { IP } else { 0 };
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
                let _ = uc.reg_write(
                    R::EFLAGS,
                    word(2) & (eflags::USER | eflags::RF) | eflags::INITIAL,
                );
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
}
