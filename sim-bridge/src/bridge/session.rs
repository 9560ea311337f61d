// SPDX-License-Identifier: GPL-2.0-or-later
//! Requests to the machine while it rests, and its runs. docs/bridge.md says what each request means.

use crate::debug::Pause;
use crate::debug::watch::WatchRequest;
use crate::machine::{End, Machine};
use crate::registers;
use std::collections::BTreeMap;
use ulpf_bridge::{
    Armed, Bytes, Capabilities, Feature, How, Kind, Listed, Reason, Refusal, Reply, Request, State,
    Stop, Totals, VERSION,
};
use unicorn_engine::RegisterX86 as R;

/// Bytes of one `read`.
const MOST: u64 = 1 << 20;
/// Hits of one answer.
const MOST_HITS: u64 = 4096;
/// Watches of one `list`: a line has 4 MiB.
const MOST_LISTED: usize = 20_000;

pub struct Session {
    pub machine: Machine,
    pub program: String,
    pub token: String,
    auxv: Vec<u8>,
    last: Stop,
    /// It has died of a signal, unless the debugger has the instruction made again.
    dying: Option<(u8, String)>,
    status: i32,
}

type Answer = Result<Reply, Refusal>;

fn refuse(what: &str, why: impl Into<String>, todo: &str) -> Answer {
    Err(Refusal::new(what, why, todo))
}

