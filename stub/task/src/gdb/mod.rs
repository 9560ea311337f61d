//! The remote serial protocol: gdbstub, and beside it what gdbstub lacks.
//!
//! ```text
//!   server ──frames──▶ Decoder ──▶ beside/ ──not mine──▶ gdbstub ──▶ target.rs ──▶ Inferior
//!                                    │  answers itself               │ answers
//!   server ◀────────── frame ◀───────┴───────────────────────────────┘
//! ```
//!
//! gdbstub serves a program that is stopped: registers, the list of threads, monitor commands, caught system calls, and
//! the negotiation of features. `beside/` answers the other packets before gdbstub sees them: those for which gdbstub
//! has no trait, and those that it serves otherwise than gdbserver. There is one file per group, and its head says why
//! it is there. `stop_reply.rs` writes the stops.
//!
//! Between server and stub there are no acknowledgements. Contents may be hostile: a packet that gdbstub cannot parse
//! ends gdbstub's session, so it is started again in the same state and the client gets an error reply.

mod arch;
mod beside;
mod non_stop;
pub mod packet;
mod prefetch;
mod procfs;
mod reason;
mod registers;
mod stop_reply;
mod target;

use crate::inferior::{Inferior, Stop, StopReason, Tid};
use alloc::format;
use alloc::vec::Vec;
use gdbstub::stub::GdbStubBuilder;
use gdbstub::stub::state_machine::{GdbStubStateMachine, GdbStubStateMachineInner, state};
use packet::{ClientFeatures, PACKET_SIZE};
use target::Debuggee;
use ulpf_rsp::stub::Capture;
use ulpf_rsp::{Decoder, frame, notification, push_hex, push_number};

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

/// At the end of a stop reply: only `vUlpfHalt` has caused the stop.
const HALTED: &[u8] = b"ulpfhalt:;";

/// gdbstub with a stopped program; it never sees one that runs.
type Machine = GdbStubStateMachineInner<'static, state::Idle<Debuggee>, Debuggee, Capture>;

