//! The remote serial protocol: gdbstub, and beside it what gdbstub lacks.
//!
//! ```text
//!   server ──frames──▶ FrameReader ──▶ beside/ ──not mine──▶ gdbstub ──▶ target.rs ──▶ Inferior
//!                                        │  answers itself               │ answers
//!   server ◀──────────── frame ◀─────────┴── amend.rs ◀──────────────────┘
//! ```
//!
//! gdbstub keeps the session's state (stopped, running), negotiates features, serves registers and thread lists, and
//! reports stops. The seam has two sides.
//! - `beside/` answers packets that gdbstub does not have or serves too narrowly, before gdbstub sees them. There is
//!   one file per group, each with its reason.
//! - `amend.rs` completes gdbstub's answers that need more (the feature list, stop replies).
//!
//! Between server and stub there are no acknowledgements; checksums were verified by the server.
//! Contents may still be hostile: a packet that gdbstub cannot parse ends gdbstub's session, so it
//! is restarted in the same state and the client gets an error reply.

mod amend;
mod arch;
mod beside;
mod non_stop;
pub mod packet;
mod prefetch;
mod procfs;
mod reason;
mod registers;
mod target;

use crate::inferior::{Inferior, Stop, StopReason, Tid};
use alloc::vec::Vec;
use core::convert::Infallible;
use core::num::NonZeroUsize;
use gdbstub::common::Signal;
use gdbstub::conn::Connection;
use gdbstub::stub::state_machine::GdbStubStateMachine;
use gdbstub::stub::{GdbStubBuilder, MultiThreadStopReason};
use gdbstub::target::ext::breakpoints::WatchKind as StubWatchKind;
use packet::{ClientFeatures, FrameReader, Incoming};
use target::Debuggee;
use ulpf_lib::WatchKind;

/// State of the session, for the main loop after it has fed the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Stopped; the debugger is in control.
    Stopped,
    /// The program was resumed, or goes on running; report its next stop with `stopped`.
    Running,
    /// `Inferior::detach` was called and acknowledged.
    Detached,
    /// `Inferior::kill` was called.
    Killed,
}

/// Console text goes out in packets of at most this many bytes before hex encoding.
const CONSOLE_CHUNK: usize = 8 << 10;

/// gdbstub writes its answers here.
struct Capture(Vec<u8>);

impl Connection for Capture {
    type Error = Infallible;
    fn write(&mut self, byte: u8) -> Result<(), Infallible> {
        self.0.push(byte);
        Ok(())
    }
    fn flush(&mut self) -> Result<(), Infallible> {
        Ok(())
    }
}

/// At the end of a stop reply: only `vUlpfHalt` has caused the stop.
const HALTED: &[u8] = b"ulpfhalt:;";

type Machine = GdbStubStateMachine<'static, Debuggee, Capture>;

/// One debugger's conversation with one program. All calls come from the stub's own task.
pub struct GdbSession {
    reader: FrameReader,
    /// `None` only while a step of the machine is under way.
    machine: Option<Machine>,
    debuggee: Debuggee,
    client: Client,
    event: Event,
    /// An interrupt request that no stop has answered yet. GDB expects its answer: the program may have stopped just
    /// before for a reason that GDB handles without the user. LLDB does not.
    interrupt_due: bool,
    /// The server has requested a stop that the debugger does not see.
    halting: bool,
    /// Thread of `Hg` and of the last stop.
    thread: Tid,
    /// Threads of `Hc`, for the old resume packets.
    resume_thread: packet::ThreadId,
    /// The last stop reply, for `?`.
    last_stop: Vec<u8>,
    last_reason: Option<Stop>,
    large: beside::large::LargeWatches,
    prefetch: prefetch::Prefetch,
    non_stop: non_stop::NonStop,
}

/// Known properties of the client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Client {
    features: ClientFeatures,
    lldb: bool,
    /// LLDB asked for `threads:` in stop replies.
    threads_in_stop: bool,
    error_strings: bool,
    /// LLDB up to 19 has found `x` by trying, and expects no `b` before the bytes.
    bare_reads: bool,
}

impl GdbSession {
    /// A session for the stopped program `pid`.
    pub fn new(pid: i32) -> GdbSession {
        let layout = arch::Layout::for_client(packet::ClientFeatures::default());
        GdbSession {
            reader: FrameReader::default(),
            machine: None,
            debuggee: Debuggee::new(pid, layout),
            client: Client::default(),
            event: Event::Stopped,
            interrupt_due: false,
            halting: false,
            thread: 0,
            resume_thread: packet::ThreadId::ALL,
            last_stop: Vec::new(),
            last_reason: None,
            large: Default::default(),
            prefetch: Default::default(),
            non_stop: Default::default(),
        }
    }

