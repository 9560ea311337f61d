// SPDX-License-Identifier: GPL-2.0-or-later
//! The machine: Unicorn executes; hooks put the MMU's model (`fault.rs`) between the program and its
//! memory, and Linux's system calls (`os.rs`) under it.

use crate::bridge::debug::{Debug, Pause};
use crate::costs::{Costs, Step};
use crate::device::Device;
use crate::elf::Elf;
use crate::fault::Abort;
use crate::instructions;
use crate::memory::{PAGE, STACK, STACK_TOP, Space, up};
use crate::mmu::{Mmu, RO};
use crate::os::{self, File, Os};
use crate::stats::Stats;
use crate::time;
use crate::write_once::Rule;
use anyhow::{Result, anyhow, ensure};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use unicorn_engine::unicorn_const::{Arch, HookType, MemType, Mode};
use unicorn_engine::{Context, RegisterX86 as R, Unicorn, X86Insn, uc_error};

pub type Uc<'a> = Unicorn<'a, ()>;

pub struct Config {
    /// Nothing is counted, and no access is looked at before the user's tables exist.
    pub functional: bool,
    pub tlb: usize,
    pub rule: Rule,
    pub costs: Costs,
    /// The run ends after so many instructions.
    pub limit: Option<u64>,
    /// Address and length; served by a handler that is part of the model.
    pub watches: Vec<(u64, u64)>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            functional: false,
            tlb: 64,
            rule: Rule::Corrected,
            costs: Costs::default(),
            limit: None,
            watches: vec![],
        }
    }
}

/// How a run ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    Exit(i32),
    /// A signal that the program would have died of, and why.
    Signal(i32, String),
    /// The machine cannot go on.
    Failed(String),
    /// It can: what a debugger wanted has come.
    Paused(Pause),
}

pub struct State {
    pub mmu: Mmu,
    pub stats: Stats,
    pub costs: Costs,
    pub space: Space,
    pub os: Os,
    pub device: Device,
    pub cookie: u64,
    pub end: Option<End>,
    pub full: bool,
    pub(crate) pc: u64,
    pub(crate) abort: Option<Abort>,
    pub(crate) context: Option<Context>,
    /// Hooks for every instruction and access are in place.
    hooked: bool,
    /// An `iretq` that ends a handler is next. Unicorn would look for descriptor tables.
    iretq: bool,
    /// Handlers that have not returned, and the cycle in which the outermost began.
    pub(crate) depth: u32,
    pub(crate) entered: u64,
    /// The next instruction is the handler's first, which has been paid.
    pub(crate) paid: bool,
    /// The instruction at work has been charged.
    pub(crate) charged: bool,
    pub(crate) modifies: HashMap<u64, bool>,
    limit: u64,
    /// Starts and ends, disjoint, in order.
    pub(crate) watches: Vec<(u64, u64)>,
    /// The access that the modelled handler saw last: instruction count and address.
    pub(crate) served: (u64, u64),
    pub debug: Debug,
    /// How it has ended, which the debugger hears after the last hit.
    ended: Option<End>,
}

/// Unicorn is dropped before the state, which its hooks know.
pub struct Machine {
    pub uc: Uc<'static>,
    pub state: Rc<RefCell<State>>,
}

fn uc_failed(e: uc_error) -> anyhow::Error {
    anyhow!("unicorn: {e:?}")
}

/// Up to 15 bytes of code.
pub(crate) fn code_at(uc: &Uc, pc: u64) -> Vec<u8> {
    let to_page = (PAGE - pc % PAGE).min(15) as usize;
    [15, to_page]
        .iter()
        .find_map(|&len| uc.mem_read_as_vec(pc, len).ok())
        .unwrap_or_default()
}

impl Machine {
    pub fn new(config: &Config) -> Result<Machine> {
        let mut uc = Unicorn::new(Arch::X86, Mode::MODE_64).map_err(uc_failed)?;
        // OSFXSR, OSXMMEXCPT: SSE is usable.
        let cr4 = uc.reg_read(R::CR4).map_err(uc_failed)?;
        uc.reg_write(R::CR4, cr4 | 0x600).map_err(uc_failed)?;
        uc.reg_write(R::EFLAGS, 0x202).map_err(uc_failed)?;
        let context = uc.context_alloc().map_err(uc_failed)?;
        let state = Rc::new(RefCell::new(State {
            mmu: Mmu::new(config.tlb, config.rule)?,
            stats: Stats::default(),
            costs: config.costs.clone(),
            space: Space::default(),
            os: Os::default(),
            device: Device::default(),
            cookie: 0,
            end: None,
            full: !config.functional,
            pc: 0,
            abort: None,
            context: Some(context),
            hooked: false,
            iretq: false,
            depth: 0,
            entered: 0,
            paid: false,
            charged: false,
            modifies: HashMap::new(),
            limit: config.limit.unwrap_or(u64::MAX),
            watches: vec![],
            served: (u64::MAX, 0),
            debug: Debug::default(),
            ended: None,
        }));
        let mut machine = Machine { uc, state };
        machine.hook_always().map_err(uc_failed)?;
        if !config.functional {
            time::hook(&mut machine).map_err(uc_failed)?;
        }
        if !config.functional || config.limit.is_some() {
            machine.hook_accesses().map_err(uc_failed)?;
        }
        Ok(machine)
    }