/// One debugger's conversation with one program. All calls come from the stub's own task.
pub struct GdbSession {
    reader: Decoder,
    /// `None` at the beginning, and after a packet that gdbstub could not parse.
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
        let layout = arch::layout_for(ClientFeatures::default());
        GdbSession {
            reader: Decoder::new(PACKET_SIZE),
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
            match self.reader.byte(*byte) {
                None | Some(ulpf_rsp::Event::Ack | ulpf_rsp::Event::Nak) => {}
                Some(ulpf_rsp::Event::Interrupt) => {
                    self.interrupt_due = !self.client.lldb && !self.is_non_stop();
                    if self.event == Event::Running || self.is_non_stop() {
                        inf.interrupt();
                    }
                }
                Some(ulpf_rsp::Event::Packet(payload)) if self.must_wait(inf, &payload) => {
                    self.non_stop.waiting.push(payload);
                }
                Some(ulpf_rsp::Event::Packet(payload)) => self.packet(inf, &payload, out),
                Some(
                    ulpf_rsp::Event::Notification(_)
                    | ulpf_rsp::Event::BadChecksum { .. }
                    | ulpf_rsp::Event::Oversize,
                ) => out(&frame(b"E01")),
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
        self.select(inf, stop.tid);
        self.last_reason = Some(stop);
        let interrupted = stop.reason == StopReason::Interrupted;
        let halted = core::mem::take(&mut self.halting) && interrupted && !self.interrupt_due;
        if interrupted {
            self.interrupt_due = false;
        }
        if let (StopReason::Watch { addr, .. }, false) = (stop.reason, self.client.lldb) {
            self.large.hit(addr);
        }
        let mut reply = self.stop_reply(inf, stop);
        self.last_stop = reply.clone();
        if halted {
            reply.extend_from_slice(HALTED);
        }
        prefetch::answer(self, inf, &frame(&reply), out);
        self.event = Event::Stopped;
        self.event
    }

    fn packet(&mut self, inf: &mut dyn Inferior, payload: &[u8], out: &mut dyn FnMut(&[u8])) {
        if self.thread == 0 {
            self.thread = inf.threads().first().copied().unwrap_or(self.debuggee.pid);
        }
        match beside::serve(self, inf, payload) {
            beside::Served::Ok => out(b"$OK#9a"),
            beside::Served::Reply(reply) => out(&frame(&reply)),
            beside::Served::Frames(frames) => out(&frames),
            beside::Served::Silent => {}
            beside::Served::Resumed => self.resumed(inf, out),
            beside::Served::Pass => match self.feed(inf, payload) {
                Some(raw) => out(&raw),
                None => out(&frame(b"E01")),
            },
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

    /// Registers are those of this thread from here on.
    fn select(&mut self, inf: &mut dyn Inferior, tid: Tid) {
        self.thread = tid;
        let selection = self.selection();
        // (If gdbstub does not take it, the next packet starts gdbstub again with it.)
        let _ = self.feed(inf, &selection);
    }

    fn selection(&self) -> Vec<u8> {
        let mut packet = b"Hg".to_vec();
        push_number(&mut packet, self.thread.max(1) as u64);
        packet
    }

    /// The features: gdbstub's, and those that are served in `beside/`. Our packet size replaces the size of gdbstub's
    /// buffer, and its stray comma goes.
    fn negotiate(&mut self, inf: &mut dyn Inferior) -> Option<Vec<u8>> {
        let features = self.client.features.for_gdbstub();
        let reply = self.feed(inf, features)?;
        let reply = reply.split(|b| matches!(b, b'$' | b'#')).nth(1)?;
        let mut all = format!("PacketSize={PACKET_SIZE:x}").into_bytes();
        for feature in reply.split(|b| *b == b';') {
            if !feature.starts_with(b"PacketSize=") && !feature.starts_with(b"QStartNoAckMode") {
                all.push(b';');
                all.extend(feature.iter().filter(|b| **b != b','));
            }
        }
        all.extend_from_slice(beside::FEATURES);
        Some(all)
    }

    /// One packet through gdbstub: the frames that it writes, or `None` when it gives up on the packet.
    fn feed(&mut self, inf: &mut dyn Inferior, payload: &[u8]) -> Option<Vec<u8>> {
        let machine = self.machine.take().or_else(|| self.begin())?;
        let through = |debuggee: &mut Debuggee| through(machine, debuggee, payload);
        let mut machine = self.debuggee.lend(inf, through)?;
        let raw = core::mem::take(&mut machine.borrow_conn().0);
        self.machine = Some(machine);
        Some(raw)
    }

    /// gdbstub without acknowledgements, with the negotiated features and the selected thread.
    fn begin(&mut self) -> Option<Machine> {
        let stub = GdbStubBuilder::new(Capture(Vec::new()))
            .packet_buffer_size(PACKET_SIZE + 8)
            .build()
            .ok()?;
        let GdbStubStateMachine::Idle(mut machine) =
            stub.run_state_machine(&mut self.debuggee).ok()?
        else {
            return None;
        };
        let features = self.client.features.for_gdbstub();
        for payload in [b"QStartNoAckMode", features, &self.selection()] {
            machine = through(machine, &mut self.debuggee, payload)?;
        }
        machine.borrow_conn().0.clear();
        Some(machine)
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
                out(&notification(b"Stop:N"));
            }
            return;
        }
        self.last_stop.clear();
        self.last_reason = None;
        self.event = Event::Stopped;
        (self.interrupt_due, self.halting) = (false, false);
        let first = inf.threads().first().copied();
        self.select(inf, first.unwrap_or(self.thread));
        out(&frame(match self.client.features.no_resumed {
            true => b"N",
            false => b"E.No thread is left that was resumed.",
        }));
    }
}

/// Feeds gdbstub a whole packet. It stays idle: packets that would resume, detach or kill do not come here.
fn through(machine: Machine, debuggee: &mut Debuggee, payload: &[u8]) -> Option<Machine> {
    frame(payload).into_iter().try_fold(machine, |machine, b| {
        match machine.incoming_data(debuggee, b).ok()? {
            GdbStubStateMachine::Idle(machine) => Some(machine),
            _ => None,
        }
    })
}

fn console(text: &[u8], out: &mut dyn FnMut(&[u8])) {
    let mut reply = b"O".to_vec();
    push_hex(&mut reply, text);
    out(&frame(&reply));
}
