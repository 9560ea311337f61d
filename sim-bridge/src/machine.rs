// SPDX-License-Identifier: GPL-2.0-or-later
//! The machine: Unicorn executes; hooks put the MMU's model (`fault/`) between the program and its
//! memory, and Linux's system calls (`os/`) under it.

use crate::costs::Step;
use crate::elf::Elf;
use crate::instructions;
use crate::memory::{PAGE, STACK, STACK_TOP, up};
use crate::mmu::RO;
use crate::os::{File, calls, stack::first_stack};
use crate::signals::{self, Info, deliver};
use crate::state::{Observer, State, Uc, code_at};
use crate::time;
use anyhow::{Result, anyhow, ensure};
use std::cell::RefCell;
use std::rc::Rc;
use ulpf_lib::eflags;
use unicorn_engine::unicorn_const::{Arch, HookType, MemType, Mode, Prot, TlbEntry, TlbType};
use unicorn_engine::{RegisterX86 as R, Unicorn, X86Insn, uc_error};

pub use crate::config::Config;
pub use crate::state::End;

/// Unicorn is dropped before the state, which its hooks know.
pub struct Machine {
    pub uc: Uc<'static>,
    pub state: Rc<RefCell<State>>,
}

fn uc_failed(e: uc_error) -> anyhow::Error {
    anyhow!("unicorn: {e:?}")
}

impl Machine {
    pub fn new(config: &Config) -> Result<Machine> {
        let mut uc = Unicorn::new(Arch::X86, Mode::MODE_64).map_err(uc_failed)?;
        // OSFXSR, OSXMMEXCPT: SSE is usable.
        let cr4 = uc.reg_read(R::CR4).map_err(uc_failed)?;
        uc.reg_write(R::CR4, cr4 | 0x600).map_err(uc_failed)?;
        uc.reg_write(R::EFLAGS, eflags::INITIAL)
            .map_err(uc_failed)?;
        let context = uc.context_alloc().map_err(uc_failed)?;
        let state = Rc::new(RefCell::new(State::new(config, context)?));
        let mut machine = Machine { uc, state };
        machine.hook_always().map_err(uc_failed)?;
        match config.functional {
            true => machine.hook_translations().map_err(uc_failed)?,
            false => {
                let state = Rc::as_ptr(&machine.state);
                // SAFETY: `Machine` drops Unicorn before the state, which is never moved.
                unsafe { time::hook(&machine.uc, state) }.map_err(uc_failed)?;
            }
        }
        machine.state.borrow_mut().want_hooks = !config.functional || config.limit.is_some();
        if config.processes {
            signals::adopt(machine.uc.get_handle());
        }
        Ok(machine)
    }

    /// Keeps the program's standard output for [`Machine::output`].
    pub fn keep_output(&mut self) {
        self.state.borrow_mut().os.files.insert(1, File::Kept);
    }

    pub fn output(&self) -> String {
        String::from_utf8_lossy(&self.state.borrow().os.kept).into_owned()
    }

    /// Calls `access` for every access (address, length, whether it is a store). Calls `line` for each
    /// line that the program marks as watched or not (system calls 0x1002 and 0x1003). This feeds other
    /// models.
    pub fn observe(
        &mut self,
        access: impl FnMut(u64, u64, bool) + 'static,
        line: impl FnMut(u64, bool) + 'static,
    ) {
        self.state.borrow_mut().observer = Some(Observer {
            access: Box::new(access),
            line: Box::new(line),
        });
    }

    fn hook_always(&mut self) -> Result<(), uc_error> {
        let state = self.state.clone();
        self.uc
            .add_insn_sys_hook(X86Insn::SYSCALL, 1, 0, move |uc| {
                let s = &mut *state.borrow_mut();
                if s.abort.is_some() {
                    return;
                }
                s.stats.system_calls += 1;
                let thread = s.thread_number();
                if s.debug.has_watches() {
                    // The instruction's own accesses are those of before.
                    s.debug.settle(uc, thread, false);
                    s.debug.before_call(uc);
                }
                calls::call(uc, s);
                if s.debug.has_watches() {
                    let pc = s.pc;
                    s.debug.after_call(uc, pc, thread);
                }
                let between = s.end.is_some() || s.later.is_some() || s.must_hook();
                if between || s.space.stale_code || s.has_signals() {
                    s.asked = true;
                    let _ = uc.emu_stop();
                }
            })?;
        let state = self.state.clone();
        self.uc.add_intr_hook(move |uc, number| {
            let s = &mut *state.borrow_mut();
            if s.abort.is_none() {
                s.exception = Some(number);
            }
            let _ = uc.emu_stop();
        })?;
        Ok(())
    }