    /// What the program writes to its standard output is kept for [`Machine::output`].
    pub fn keep_output(&mut self) {
        self.state.borrow_mut().os.files.insert(1, File::Kept);
    }

    pub fn output(&self) -> String {
        String::from_utf8_lossy(&self.state.borrow().os.kept).into_owned()
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
                if s.debug.has_watches() {
                    // The instruction's own accesses are those of before.
                    s.debug.settle(uc, 1, false);
                    s.debug.before_call(uc);
                }
                os::call(uc, s);
                if s.debug.has_watches() {
                    let pc = s.pc;
                    s.debug.after_call(uc, pc, 1);
                }
                if s.end.is_some() || (s.mmu.in_use() && !s.hooked) {
                    let _ = uc.emu_stop();
                }
            })?;
        let state = self.state.clone();
        self.uc.add_intr_hook(move |uc, number| {
            let s = &mut *state.borrow_mut();
            if s.abort.is_none() {
                let pc = match s.hooked {
                    true => s.pc,
                    false => uc.reg_read(R::RIP).unwrap_or(0),
                };
                s.end = Some(exception(number, pc));
            }
            let _ = uc.emu_stop();
        })?;
        Ok(())
    }

    fn hook_accesses(&mut self) -> Result<(), uc_error> {
        self.state.borrow_mut().hooked = true;
        let state = self.state.clone();
        self.uc.add_code_hook(1, 0, move |uc, pc, len| {
            let s = &mut *state.borrow_mut();
            if s.abort.is_some() {
                return;
            }
            if !s.debug.is_idle() && s.debug.begins(uc, pc, 1) {
                let _ = uc.emu_stop();
                return;
            }
            s.pc = pc;
            s.mmu.once.begins(pc);
            s.stats.instructions += 1;
            if s.full {
                s.charged = !std::mem::take(&mut s.paid);
                if s.charged {
                    s.stats.charge(&s.costs, Step::Instruction);
                }
            }
            if s.depth > 0 && len == 2 {
                let mut code = [0; 2];
                s.iretq = uc.mem_read(pc, &mut code).is_ok() && code == [0x48, 0xcf];
                if s.iretq {
                    let _ = uc.emu_stop();
                }
            }
            if s.stats.instructions > s.limit {
                let n = s.limit;
                s.end = Some(End::Failed(format!(
                    "the program has not ended after {n} instructions (--limit)"
                )));
                let _ = uc.emu_stop();
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
        let sp = os::first_stack(&mut self.uc, elf, args, environment)?;
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
        s.debug.settle(&self.uc, 1, false);
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
            if self.state.borrow().mmu.in_use() && !self.state.borrow().hooked {
                // Code that was translated without hooks has to go.
                if let Err(e) = self.hook_accesses().and_then(|()| self.uc.ctl_flush_tb()) {
                    return End::Failed(format!("unicorn: {e:?}"));
                }
            }
            let from = self.uc.reg_read(R::RIP).unwrap_or(0);
            let result = self.uc.emu_start(from, u64::MAX, 0, 0);
            let s = &mut *self.state.borrow_mut();
            if let Some(abort) = s.abort.take() {
                if let Err(end) = s
                    .take_back(&mut self.uc, &abort)
                    .and_then(|()| s.deliver(&mut self.uc, &abort))
                {
                    return end;
                }
                continue;
            }
            if let Some(end) = s.end.take() {
                return end;
            }
            if let Some(pause) = &s.debug.paused {
                return End::Paused(pause.clone());
            }
            let pc = self.uc.reg_read(R::RIP).unwrap_or(0);
            let trap = match std::mem::take(&mut s.iretq) || result == Err(uc_error::INSN_INVALID) {
                true => instructions::decode(&code_at(&self.uc, pc)),
                false => None,
            };
            if let Some(i) = trap {
                if let Err(end) = s.execute(&mut self.uc, pc, i) {
                    return end;
                }
                continue;
            }
            match result {
                Err(uc_error::INSN_INVALID) => {
                    return End::Signal(4, format!("invalid instruction at {pc:#x}"));
                }
                // Stopped to be hooked.
                Ok(()) if s.mmu.in_use() && !s.hooked => {}
                // `hlt`, or a jump to the address at which Unicorn is told to stop.
                Ok(()) => {
                    return End::Signal(11, format!("general protection fault before {pc:#x}"));
                }
                Err(e) => return End::Signal(11, format!("{} at {pc:#x}", what(e))),
            }
        }
    }
}

fn what(e: uc_error) -> String {
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

fn exception(number: u32, pc: u64) -> End {
    let (signal, what) = match number {
        0 => (8, "division error"),
        3 => (5, "int3"),
        1 => (5, "single step"),
        6 => (4, "invalid instruction"),
        8 | 13 => (11, "general protection fault"),
        16 | 19 => (8, "floating-point exception"),
        _ => (11, "exception"),
    };
    End::Signal(signal, format!("{what} ({number}) near {pc:#x}"))
}
