// SPDX-License-Identifier: GPL-2.0-or-later
//! The machine as gdbstub sees it while it rests, its runs, and the answers that are not gdbstub's:
//! ulpf's monitor commands, counts and hits (docs/bridge.md).

use crate::debug::Pause;
use crate::debug::watch::WatchRequest;
use crate::machine::{End, Machine};
use crate::registers;
use gdbstub::common::Signal;
use gdbstub::stub::SingleThreadStopReason;
use gdbstub::target::ext::auxv::{Auxv, AuxvOps};
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::singlethread::{
    SingleThreadBase, SingleThreadResume, SingleThreadResumeOps, SingleThreadSingleStep,
    SingleThreadSingleStepOps,
};
use gdbstub::target::ext::breakpoints::{
    Breakpoints, BreakpointsOps, HwBreakpoint, HwBreakpointOps, HwWatchpoint, HwWatchpointOps,
    SwBreakpoint, SwBreakpointOps, WatchKind as StubWatchKind,
};
use gdbstub::target::ext::exec_file::{ExecFile, ExecFileOps};
use gdbstub::target::ext::target_description_xml_override::{
    TargetDescriptionXmlOverride, TargetDescriptionXmlOverrideOps,
};
use gdbstub::target::{Target, TargetError, TargetResult};
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::fmt::Write;
use ulpf_lib::command::{self, Command, FilterOf, Reply};
use ulpf_lib::{Refusal, WatchKind, signals};
use ulpf_rsp::registers::{Components, Layout};
use ulpf_rsp::reports::{About, Ask, Counts, Hits, Listed, Role, Totals, WatchCounts};
use ulpf_rsp::stub::{Amd64, RegisterBytes};
use unicorn_engine::RegisterX86 as R;

/// Linux's EFAULT and EINVAL, as errors of the remote protocol.
const EFAULT: u8 = 14;
const EINVAL: u8 = 22;

/// Why the program does not run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// It has not run yet.
    Attached,
    Step,
    Interrupted,
    Breakpoint,
    Watch(u64, WatchKind),
    /// A signal, in Linux's numbering, that is about to end it.
    Signal(u8, String),
    Exited(i32),
    Killed(u8),
    /// The machine cannot continue.
    Failed(String),
    /// It has not been resumed; the reason.
    Refused(String),
}

impl Stop {
    pub fn is_end(&self) -> bool {
        matches!(self, Stop::Exited(_) | Stop::Killed(_) | Stop::Failed(_))
    }
}

/// A requested run.
#[derive(Clone, Copy, Debug)]
pub struct Go {
    step: bool,
    /// In GDB's numbering; 0: none.
    signal: u8,
}

pub struct Session {
    pub machine: Machine,
    /// Registers as the debugger sees them.
    pub layout: Layout,
    program: String,
    auxv: Vec<u8>,
    /// Set by gdbstub when the debugger resumes the program.
    pub go: Option<Go>,
    soft: HashSet<u64>,
    hard: HashSet<u64>,
    /// Watches of `Z2` to `Z4`, by address, length and kind.
    debuggers: HashMap<(u64, u64, WatchKind), Vec<u64>>,
    pub last: Stop,
    /// It has died of a signal, unless the debugger has the instruction made again.
    dying: Option<(u8, String)>,
    status: i32,
}

/// The auxiliary vector, as the program finds it above its first stack pointer.
fn auxv(machine: &Machine) -> Vec<u8> {
    let sp = machine.uc.reg_read(R::RSP).unwrap_or(0);
    let word = |at: u64| {
        let mut b = [0; 8];
        machine
            .uc
            .mem_read(at, &mut b)
            .ok()
            .map(|()| u64::from_le_bytes(b))
    };
    let mut at = sp + 8;
    for _ in 0..2 {
        // Arguments, environment: each ends with a null.
        while word(at).is_some_and(|w| w != 0) {
            at += 8;
        }
        at += 8;
    }
    let mut out = vec![];
    while let (Some(key), Some(value)) = (word(at), word(at + 8)) {
        out.extend([key.to_le_bytes(), value.to_le_bytes()].concat());
        at += 16;
        if key == 0 || out.len() > 4096 {
            break;
        }
    }
    out
}