    /// Unicorn treats every store to a page that may hold code specially, and without an MMU that is
    /// every page. This hook tells it which pages can. Unicorn itself still checks mappings and
    /// permissions.
    fn hook_translations(&mut self) -> Result<(), uc_error> {
        let state = self.state.clone();
        self.uc.add_tlb_hook(1, 0, move |_, addr, kind| {
            let code = kind == MemType::FETCH
                || state
                    .try_borrow()
                    .map_or(true, |s| s.space.may_hold_code(addr, 1));
            let perms = if code {
                Prot::ALL
            } else {
                Prot::READ | Prot::WRITE
            };
            Some(TlbEntry { paddr: addr, perms })
        })?;
        self.uc.ctl_set_tlb_type(TlbType::VIRTUAL)
    }

    fn hook_accesses(&mut self) -> Result<(), uc_error> {
        {
            let s = &mut *self.state.borrow_mut();
            s.hooked = true;
            if s.processes {
                signals::polled();
            }
        }
        let state = self.state.clone();
        self.uc.add_code_hook(1, 0, move |uc, pc, len| {
            let s = &mut *state.borrow_mut();
            if s.abort.is_some() {
                return;
            }
            if s.stats.instructions >= s.attention && s.attend() {
                let _ = uc.emu_stop();
                return;
            }
            if !s.debug.is_idle() {
                let thread = s.thread_number();
                if s.debug.begins(uc, pc, thread) {
                    let _ = uc.emu_stop();
                    return;
                }
            }
            s.pc = pc;
            if !s.frames.is_empty() {
                s.handler_left(uc);
            }
            if s.fetches && s.fetch(uc, pc) {
                return;
            }
            s.mmu.once.begins(pc);
            s.stats.instructions += 1;
            if s.full {
                s.charged = !std::mem::take(&mut s.paid);
                if s.charged {
                    s.stats.charge(&s.costs, Step::Instruction);
                }
            }
            if !s.frames.is_empty() {
                let mut code = [0; 2];
                s.iretq = len == 2 && uc.mem_read(pc, &mut code).is_ok() && code == [0x48, 0xcf];
                if s.iretq {
                    let _ = uc.emu_stop();
                }
            }
        })?;
        let state = self.state.clone();
        self.uc.add_mem_hook(
            HookType::MEM_READ | HookType::MEM_WRITE,
            1,
            0,
            move |uc, kind, addr, len, _| {
                state
                    .borrow_mut()
                    .touch(uc, addr, len as u64, kind == MemType::WRITE);
                true
            },
        )?;
        let state = self.state.clone();
        self.uc.add_mem_hook(
            HookType::MEM_READ_UNMAPPED
                | HookType::MEM_WRITE_UNMAPPED
                | HookType::MEM_READ_PROT
                | HookType::MEM_WRITE_PROT,
            1,
            0,
            move |uc, kind, addr, _, _| {
                state.borrow_mut().kernel_fault(uc, kind, addr);
                false
            },
        )?;
        Ok(())
    }

    /// Loads the program; its arguments begin with its name.
    pub fn load(&mut self, elf: &Elf, args: &[String], environment: &[String]) -> Result<()> {
        let s = &mut *self.state.borrow_mut();
        let mut end = 0;
        for seg in &elf.segments {
            let from = seg.addr & !(PAGE - 1);
            let to = up(seg.addr + seg.size).unwrap_or(from);
            // Segments may share a page.
            let mut at = from;
            while at < to && s.space.is_mapped(at, PAGE) {
                at += PAGE;
            }
            ensure!(
                s.space.fits(at, to - at),
                "the program does not fit into the machine's memory"
            );
            if at < to {
                s.space
                    .map(&mut self.uc, at, to - at, 7)
                    .map_err(uc_failed)?;
            }
            self.uc.mem_write(seg.addr, &seg.data).map_err(uc_failed)?;
            let flags = u64::from(seg.flags);
            let protection = flags >> 2 & 1 | flags & 2 | (flags & 1) << 2;
            if at < to {
                s.space
                    .protect(&mut self.uc, at, to - at, protection)
                    .map_err(uc_failed)?;
            }
            end = end.max(to);
        }
        (s.space.brk_start, s.space.brk) = (end, end);
        s.space
            .map(&mut self.uc, STACK_TOP - STACK, STACK, 3)
            .map_err(uc_failed)?;
        let sp = first_stack(&mut self.uc, elf, args, environment)?;
        self.uc.reg_write(R::RSP, sp).map_err(uc_failed)?;
        self.uc.reg_write(R::RIP, elf.entry).map_err(uc_failed)?;
        Ok(())
    }