    /// Bytes from the server. Whole frames go to `out`.
    pub fn incoming(
        &mut self,
        inf: &mut dyn Inferior,
        bytes: &[u8],
        out: &mut dyn FnMut(&[u8]),
    ) -> Event {
        for byte in bytes {
            match self.reader.push(*byte) {
                None => {}
                Some(Incoming::Interrupt) => {
                    self.interrupt_due = !self.client.lldb && !self.is_non_stop();
                    if self.event == Event::Running || self.is_non_stop() {
                        inf.interrupt();
                    }
                }
                Some(Incoming::Packet(payload)) if self.must_wait(inf, &payload) => {
                    self.non_stop.waiting.push(payload);
                }
                Some(Incoming::Packet(payload)) => self.packet(inf, &payload, out),
            }
        }
        self.event
    }

    /// The program has stopped: tell the debugger.
    pub fn stopped(
        &mut self,
        inf: &mut dyn Inferior,
        stop: Stop,
        out: &mut dyn FnMut(&[u8]),
    ) -> Event {
        if self.is_non_stop() {
            self.one_stopped(inf, stop, out);
            return self.event;
        }
        self.thread = stop.tid;
        self.last_reason = Some(stop);
        let interrupted = stop.reason == StopReason::Interrupted;
        let halted = core::mem::take(&mut self.halting) && interrupted && !self.interrupt_due;
        if interrupted {
            self.interrupt_due = false;
        }
        if let (StopReason::Watch { addr, .. }, false) = (stop.reason, self.client.lldb) {
            self.large.hit(addr);
        }
        if let Some(raw) = self.report(inf, stop) {
            let mut reply = amend::payload(&raw).to_vec();
            amend::stop_reply(&mut reply, inf, stop, self.client, self.debuggee.pid);
            self.last_stop = reply.clone();
            if halted {
                reply.extend_from_slice(HALTED);
            }
            prefetch::answer(self, inf, &packet::frame(&reply), out);
        }
        self.event = Event::Stopped;
        self.event
    }

    fn packet(&mut self, inf: &mut dyn Inferior, payload: &[u8], out: &mut dyn FnMut(&[u8])) {
        if self.thread == 0 {
            self.thread = inf.threads().first().copied().unwrap_or(self.debuggee.pid);
            self.resume_gdbstub(self.thread);
        }
        match beside::serve(self, inf, payload) {
            beside::Served::Ok => out(b"$OK#9a"),
            beside::Served::Reply(reply) => out(&packet::frame(&reply)),
            beside::Served::Output(text) => {
                let mut all = Vec::new();
                for part in text.as_bytes().chunks(CONSOLE_CHUNK) {
                    console(part, &mut |frame| all.extend_from_slice(frame));
                }
                all.extend_from_slice(b"$OK#9a");
                out(&all);
            }
            beside::Served::Frames(frames) => out(&frames),
            beside::Served::Silent => {}
            beside::Served::Pass => {
                let raw = self.feed(inf, payload);
                self.answer(payload, raw, out);
            }
            beside::Served::PassAs(payload) => {
                let raw = self.feed(inf, &payload);
                self.answer(&payload, raw, out);
                if self.event == Event::Running {
                    self.resumed(inf, out);
                }
            }
        }
    }

    /// A line for the user. The client accepts it only while it waits for a stop.
    pub fn console(&mut self, text: &str, out: &mut dyn FnMut(&[u8])) {
        // In non-stop mode the server has the line, for the client takes none.
        if self.event == Event::Running || self.is_non_stop() {
            console(text.as_bytes(), out);
        }
    }

    /// The program has just been resumed.
    fn resumed(&mut self, inf: &mut dyn Inferior, out: &mut dyn FnMut(&[u8])) {
        if let Some(text) = self.large.resumed() {
            console(&text, out);
        }
        if self.interrupt_due {
            inf.interrupt();
        }
    }

    /// Sends what gdbstub has answered.
    fn answer(&mut self, payload: &[u8], raw: Option<Vec<u8>>, out: &mut dyn FnMut(&[u8])) {
        match raw {
            None => out(&packet::frame(b"E01")),
            Some(raw) if payload.starts_with(b"qSupported") => {
                out(&packet::frame(&amend::features(amend::payload(&raw))));
            }
            Some(raw) => {
                if !raw.is_empty() {
                    out(&raw);
                }
            }
        }
    }

    /// One packet through gdbstub; what it wrote, or `None` when it gave up on the packet.
    fn feed(&mut self, inf: &mut dyn Inferior, payload: &[u8]) -> Option<Vec<u8>> {
        self.step(inf, |machine, debuggee| {
            let mut machine = machine;
            for byte in packet::frame(payload) {
                machine = match machine {
                    GdbStubStateMachine::Idle(m) => m.incoming_data(debuggee, byte).ok()?,
                    GdbStubStateMachine::Running(m) => m.incoming_data(debuggee, byte).ok()?,
                    // Neither occurs: interrupts, detach and kill do not go through gdbstub.
                    GdbStubStateMachine::CtrlCInterrupt(_)
                    | GdbStubStateMachine::Disconnected(_) => return None,
                };
            }
            Some(machine)
        })
    }