fn refused(what: &str, why: impl Into<String>) -> Reply {
    Reply::Refused(Refusal::new(what, why, "see `monitor ulpf help`"))
}

impl Session {
    pub fn new(machine: Machine, program: String) -> Session {
        machine.state.borrow_mut().debug.active = true;
        Session {
            auxv: auxv(&machine),
            machine,
            layout: Layout::new(Components::default(), true),
            program,
            go: None,
            soft: HashSet::new(),
            hard: HashSet::new(),
            debuggers: HashMap::new(),
            last: Stop::Attached,
            dying: None,
            status: 125,
        }
    }

    /// For the process that had the machine.
    pub fn exit_status(&self) -> i32 {
        self.status
    }

    /// The answer to one of ulpf's own packets, also while the program runs.
    pub fn report(&self, ask: Ask) -> String {
        let s = self.machine.state.borrow();
        let d = &s.debug;
        match ask {
            Ask::About => About {
                role: Role::Watches,
                kind: "unicorn".into(),
                name: format!(
                    "ulpf-sim {}, a simulated processor with user-level page faults",
                    env!("CARGO_PKG_VERSION")
                ),
            }
            .reply(),
            Ask::Counts(from) => {
                let mut beside = d.false_positives();
                let listed = |(id, w): (u64, &crate::debug::watch::Watch)| Listed {
                    id,
                    addr: w.addr,
                    len: w.len,
                    kind: w.kind,
                    counts: WatchCounts {
                        false_positives: beside.remove(&id).unwrap_or(0),
                        ..w.counts
                    },
                    log: true,
                    debuggers: false,
                };
                // More do not fit into a reply.
                let some = d.watches_from(from).take(4096).map(listed);
                let totals = Totals {
                    faults: d.sequence + d.false_positives,
                    false_positives: d.false_positives,
                    ..Totals::default()
                };
                Counts::reply(from, &totals, &some.collect::<Vec<_>>())
            }
            Ask::Hits { since, most } => {
                let first = d.log.front().map_or(d.sequence + 1, |h| h.sequence);
                let head = Hits {
                    since,
                    last: d.sequence,
                    lost: (first - 1).saturating_sub(since),
                    stop: d.stop,
                    hits: vec![],
                };
                // They are numbered without gaps.
                let skip = since.saturating_add(1).saturating_sub(first);
                let from = usize::try_from(skip).unwrap_or(usize::MAX).min(d.log.len());
                let most = usize::try_from(most).unwrap_or(usize::MAX);
                Hits::reply(&head, d.log.range(from..).take(most))
            }
        }
    }

    /// The answer to a monitor command; lines are separated by `;`.
    pub fn monitor(&mut self, text: &str) -> String {
        let mut out = String::new();
        for text in command::lines(text) {
            if text == "ulpf stats" {
                out += &self.statistics();
                continue;
            }
            let _ = match self.command(text) {
                Some(reply) => writeln!(out, "{reply}"),
                None => writeln!(out, "ulpf-sim has no command `{text}`."),
            };
        }
        out
    }

    fn command(&mut self, text: &str) -> Option<Reply> {
        let command = match Command::parse(text) {
            Ok(command) => command,
            Err(command::Mistake::Refused(why)) => return Some(Reply::Refused(why)),
            Err(_) => return None,
        };
        if self.last.is_end() {
            return Some(refused("ulpf", "the program has ended"));
        }
        let unknown = |id: u32| refused("ulpf watch", format!("there is no watch {id}"));
        let s = &mut *self.machine.state.borrow_mut();
        Some(match command {
            Command::Watch(arm) => {
                let Some(range) = arm.what.range() else {
                    return Some(refused(text, "the machine watches ranges of bytes only"));
                };
                let request = WatchRequest {
                    stop: arm.how.stop,
                    filter: (arm.filter != Default::default()).then_some(arm.filter),
                };
                let uc = &mut self.machine.uc;
                match s.arm(uc, range.start.0, range.len, arm.kind, request) {
                    Ok(id) => Reply::Watch(id as u32),
                    Err(why) => refused("The watch cannot be set", why),
                }
            }
            Command::Unwatch(id) => match s.disarm(&mut self.machine.uc, id.into()) {
                true => Reply::Unwatched(None),
                false => unknown(id),
            },
            Command::Filter {
                of: FilterOf::Watch(id),
                filter,
                ..
            } => {
                let filter = (filter != Default::default()).then_some(filter);
                match s.debug.filter(id.into(), filter) {
                    true => Reply::Filtered(vec![id]),
                    false => unknown(id),
                }
            }
            _ => return None,
        })
    }