    /// Watches served by the modelled handler, on pages that the machine itself sets read-only.
    pub fn watch(&mut self, watches: &[(u64, u64)]) -> Result<()> {
        let s = &mut *self.state.borrow_mut();
        for &(addr, len) in watches {
            ensure!(
                len > 0 && s.space.is_mapped(addr, len),
                "nothing is mapped at {addr:#x} (+{len}) when the program begins"
            );
            let pages = (addr & !(PAGE - 1)..addr + len).step_by(PAGE as usize);
            for page in pages {
                s.set_permission(&mut self.uc, page, RO);
            }
        }
        // Disjoint ranges in order, so that a thousand are as quickly asked as one.
        let mut ranges: Vec<_> = watches.iter().map(|&(a, len)| (a, a + len)).collect();
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| {
            let touches = next.0 <= last.1;
            if touches {
                last.1 = last.1.max(next.1);
            }
            touches
        });
        s.watches = ranges;
        s.mmu.write_once = watches.is_empty();
        Ok(())
    }

    pub fn run(&mut self) -> End {
        if let Some(end) = self.state.borrow_mut().ended.take() {
            return end;
        }
        let end = self.go();
        let s = &mut *self.state.borrow_mut();
        // The last instruction has no next one to settle its accesses.
        let thread = s.thread_number();
        s.debug.settle(&self.uc, thread, false);
        match s.debug.paused.take() {
            Some(pause) => {
                s.ended = Some(end).filter(|e| !matches!(e, End::Paused(_)));
                End::Paused(pause)
            }
            None => end,
        }
    }

    fn go(&mut self) -> End {
        loop {
            if self.state.borrow().must_hook() {
                // Code that was translated without hooks has to go.
                if let Err(e) = self.hook_accesses().and_then(|()| self.uc.ctl_flush_tb()) {
                    return End::Failed(format!("unicorn: {e:?}"));
                }
            }
            if std::mem::take(&mut self.state.borrow_mut().space.stale_code) {
                let flushed = self
                    .uc
                    .ctl_flush_tb()
                    .and_then(|()| self.uc.ctl_flush_tlb());
                if let Err(e) = flushed {
                    return End::Failed(format!("unicorn: {e:?}"));
                }
            }
            let ready = {
                let s = &mut *self.state.borrow_mut();
                s.schedule(&mut self.uc).and_then(|()| {
                    deliver::collect(s);
                    deliver::deliver(&mut self.uc, s)
                })
            };
            if let Err(end) = ready {
                return end;
            }
            self.state.borrow_mut().asked = false;
            let from = self.uc.reg_read(R::RIP).unwrap_or(0);
            let result = self.uc.emu_start(from, u64::MAX, 0, 0);
            let s = &mut *self.state.borrow_mut();
            if let Some(end) = s.stopped(&mut self.uc, result) {
                return end;
            }
        }
    }
}

/// How often a machine that runs looks whether there is anything else, in instructions.
const LOOK: u64 = 1 << 14;

impl State {
    pub(crate) fn must_hook(&self) -> bool {
        !self.hooked && (self.want_hooks || self.mmu.in_use())
    }

    fn has_signals(&self) -> bool {
        let t = &self.threads[self.current.min(self.threads.len() - 1)];
        (self.signals.pending | t.pending) & !t.mask != 0 || signals::has_received()
    }