pub fn capabilities() -> Capabilities {
    Capabilities {
        registers: registers::LAYOUT.into(),
        watches: vec![Kind::Write, Kind::Read, Kind::Access],
        most_watches: None,
        features: vec![
            Feature::Breakpoints,
            Feature::Step,
            Feature::Interrupt,
            Feature::SetRegisters,
            Feature::Hits,
            Feature::Statistics,
            Feature::Auxv,
            Feature::List,
            Feature::Live,
            Feature::Log,
            Feature::Filters,
        ],
    }
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

impl Session {
    pub fn new(machine: Machine, program: String, token: String) -> Session {
        machine.state.borrow_mut().debug.active = true;
        let pc = machine.uc.reg_read(R::RIP).unwrap_or(0);
        let last = Stop {
            thread: 1,
            pc,
            reason: Reason::Attached,
        };
        Session {
            auxv: auxv(&machine),
            machine,
            program,
            token,
            last,
            dying: None,
            status: 125,
        }
    }

    /// For the process that had the machine.
    pub fn exit_status(&self) -> i32 {
        self.status
    }

    pub fn hello(&self) -> Reply {
        Reply::Hello {
            version: VERSION,
            backend: "unicorn".into(),
            name: format!(
                "ulpf-sim {}, a simulated processor with user-level page faults",
                env!("CARGO_PKG_VERSION")
            ),
            session: self.token.clone(),
            program: self.program.clone(),
            capabilities: capabilities(),
        }
    }

    pub fn answer(&mut self, request: Request) -> Answer {
        match request {
            Request::Status => Ok(Reply::Status(State::Stopped {
                stop: self.last.clone(),
            })),
            Request::Hits { since, most } => Ok(self.hits(since, most.min(MOST_HITS))),
            Request::Statistics => Ok(self.statistics()),
            Request::List => Ok(self.list()),
            _ if self.last.reason.is_end() => refuse(
                "There is no program any more",
                "it has ended",
                "Start it again.",
            ),
            Request::Threads => Ok(Reply::Threads { threads: vec![1] }),
            Request::Registers { thread } | Request::SetRegisters { thread, .. } if thread != 1 => {
                refuse(
                    "There is no such thread",
                    format!("the program has thread 1, not {thread}"),
                    "",
                )
            }
            Request::Registers { .. } => Ok(Reply::Data {
                data: Bytes(registers::read(&self.machine.uc)),
            }),
            Request::SetRegisters { registers, .. } => {
                match registers::write(&mut self.machine.uc, &registers.0) {
                    true => Ok(Reply::Done),
                    false => refuse(
                        "The registers cannot be set",
                        format!(
                            "{} have {} bytes, these {}",
                            registers::LAYOUT,
                            registers::SIZE,
                            registers.0.len()
                        ),
                        "",
                    ),
                }
            }
            Request::Read { addr, len } => self.read(addr, len),
            Request::Write { addr, data } => match self.machine.uc.mem_write(addr, &data.0) {
                Ok(()) => {
                    // It may be code.
                    let end = addr.saturating_add(data.0.len() as u64);
                    let _ = self.machine.uc.ctl_remove_cache(addr, end);
                    Ok(Reply::Done)
                }
                Err(_) => refuse(
                    "The memory cannot be written",
                    format!("nothing is mapped at {addr:#x} (+{})", data.0.len()),
                    "",
                ),
            },
            Request::Breakpoints { insert, remove } => {
                let s = &mut *self.machine.state.borrow_mut();
                for addr in remove {
                    s.debug.breakpoints.remove(&addr);
                }
                s.debug.breakpoints.extend(insert);
                Ok(Reply::Done)
            }
            Request::Watch { watches } => Ok(self.watch(&watches)),
            Request::Unwatch { ids } => {
                let s = &mut *self.machine.state.borrow_mut();
                let unknown = ids
                    .into_iter()
                    .find(|&id| !s.disarm(&mut self.machine.uc, id));
                match unknown {
                    None => Ok(Reply::Done),
                    Some(id) => refuse("There is no such watch", format!("its number is {id}"), ""),
                }
            }
            Request::Filter { watch, filter } => {
                match self.machine.state.borrow_mut().debug.filter(watch, filter) {
                    true => Ok(Reply::Done),
                    false => refuse(
                        "There is no such watch",
                        format!("its number is {watch}"),
                        "",
                    ),
                }
            }
            Request::Auxv => Ok(Reply::Data {
                data: Bytes(self.auxv.clone()),
            }),
            Request::Interrupt => Ok(Reply::Done),
            Request::Hello { .. } => Ok(self.hello()),
            Request::Resume { .. } | Request::Kill => Ok(Reply::Done),
            Request::Monitor { .. } | Request::Detach => refuse(
                "This back end has no such request",
                "the simulated machine lives for its debugger",
                "Its capabilities say what it has.",
            ),
        }
    }

    fn read(&self, addr: u64, len: u64) -> Answer {
        let len = len.min(MOST);
        let mut data = vec![];
        // As much as there is: in one piece, or page by page.
        match self.machine.uc.mem_read_as_vec(addr, len as usize) {
            Ok(all) => data = all,
            Err(_) => {
                let mut at = addr;
                while at - addr < len {
                    let n = (4096 - at % 4096).min(len - (at - addr));
                    match self.machine.uc.mem_read_as_vec(at, n as usize) {
                        Ok(more) => data.extend(more),
                        Err(_) => break,
                    }
                    match at.checked_add(n) {
                        Some(next) => at = next,
                        None => break,
                    }
                }
            }
        }
        match data.is_empty() && len > 0 {
            false => Ok(Reply::Data { data: Bytes(data) }),
            true => refuse(
                "The memory cannot be read",
                format!("nothing is mapped at {addr:#x}"),
                "",
            ),
        }
    }

    fn watch(&mut self, watches: &[ulpf_bridge::WatchSpec]) -> Reply {
        let s = &mut *self.machine.state.borrow_mut();
        let uc = &mut self.machine.uc;
        let one = |w: &ulpf_bridge::WatchSpec| {
            let request = WatchRequest {
                stop: w.stop,
                filter: w.filter.clone(),
            };
            match s.arm(uc, w.addr, w.len, w.kind, request) {
                Ok(id) => Armed::Id(id),
                Err(why) => Armed::Refused(Refusal::new("The watch cannot be set", why, "")),
            }
        };
        Reply::Watched {
            watches: watches.iter().map(one).collect(),
        }
    }

    fn list(&self) -> Reply {
        let s = self.machine.state.borrow();
        let mut beside = s.debug.false_positives();
        let watches = s.debug.watches().map(|(id, w)| Listed {
            id,
            addr: w.addr,
            len: w.len,
            kind: w.kind,
            hits: w.hits,
            silent: w.silent,
            filtered: w.filtered,
            stops: w.stops,
            false_positives: beside.remove(&id).unwrap_or(0),
            log: true,
            debuggers: false,
            register: false,
        });
        Reply::Listed {
            watches: watches.take(MOST_LISTED).collect(),
            totals: Totals {
                faults: s.debug.sequence + s.debug.false_positives,
                false_positives: s.debug.false_positives,
                ..Totals::default()
            },
        }
    }

    fn hits(&self, since: u64, most: u64) -> Reply {
        let s = self.machine.state.borrow();
        let first = s
            .debug
            .log
            .front()
            .map_or(s.debug.sequence + 1, |h| h.sequence);
        let hits = s
            .debug
            .log
            .iter()
            .filter(|h| h.sequence > since)
            .take(most as usize);
        Reply::Hits {
            hits: hits.cloned().collect(),
            last: s.debug.sequence,
            lost: (first - 1).saturating_sub(since),
        }
    }

    fn statistics(&self) -> Reply {
        let s = self.machine.state.borrow();
        let d = &s.debug;
        let mut counters: BTreeMap<String, u64> = BTreeMap::new();
        let json: serde_json::Value =
            serde_json::from_str(&s.stats.json(true, 0)).unwrap_or_default();
        for (name, value) in json.as_object().into_iter().flatten() {
            if let Some(n) = value.as_u64().filter(|_| name != "status") {
                counters.insert(name.clone(), n);
            }
        }
        let silent = d.watches().map(|w| w.1.silent).sum();
        let own = [
            ("watches", d.watches().count() as u64),
            ("hits", d.sequence),
            ("silent_stores", silent),
            ("false_positives", d.false_positives),
        ];
        counters.extend(own.map(|(n, v)| (n.to_owned(), v)));
        let mut text = s.stats.table(false);
        for (name, value) in own {
            text += &format!("{:<24}{value:>16}\n", name.replace('_', " "));
        }
        Reply::Statistics { counters, text }
    }

    /// Checks whether the program can continue.
    pub fn may_resume(&self, signal: u8) -> Result<(), Refusal> {
        let fatal = self.dying.as_ref().is_some_and(|d| d.0 == signal);
        let end = self.last.reason.is_end();
        match end || !(signal == 0 || fatal) {
            false => Ok(()),
            true if end => Err(Refusal::new(
                "The program cannot go on",
                "it has ended",
                "Start it again.",
            )),
            true => Err(Refusal::new(
                format!("The program cannot be given signal {signal}"),
                "the simulated machine has no signals",
                "Go on without one (`signal 0`).",
            )),
        }
    }

    /// Runs until the program stops; `attend` is called when a request waits that can be answered
    /// while it runs.
    pub fn resume(&mut self, how: &How, signal: u8, mut attend: impl FnMut(&mut Session)) -> Stop {
        let reason = match self.dying.take() {
            Some((number, why)) if signal == number => Reason::Killed { number, why },
            _ => {
                let steps = matches!(how, How::Step).then_some(1);
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
                self.reason(end)
            }
        };
        self.status = match &reason {
            Reason::Exited { status } => *status,
            Reason::Killed { number, .. } => 128 + i32::from(*number),
            _ => 125,
        };
        let pc = self.machine.uc.reg_read(R::RIP).unwrap_or(0);
        self.last = Stop {
            thread: 1,
            pc,
            reason,
        };
        self.last.clone()
    }

    fn reason(&mut self, end: End) -> Reason {
        match end {
            End::Exit(status) => Reason::Exited { status },
            End::Failed(why) => Reason::Failed { why },
            End::Signal(number, why) => {
                let number = number as u8;
                self.dying = Some((number, why.clone()));
                Reason::Signal { number, why }
            }
            End::Paused(Pause::Step) => Reason::Step,
            End::Paused(Pause::Interrupt) => Reason::Interrupted,
            // (The request has been answered.)
            End::Paused(Pause::Attention) => Reason::Interrupted,
            End::Paused(Pause::Breakpoint) => Reason::Breakpoint,
            End::Paused(Pause::Watch(h, kind)) => Reason::Watch { kind, hit: h },
        }
    }
}