    /// `NAME VALUE` lines.
    fn statistics(&self) -> String {
        let s = self.machine.state.borrow();
        let d = &s.debug;
        let silent = d.watches().map(|w| w.1.counts.silent).sum();
        let mut text = s.stats.table(false);
        for (name, value) in [
            ("watches", d.watches().count() as u64),
            ("hits", d.sequence),
            ("silent stores", silent),
            ("false positives", d.false_positives),
        ] {
            let _ = writeln!(text, "{name:<24}{value:>16}");
        }
        text
    }

    /// The requested run, until the program stops. `attend` is called when a packet waits that can be
    /// answered meanwhile.
    pub fn run(&mut self, go: Go, mut attend: impl FnMut(&mut Session)) {
        let linux = signals::from_gdb(go.signal);
        let stop = match (self.dying.take(), linux) {
            (Some((number, _)), Some(signal)) if signal == i32::from(number) => {
                Stop::Killed(number)
            }
            (dying, Some(signal)) => {
                self.dying = dying;
                Stop::Refused(format!(
                    "The program cannot be given signal {signal}: the simulated machine has no signals. Go on without one (`signal 0`)."
                ))
            }
            (_, None) => {
                let steps = go.step.then_some(1);
                self.machine.state.borrow_mut().debug.goes_on(steps);
                let end = loop {
                    match self.machine.run() {
                        End::Paused(Pause::Attention) => {
                            attend(self);
                            self.machine.state.borrow_mut().debug.goes_on_as_before();
                        }
                        end => break end,
                    }
                };
                self.stop(end)
            }
        };
        self.status = match &stop {
            Stop::Exited(status) => *status,
            Stop::Killed(number) => 128 + i32::from(*number),
            _ => 125,
        };
        self.last = stop;
    }

    fn stop(&mut self, end: End) -> Stop {
        match end {
            End::Exit(status) => Stop::Exited(status),
            End::Failed(why) => Stop::Failed(why),
            End::Signal(number, why) => {
                let number = number as u8;
                self.dying = Some((number, why.clone()));
                Stop::Signal(number, why)
            }
            End::Paused(Pause::Step) => Stop::Step,
            // (A request for attention has been answered.)
            End::Paused(Pause::Interrupt | Pause::Attention) => Stop::Interrupted,
            End::Paused(Pause::Breakpoint) => Stop::Breakpoint,
            End::Paused(Pause::Watch(addr, kind)) => Stop::Watch(addr, kind),
        }
    }

    fn pc(&self) -> u64 {
        self.machine.uc.reg_read(R::RIP).unwrap_or(0)
    }

    /// The last stop for gdbstub, and a text for the user.
    pub fn reason(&self) -> (SingleThreadStopReason<u64>, Option<String>) {
        let signal = |linux: u8| Signal(signals::to_gdb(linux.into()));
        let stopped = |signal| SingleThreadStopReason::SignalWithThread { tid: (), signal };
        match &self.last {
            Stop::Attached | Stop::Step => (stopped(Signal::SIGTRAP), None),
            Stop::Interrupted => (stopped(Signal::SIGINT), None),
            Stop::Breakpoint if self.soft.contains(&self.pc()) => {
                (SingleThreadStopReason::SwBreak(()), None)
            }
            Stop::Breakpoint => (SingleThreadStopReason::HwBreak(()), None),
            Stop::Watch(addr, kind) => {
                let kind = match kind {
                    WatchKind::Write => StubWatchKind::Write,
                    WatchKind::Read => StubWatchKind::Read,
                    WatchKind::Access => StubWatchKind::ReadWrite,
                };
                let (tid, addr) = ((), *addr);
                (SingleThreadStopReason::Watch { tid, kind, addr }, None)
            }
            Stop::Signal(number, why) => (
                stopped(signal(*number)),
                Some(format!("signal {number}: {why}")),
            ),
            Stop::Exited(status) => (SingleThreadStopReason::Exited(*status as u8), None),
            Stop::Killed(number) => (SingleThreadStopReason::Terminated(signal(*number)), None),
            Stop::Failed(why) => (
                SingleThreadStopReason::Terminated(Signal::SIGKILL),
                Some(format!("The machine cannot go on: {why}")),
            ),
            Stop::Refused(why) => (stopped(Signal(0)), Some(why.clone())),
        }
    }