    /// Work between two instructions, due when `attention` is reached.
    #[cold]
    fn attend(&mut self) -> bool {
        let n = self.stats.instructions;
        if n >= self.limit {
            self.end = Some(End::Failed(format!(
                "the program has not ended after {n} instructions (--limit)"
            )));
        }
        if !self.frames.is_empty() {
            self.in_handler += n - self.attended;
            if self.in_handler > self.handler_limit {
                self.end = Some(End::Failed(format!(
                    "a handler of user-level page faults has not returned after {} instructions (--handler-limit)",
                    self.handler_limit
                )));
            }
        }
        self.attended = n;
        let turn = match self.threads.len() {
            1 => u64::MAX,
            _ => self.slice_end,
        };
        self.attention = self.limit.min(turn).min(n + LOOK);
        self.asked = self.end.is_some() || n >= turn || self.has_signals();
        self.asked
    }

    /// Unicorn has stopped. Nothing: it is to go on.
    fn stopped(&mut self, uc: &mut Uc, result: Result<(), uc_error>) -> Option<End> {
        if let Some(abort) = self.abort.take() {
            return self
                .take_back(uc, &abort)
                .and_then(|()| self.deliver(uc, &abort))
                .err();
        }
        if let Some(later) = self.later.take() {
            return self.finish(uc, later).err();
        }
        if self.end.is_some() {
            return self.end.take();
        }
        if let Some(pause) = &self.debug.paused {
            return Some(End::Paused(pause.clone()));
        }
        let pc = uc.reg_read(R::RIP).unwrap_or(0);
        if let Some(number) = self.exception.take() {
            let near = if self.hooked { self.pc } else { pc };
            let (signal, info, why) = exception(number, pc, near);
            return deliver::raise(uc, self, signal, info, why).err();
        }
        let trap = match std::mem::take(&mut self.iretq) || result == Err(uc_error::INSN_INVALID) {
            true => instructions::decode(&code_at(uc, pc)),
            false => None,
        };
        if let Some(i) = trap {
            return self.execute(uc, pc, i).err();
        }
        let (signal, info, why) = match result {
            Err(uc_error::INSN_INVALID) => exception(6, pc, pc),
            // Stopped to be hooked, to let another thread run, or for a signal.
            Ok(()) if std::mem::take(&mut self.asked) || self.must_hook() => return None,
            Ok(()) if signals::has_stopped() && !halted(uc, pc) => return None,
            Ok(()) => exception(13, pc, pc),
            Err(e) => (
                signals::SIGSEGV,
                Info {
                    code: if e == uc_error::FETCH_PROT { 2 } else { 1 },
                    value: pc,
                    trap: 14,
                    error: 4 | 16 | u64::from(e == uc_error::FETCH_PROT),
                },
                format!("{} at {pc:#x}", what(e)),
            ),
        };
        deliver::raise(uc, self, signal, info, why).err()
    }
}

/// Whether it stopped at `hlt`, or at Unicorn's stop address.
fn halted(uc: &Uc, pc: u64) -> bool {
    let mut code = [0];
    let before = pc.wrapping_sub(1);
    pc == u64::MAX || (uc.mem_read(before, &mut code).is_ok() && code == [0xf4])
}

pub(crate) fn what(e: uc_error) -> String {
    match e {
        uc_error::READ_UNMAPPED => "a load where nothing is mapped".into(),
        uc_error::WRITE_UNMAPPED => "a store where nothing is mapped".into(),
        uc_error::FETCH_UNMAPPED => "a jump to where nothing is mapped".into(),
        uc_error::READ_PROT => "a load that the page's protection forbids".into(),
        uc_error::WRITE_PROT => "a store that the page's protection forbids".into(),
        uc_error::FETCH_PROT => "a jump to a page that is not executable".into(),
        e => format!("{e:?}"),
    }
}

/// The signal of an exception, and why it has come.
fn exception(number: u32, pc: u64, near: u64) -> (u32, Info, String) {
    let (signal, code, what) = match number {
        0 => (signals::SIGFPE, 1, "division error"),
        1 => (signals::SIGTRAP, 2, "single step"),
        3 => (signals::SIGTRAP, 128, "int3"),
        6 => (signals::SIGILL, 2, "invalid instruction"),
        8 | 13 => (signals::SIGSEGV, 128, "general protection fault"),
        16 | 19 => (signals::SIGFPE, 7, "floating-point exception"),
        _ => (signals::SIGSEGV, 128, "exception"),
    };
    let value = if code == 128 { 0 } else { pc };
    let info = Info {
        code,
        value,
        trap: number.into(),
        error: 0,
    };
    (signal, info, format!("{what} ({number}) near {near:#x}"))
}