    /// A stop through gdbstub, with the registers that every debugger asks for first.
    fn report(&mut self, inf: &mut dyn Inferior, stop: Stop) -> Option<Vec<u8>> {
        let reason = self.stub_reason(stop)?;
        let mut expedited = Vec::new();
        for number in [arch::RBP, arch::RSP, arch::RIP] {
            let mut value = [0; 8];
            // A stop is reported even without them.
            if registers::read(inf, stop.tid, arch::Place::Gpr(number), &mut value).is_some() {
                expedited.push((arch::RegisterNumber(number), value));
            }
        }
        let raw = self.step(inf, |machine, debuggee| {
            let GdbStubStateMachine::Running(m) = machine else {
                return None;
            };
            let mut regs = expedited.iter().map(|(r, v)| (*r, &v[..]));
            m.report_stop_with_regs(debuggee, reason, &mut regs).ok()
        });
        if raw.is_none() {
            self.resume_gdbstub(stop.tid);
        }
        raw
    }

    /// Why a thread has stopped, as reported to the debugger.
    fn reason_of(&self, tid: Tid) -> Option<StopReason> {
        match self.is_non_stop() {
            true => self.non_stop.reason_of(tid),
            false => self
                .last_reason
                .filter(|stop| stop.tid == tid)
                .map(|stop| stop.reason),
        }
    }

    /// No resumed thread is left; only parked threads exist.
    pub fn no_resumed(&mut self, inf: &mut dyn Inferior, out: &mut dyn FnMut(&[u8])) {
        if self.is_non_stop() {
            if self.client.features.no_resumed {
                out(&packet::notification(b"Stop:N"));
            }
            return;
        }
        self.last_stop.clear();
        self.last_reason = None;
        self.event = Event::Stopped;
        (self.interrupt_due, self.halting) = (false, false);
        self.thread = inf.threads().first().copied().unwrap_or(self.thread);
        self.resume_gdbstub(self.thread);
        out(&packet::frame(match self.client.features.no_resumed {
            true => b"N",
            false => b"E.No thread is left that was resumed.",
        }));
    }

    fn stub_reason(&self, stop: Stop) -> Option<MultiThreadStopReason<u64>> {
        let tid = NonZeroUsize::new(usize::try_from(stop.tid).ok()?)?;
        Some(match stop.reason {
            StopReason::Breakpoint if self.client.features.swbreak => {
                MultiThreadStopReason::SwBreak(tid)
            }
            StopReason::Watch { kind, addr } => MultiThreadStopReason::Watch {
                tid,
                kind: match kind {
                    WatchKind::Write => StubWatchKind::Write,
                    WatchKind::Read => StubWatchKind::Read,
                    WatchKind::Access => StubWatchKind::ReadWrite,
                },
                addr: addr.0,
            },
            reason => MultiThreadStopReason::SignalWithThread {
                tid,
                signal: Signal(reason::Reported::of(reason, self.client).signal),
            },
        })
    }

    /// Moves the machine by one step; on failure it starts again in the state that the client
    /// believes in.
    fn step(
        &mut self,
        inf: &mut dyn Inferior,
        f: impl FnOnce(Machine, &mut Debuggee) -> Option<Machine>,
    ) -> Option<Vec<u8>> {
        let machine = self.machine.take()?;
        match self.debuggee.lend(inf, |debuggee| f(machine, debuggee)) {
            Some(mut machine) => {
                let raw = core::mem::take(&mut capture(&mut machine).0);
                self.machine = Some(machine);
                Some(raw)
            }
            None => {
                self.resume_gdbstub(self.thread);
                None
            }
        }
    }

    /// (Re)starts gdbstub: no acknowledgements, the negotiated features, the selected thread. It
    /// comes up in its idle state.
    fn resume_gdbstub(&mut self, thread: Tid) {
        let buffer = packet::PACKET_SIZE + 8;
        let Ok(stub) = GdbStubBuilder::new(Capture(Vec::new()))
            .packet_buffer_size(buffer)
            .build()
        else {
            return;
        };
        let Ok(mut machine) = stub.run_state_machine(&mut self.debuggee) else {
            return;
        };
        let mut select = b"Hg".to_vec();
        packet::push_num(&mut select, thread.max(1) as u64);
        for payload in [
            b"QStartNoAckMode",
            self.client.features.for_gdbstub(),
            &select,
        ] {
            for byte in packet::frame(payload) {
                let GdbStubStateMachine::Idle(m) = machine else {
                    return;
                };
                machine = match m.incoming_data(&mut self.debuggee, byte) {
                    Ok(machine) => machine,
                    Err(_) => return,
                };
            }
        }
        capture(&mut machine).0.clear();
        self.machine = Some(machine);
    }
}

fn console(text: &[u8], out: &mut dyn FnMut(&[u8])) {
    let mut reply = b"O".to_vec();
    packet::push_hex(&mut reply, text);
    out(&packet::frame(&reply));
}

fn capture(machine: &mut Machine) -> &mut Capture {
    match machine {
        GdbStubStateMachine::Idle(m) => m.borrow_conn(),
        GdbStubStateMachine::Running(m) => m.borrow_conn(),
        GdbStubStateMachine::CtrlCInterrupt(m) => m.borrow_conn(),
        GdbStubStateMachine::Disconnected(m) => m.borrow_conn(),
    }
}