    /// The machine stops at these addresses; one that is in both sets stays while one of them has it.
    fn set_breakpoints(&mut self) {
        let all = self.soft.union(&self.hard).copied().collect();
        self.machine.state.borrow_mut().debug.breakpoints = all;
    }
}

/// Copies at most `most` bytes of `whole` from `offset` on into `to`, and returns their number.
fn part(whole: &[u8], offset: u64, most: usize, to: &mut [u8]) -> usize {
    let from = usize::try_from(offset).unwrap_or(usize::MAX);
    let rest = whole.get(from..).unwrap_or_default();
    let n = rest.len().min(to.len()).min(most);
    to[..n].copy_from_slice(&rest[..n]);
    n
}

impl Target for Session {
    type Arch = Amd64;
    type Error = Infallible;

    fn base_ops(&mut self) -> BaseOps<'_, Amd64, Infallible> {
        BaseOps::SingleThread(self)
    }

    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }

    fn support_target_description_xml_override(
        &mut self,
    ) -> Option<TargetDescriptionXmlOverrideOps<'_, Self>> {
        Some(self)
    }

    fn support_auxv(&mut self) -> Option<AuxvOps<'_, Self>> {
        Some(self)
    }

    fn support_exec_file(&mut self) -> Option<ExecFileOps<'_, Self>> {
        Some(self)
    }
}

impl SingleThreadBase for Session {
    fn read_registers(&mut self, regs: &mut RegisterBytes) -> TargetResult<(), Self> {
        regs.0 = registers::read(&self.machine.uc)
            .into_iter()
            .map(Some)
            .collect();
        Ok(())
    }

    fn write_registers(&mut self, regs: &RegisterBytes) -> TargetResult<(), Self> {
        let bytes: Option<Vec<u8>> = regs.0.iter().copied().collect();
        match bytes.is_some_and(|bytes| registers::write(&mut self.machine.uc, &bytes)) {
            true => Ok(()),
            false => Err(TargetError::Errno(EINVAL)),
        }
    }

    /// As much as there is: in one piece, or page by page.
    fn read_addrs(&mut self, start: u64, data: &mut [u8]) -> TargetResult<usize, Self> {
        let uc = &self.machine.uc;
        if uc.mem_read(start, data).is_ok() {
            return Ok(data.len());
        }
        let mut done = 0;
        while done < data.len()
            && let Some(at) = start.checked_add(done as u64)
        {
            let n = (4096 - at as usize % 4096).min(data.len() - done);
            if uc.mem_read(at, &mut data[done..done + n]).is_err() {
                break;
            }
            done += n;
        }
        match done {
            0 => Err(TargetError::Errno(EFAULT)),
            n => Ok(n),
        }
    }

    fn write_addrs(&mut self, start: u64, data: &[u8]) -> TargetResult<(), Self> {
        let uc = &mut self.machine.uc;
        uc.mem_write(start, data)
            .map_err(|_| TargetError::Errno(EFAULT))?;
        // It may be code.
        let _ = uc.ctl_remove_cache(start, start.saturating_add(data.len() as u64));
        Ok(())
    }

    fn support_resume(&mut self) -> Option<SingleThreadResumeOps<'_, Self>> {
        Some(self)
    }
}

