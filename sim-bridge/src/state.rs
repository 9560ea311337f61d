// SPDX-License-Identifier: GPL-2.0-or-later
//! All that the machine knows while the program runs. The modules above have methods of it, each for what it is
//! about: `fault/` for accesses, `os/` for system calls, `threads/schedule.rs` for turns.

use crate::config::Config;
use crate::costs::Costs;
use crate::debug::{Debug, Pause};
use crate::device::Devices;
use crate::fault::Abort;
use crate::memory::{PAGE, Space};
use crate::mmu::Mmu;
use crate::os::Os;
use crate::processes::{self, Family};
use crate::signals::Signals;
use crate::stats::Stats;
use crate::tables::{Leaf, bits_of};
use crate::threads::{Later, Thread};
use anyhow::Result;
use std::collections::HashMap;
use unicorn_engine::{Context, Unicorn};

pub type Uc<'a> = Unicorn<'a, ()>;

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

pub(crate) struct Observer {
    pub access: Box<dyn FnMut(u64, u64, bool)>,
    pub line: Box<dyn FnMut(u64, bool)>,
}

pub struct State {
    pub(crate) observer: Option<Observer>,
    pub mmu: Mmu,
    pub stats: Stats,
    pub costs: Costs,
    pub space: Space,
    pub os: Os,
    pub device: Devices,
    pub end: Option<End>,
    pub full: bool,
    pub(crate) pc: u64,
    pub(crate) abort: Option<Abort>,
    pub(crate) context: Option<Context>,
    /// Hooks for every instruction and access are in place.
    pub(crate) hooked: bool,
    /// There is guarded memory that the program may execute.
    pub(crate) fetches: bool,
    /// An `iretq` that ends a handler is next. Unicorn would look for descriptor tables.
    pub(crate) iretq: bool,
    /// Frames of the current thread's handlers that have not returned, and the cycle in which the
    /// outermost began.
    pub(crate) frames: Vec<u64>,
    pub(crate) entered: u64,
    /// The next instruction is the handler's first, which has been paid.
    pub(crate) paid: bool,
    /// The instruction at work has been charged.
    pub(crate) charged: bool,
    pub(crate) modifies: HashMap<u64, bool>,
    pub(crate) limit: u64,
    pub(crate) handler_limit: u64,
    /// Instructions since the handler's entry, as far as `attend` has counted.
    pub(crate) in_handler: u64,
    pub(crate) attended: u64,
    /// When a handler has returned last, and how often that has been of no use.
    pub(crate) back: u64,
    pub(crate) stuck: u32,
    /// The number of the instruction before which `attend` is to look.
    pub(crate) attention: u64,
    /// The hooks are needed.
    pub(crate) want_hooks: bool,
    pub threads: Vec<Thread>,
    pub current: usize,
    /// The current one has ended.
    pub(crate) gone: bool,
    pub(crate) last_id: u32,
    /// The turn of the current thread ends before this instruction.
    pub(crate) slice_end: u64,
    pub signals: Signals,
    /// Unicorn was asked to stop, for what comes between two instructions.
    pub(crate) asked: bool,
    /// An exception that an instruction has raised.
    pub(crate) exception: Option<u32>,
    /// The system call at work, what is left of it, and whether a signal has ended its wait.
    pub(crate) calling: Option<u64>,
    pub(crate) later: Option<Later>,
    pub(crate) interrupted: bool,
    /// When a call that is made again and again was made first.
    pub(crate) since: Option<u64>,
    /// Time skipped while no thread could run.
    pub(crate) skipped: u64,
    pub processes: bool,
    pub(crate) options: Option<Vec<String>>,
    /// The program has set one.
    pub(crate) timers: bool,
    /// There are, or were, other processes; this one is a child.
    pub(crate) forked: bool,
    pub child: bool,
    pub(crate) family: Family,
    /// Starts and ends, disjoint, in order.
    pub(crate) watches: Vec<(u64, u64)>,
    /// The access that the modelled handler saw last: instruction count and address.
    pub(crate) served: (u64, u64),
    pub debug: Debug,
    /// How it has ended, which the debugger hears after the last hit.
    pub(crate) ended: Option<End>,
}

/// Up to 15 bytes of code.
pub(crate) fn code_at(uc: &Uc, pc: u64) -> Vec<u8> {
    let to_page = (PAGE - pc % PAGE).min(15) as usize;
    [15, to_page]
        .iter()
        .find_map(|&len| uc.mem_read_as_vec(pc, len).ok())
        .unwrap_or_default()
}

impl State {
    pub fn new(config: &Config, context: Context) -> Result<State> {
        Ok(State {
            observer: None,
            mmu: Mmu::new(config.tlb, config.rule)?,
            stats: Stats::default(),
            costs: config.costs.clone(),
            space: Space::default(),
            os: Os::default(),
            device: Devices::default(),
            end: None,
            full: !config.functional,
            pc: 0,
            abort: None,
            context: Some(context),
            hooked: false,
            fetches: false,
            iretq: false,
            frames: vec![],
            entered: 0,
            paid: false,
            charged: false,
            modifies: HashMap::new(),
            limit: config.limit.unwrap_or(u64::MAX),
            handler_limit: config.handler_limit,
            in_handler: 0,
            attended: 0,
            back: u64::MAX,
            stuck: 0,
            attention: 0,
            want_hooks: false,
            threads: vec![Thread::new(processes::FIRST)],
            current: 0,
            gone: false,
            last_id: processes::FIRST,
            slice_end: u64::MAX,
            signals: Signals::default(),
            asked: false,
            exception: None,
            calling: None,
            later: None,
            interrupted: false,
            since: None,
            skipped: 0,
            processes: config.processes,
            options: config.options.clone(),
            timers: false,
            forked: false,
            child: false,
            family: Family::default(),
            watches: vec![],
            served: (u64::MAX, 0),
            debug: Debug::default(),
            ended: None,
        })
    }

    pub(crate) fn thread(&mut self) -> &mut Thread {
        let n = self.current;
        &mut self.threads[n]
    }

    pub(crate) fn thread_id(&self) -> u32 {
        self.threads[self.current].id
    }

    /// Nanoseconds, as the program's clocks tell: a cycle is one.
    pub(crate) fn now(&self) -> u64 {
        self.skipped
            + match self.full {
                true => self.stats.cycles,
                false => self.stats.instructions + 1000 * self.stats.system_calls,
            }
    }

    /// The current thread as debuggers number it: the first is 1.
    pub(crate) fn thread_number(&self) -> u64 {
        u64::from(self.thread_id() - self.threads[0].id.min(self.thread_id())) + 1
    }

    /// The rest of the system call comes between two instructions.
    pub(crate) fn later(&mut self, what: Later) -> Result<i64, i64> {
        self.later = Some(what);
        Ok(0)
    }

    /// Ends the run: the program asks for something that the machine does not have.
    pub(crate) fn fail(&mut self, what: String) {
        self.end = Some(End::Failed(format!("the machine does not know {what}")));
    }

    /// The permission in the user's tables, bypassing the TLB.
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