impl SingleThreadResume for Session {
    fn resume(&mut self, signal: Option<Signal>) -> Result<(), Infallible> {
        let signal = signal.map_or(0, |s| s.0);
        self.go = Some(Go {
            step: false,
            signal,
        });
        Ok(())
    }

    fn support_single_step(&mut self) -> Option<SingleThreadSingleStepOps<'_, Self>> {
        Some(self)
    }
}

impl SingleThreadSingleStep for Session {
    fn step(&mut self, signal: Option<Signal>) -> Result<(), Infallible> {
        let signal = signal.map_or(0, |s| s.0);
        self.go = Some(Go { step: true, signal });
        Ok(())
    }
}

impl TargetDescriptionXmlOverride for Session {
    fn target_description_xml(
        &self,
        annex: &[u8],
        offset: u64,
        most: usize,
        buf: &mut [u8],
    ) -> TargetResult<usize, Self> {
        match annex {
            b"target.xml" => Ok(part(self.layout.xml.as_bytes(), offset, most, buf)),
            _ => Err(TargetError::NonFatal),
        }
    }
}

impl Auxv for Session {
    fn get_auxv(&self, offset: u64, most: usize, buf: &mut [u8]) -> TargetResult<usize, Self> {
        Ok(part(&self.auxv, offset, most, buf))
    }
}

impl ExecFile for Session {
    fn get_exec_file(
        &self,
        _: Option<gdbstub::common::Pid>,
        offset: u64,
        most: usize,
        buf: &mut [u8],
    ) -> TargetResult<usize, Self> {
        Ok(part(self.program.as_bytes(), offset, most, buf))
    }
}

impl Breakpoints for Session {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_breakpoint(&mut self) -> Option<HwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_watchpoint(&mut self) -> Option<HwWatchpointOps<'_, Self>> {
        Some(self)
    }
}

impl SwBreakpoint for Session {
    fn add_sw_breakpoint(&mut self, addr: u64, _: usize) -> TargetResult<bool, Self> {
        self.soft.insert(addr);
        self.set_breakpoints();
        Ok(true)
    }

    fn remove_sw_breakpoint(&mut self, addr: u64, _: usize) -> TargetResult<bool, Self> {
        self.soft.remove(&addr);
        self.set_breakpoints();
        Ok(true)
    }
}

impl HwBreakpoint for Session {
    fn add_hw_breakpoint(&mut self, addr: u64, _: usize) -> TargetResult<bool, Self> {
        self.hard.insert(addr);
        self.set_breakpoints();
        Ok(true)
    }

    fn remove_hw_breakpoint(&mut self, addr: u64, _: usize) -> TargetResult<bool, Self> {
        self.hard.remove(&addr);
        self.set_breakpoints();
        Ok(true)
    }
}

fn kind_of(kind: StubWatchKind) -> WatchKind {
    match kind {
        StubWatchKind::Write => WatchKind::Write,
        StubWatchKind::Read => WatchKind::Read,
        StubWatchKind::ReadWrite => WatchKind::Access,
    }
}

impl HwWatchpoint for Session {
    fn add_hw_watchpoint(
        &mut self,
        addr: u64,
        len: u64,
        kind: StubWatchKind,
    ) -> TargetResult<bool, Self> {
        let kind = kind_of(kind);
        let s = &mut *self.machine.state.borrow_mut();
        let uc = &mut self.machine.uc;
        let Ok(id) = s.arm(uc, addr, len, kind, WatchRequest::default()) else {
            return Ok(false);
        };
        self.debuggers
            .entry((addr, len, kind))
            .or_default()
            .push(id);
        Ok(true)
    }

    fn remove_hw_watchpoint(
        &mut self,
        addr: u64,
        len: u64,
        kind: StubWatchKind,
    ) -> TargetResult<bool, Self> {
        let same = self.debuggers.get_mut(&(addr, len, kind_of(kind)));
        let Some(id) = same.and_then(Vec::pop) else {
            return Ok(false);
        };
        let s = &mut *self.machine.state.borrow_mut();
        Ok(s.disarm(&mut self.machine.uc, id))
    }
}
