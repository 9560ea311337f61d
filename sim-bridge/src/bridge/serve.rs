// SPDX-License-Identifier: GPL-2.0-or-later
//! `ulpf-sim --bridge ADDR`: a remote port. Two threads, because a machine that runs hears nothing.
//!
//! ```text
//!   debugger ⇄ listener thread: frames, acknowledgements, interrupt, kill, "it runs"
//!                  │ packets (a channel)       ▲ replies (a channel)
//!                  └────▶ main thread: ulpf's own packets, else gdbstub; the machine ┘
//! ```
//! One debugger at a time (`ulpf server` is one). If it goes, a running machine is stopped, and another may
//! come for [`TIMEOUT`]; then the process ends.

use super::session::Session;
use crate::registers;
use anyhow::{Result, anyhow};
use gdbstub::stub::GdbStubBuilder;
use gdbstub::stub::state_machine::GdbStubStateMachine;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use ulpf_host::listen::{Listener, Protocol, Reader, Rules, Writer};
use ulpf_rsp::registers::{RBP, RIP, RSP};
use ulpf_rsp::reports::{Ask, PREFIX};
use ulpf_rsp::stub::{Capture, RegisterNumber};
use ulpf_rsp::{Decoder, Event, frame};

const RULES: Rules = Rules {
    name: "ulpf-sim",
    protocol: Protocol::Remote,
    any_user: false,
};
/// How long the process waits for a debugger that has not come yet, or has gone.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a debugger may leave what we write unread.
const WRITING: Duration = Duration::from_secs(10);
/// Replies that may wait to be written; then the machine waits.
const REPLIES: usize = 64;
/// The longest packet for gdbstub, in bytes. (Monitor commands may have [`ulpf_rsp::MAX_PACKET`].)
const BUFFER: usize = 0x10000;
/// Bytes of text in one packet.
const PIECE: usize = 8 << 10;
/// Exit status after a kill.
const KILLED: i32 = 128 + 9;

/// State shared by both threads.
struct Shared {
    /// To the connection; `None` without a debugger.
    replies: Mutex<Option<mpsc::Sender<Vec<u8>>>>,
    running: AtomicBool,
    interrupt: Arc<AtomicBool>,
    /// The machine is to look at what is asked while it runs.
    attention: Arc<AtomicBool>,
}

impl Shared {
    fn connect(&self, replies: Option<mpsc::Sender<Vec<u8>>>) {
        *self.replies.lock().unwrap_or_else(|e| e.into_inner()) = replies;
    }

    fn connected(&self) -> Option<mpsc::Sender<Vec<u8>>> {
        let replies = self.replies.lock().unwrap_or_else(|e| e.into_inner());
        replies.clone()
    }

    /// Writes from the machine's thread. (A debugger that has gone gets nothing.)
    fn write(&self, bytes: Vec<u8>) {
        if let Some(replies) = self.connected() {
            let _ = replies.blocking_send(bytes);
        }
    }

    fn reply(&self, payload: &[u8]) {
        self.write(frame(payload));
    }

    /// Text for the user.
    fn print(&self, text: &str) {
        self.write(output(text));
    }
}

/// Packets with text for the user.
fn output(text: &str) -> Vec<u8> {
    let pieces = text.as_bytes().chunks(PIECE);
    pieces
        .flat_map(|piece| frame(format!("O{}", ulpf_rsp::to_hex(piece)).as_bytes()))
        .collect()
}

/// Commands to the machine's thread.
enum Work {
    /// A debugger has connected.
    Begin,
    Packet(Vec<u8>),
    /// No debugger has come (back).
    Alone,
}

/// The listener's thread.
struct Front {
    shared: Arc<Shared>,
    work: Sender<Work>,
}

/// Writes replies until the other side of the channel is gone, or the debugger.
async fn write(mut writer: Writer, mut replies: mpsc::Receiver<Vec<u8>>) {
    while let Some(bytes) = replies.recv().await {
        let written = timeout(WRITING, writer.write_all(&bytes)).await;
        if !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}

fn acknowledgement(event: &Event, acks: bool) -> &'static [u8] {
    match event {
        _ if !acks => b"",
        Event::Packet(_) | Event::Oversize => b"+",
        Event::BadChecksum { .. } => b"-",
        _ => b"",
    }
}

impl Front {
    async fn listen(self, mut listener: Listener) {
        while let Ok(Ok(client)) = timeout(TIMEOUT, listener.accept()).await {
            let (replies, written) = mpsc::channel(REPLIES);
            let writing = tokio::spawn(write(client.writer, written));
            self.shared.connect(Some(replies.clone()));
            let _ = self.work.send(Work::Begin);
            let killed = self.serve(client.reader, replies).await;
            self.shared.connect(None);
            let _ = writing.await;
            if killed {
                std::process::exit(KILLED);
            }
            // The next debugger finds the machine stopped.
            while self.shared.running.load(SeqCst) {
                self.shared.interrupt.store(true, SeqCst);
                sleep(Duration::from_millis(5)).await;
            }
        }
        let _ = self.work.send(Work::Alone);
    }

    /// Until the connection ends; true: the debugger has killed the program.
    async fn serve(&self, mut reader: Reader, replies: mpsc::Sender<Vec<u8>>) -> bool {
        let mut decoder = Decoder::default();
        let (mut acks, mut buf) = (true, vec![0; 1 << 16]);
        loop {
            let mut events = vec![];
            match reader.read(&mut buf).await {
                Ok(0) | Err(_) => return false,
                Ok(n) => decoder.feed(&buf[..n], |e| events.push(e)),
            }
            for event in events {
                let kills =
                    matches!(&event, Event::Packet(p) if p == b"k" || p.starts_with(b"vKill;"));
                // First the acknowledgement: the machine's thread may answer at once. (An error shows at the next read.)
                let _ = replies.send(acknowledgement(&event, acks).to_vec()).await;
                let _ = replies.send(self.event(event, &mut acks)).await;
                if kills {
                    return true;
                }
            }
        }
    }

    /// Returns the reply that is not the machine's.
    fn event(&self, event: Event, acks: &mut bool) -> Vec<u8> {
        let reply: Option<&[u8]> = match event {
            Event::Packet(packet) if packet == b"QStartNoAckMode" => {
                *acks = false;
                Some(b"OK")
            }
            Event::Packet(packet) => self.packet(packet),
            Event::Oversize => Some(b"E.The packet is too long."),
            Event::Interrupt if self.shared.running.load(SeqCst) => {
                self.shared.interrupt.store(true, SeqCst);
                None
            }
            _ => None,
        };
        reply.map(frame).unwrap_or_default()
    }

    /// Passes the packet on to the machine, or returns the reply.
    fn packet(&self, packet: Vec<u8>) -> Option<&'static [u8]> {
        let running = self.shared.running.load(SeqCst);
        match &packet[..] {
            b"k" => return None,
            _ if packet.starts_with(b"vKill;") => return Some(b"OK"),
            _ if running && !packet.starts_with(PREFIX) => {
                return Some(b"E.The program runs. Interrupt it first.");
            }
            [b'c' | b'C' | b's' | b'S', ..] => self.resumes(),
            _ if packet.starts_with(b"vCont;") => self.resumes(),
            _ => {}
        }
        let _ = self.work.send(Work::Packet(packet));
        if running {
            self.shared.attention.store(true, SeqCst);
        }
        None
    }

    /// Until the machine has looked at the packet, it counts as running: two must not go on at once.
    fn resumes(&self) {
        self.shared.interrupt.store(false, SeqCst);
        self.shared.running.store(true, SeqCst);
    }
}

type Stub = GdbStubStateMachine<'static, Session, Capture>;

/// gdbstub for a debugger that has just connected. It sends no acknowledgements: the listener's thread does.
fn begin(session: &mut Session) -> Option<Stub> {
    let stub = GdbStubBuilder::new(Capture(Vec::new()))
        .packet_buffer_size(BUFFER)
        .build()
        .ok()?;
    let stub = stub.run_state_machine(session).ok()?;
    let mut stub = feed(stub, session, b"QStartNoAckMode")?;
    capture(&mut stub).clear();
    Some(stub)
}

/// `None`: gdbstub cannot parse the packet, and has given up.
fn feed(mut stub: Stub, session: &mut Session, packet: &[u8]) -> Option<Stub> {
    for byte in frame(packet) {
        stub = match stub {
            GdbStubStateMachine::Idle(s) => s.incoming_data(session, byte).ok()?,
            GdbStubStateMachine::Running(s) => s.incoming_data(session, byte).ok()?,
            // Neither occurs: interrupts, detach and kill do not go through gdbstub.
            GdbStubStateMachine::CtrlCInterrupt(_) | GdbStubStateMachine::Disconnected(_) => {
                return None;
            }
        };
    }
    Some(stub)
}

fn capture(stub: &mut Stub) -> &mut Vec<u8> {
    match stub {
        GdbStubStateMachine::Idle(s) => &mut s.borrow_conn().0,
        GdbStubStateMachine::Running(s) => &mut s.borrow_conn().0,
        GdbStubStateMachine::CtrlCInterrupt(s) => &mut s.borrow_conn().0,
        GdbStubStateMachine::Disconnected(s) => &mut s.borrow_conn().0,
    }
}

/// Serves the machine that `load` makes; the process's exit status.
pub fn serve(addr: &str, load: impl FnOnce() -> Result<Session>) -> Result<i32> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let bound = runtime.block_on(Listener::bind(OsStr::new(addr), RULES));
    let listener = bound.map_err(|why| anyhow!(why))?;
    if let (Some(_), Some(text)) = (listener.address(), listener.announcement()) {
        crate::message!("ulpf-sim: {text}");
    }
    if let Some(address) = listener.beyond_this_machine() {
        crate::message!(
            "ulpf-sim: whoever reaches {address} has the machine: there is no password."
        );
    }
    let mut session = load();
    let (interrupt, attention) = match &session {
        Ok(s) => {
            let debug = &s.machine.state.borrow().debug;
            (debug.interrupt.clone(), debug.attention.clone())
        }
        Err(_) => Default::default(),
    };
    let shared = Arc::new(Shared {
        replies: Mutex::new(None),
        running: AtomicBool::new(false),
        interrupt,
        attention,
    });
    let (work, packets) = channel();
    let front = Front {
        shared: shared.clone(),
        work,
    };
    std::thread::spawn(move || runtime.block_on(front.listen(listener)));
    let status = match &mut session {
        Ok(session) => Server { session, shared }.run(&packets),
        Err(why) => refuse(why, &shared, &packets),
    };
    if !addr.contains(':') || addr.contains('/') {
        let _ = std::fs::remove_file(addr);
    }
    session.map(|_| status)
}

/// Without a program, every packet is answered with the reason.
fn refuse(why: &anyhow::Error, shared: &Shared, packets: &Receiver<Work>) -> i32 {
    let text = format!("{why:#}").replace(['#', '$', '}', '*', '\n'], " ");
    while let Ok(work) = packets.recv() {
        match work {
            Work::Begin => {}
            Work::Packet(packet) if packet == b"vMustReplyEmpty" => shared.reply(b""),
            Work::Packet(_) => {
                shared.running.store(false, SeqCst);
                shared.reply(format!("E.The program cannot be loaded: {text}").as_bytes());
            }
            Work::Alone => break,
        }
    }
    125
}

/// The machine's thread.
struct Server<'a> {
    session: &'a mut Session,
    shared: Arc<Shared>,
}

impl Server<'_> {
    fn run(&mut self, packets: &Receiver<Work>) -> i32 {
        let mut stub = None;
        while let Ok(work) = packets.recv() {
            match work {
                Work::Alone => break,
                Work::Begin => stub = begin(self.session),
                Work::Packet(packet) => {
                    if !self.answer(&packet) {
                        stub = self.through(stub, &packet, packets);
                    }
                    self.shared.running.store(false, SeqCst);
                }
            }
        }
        self.session.exit_status()
    }

    /// Answers a packet that is not gdbstub's. False if it is.
    fn answer(&mut self, packet: &[u8]) -> bool {
        if packet.starts_with(PREFIX) {
            let reply = Ask::parse(packet).map(|ask| self.session.report(ask));
            self.shared.reply(reply.unwrap_or_default().as_bytes());
            return true;
        }
        if let Some(hex) = packet.strip_prefix(b"qRcmd,") {
            let text = ulpf_rsp::from_hex(hex).unwrap_or_default();
            let text = self.session.monitor(&String::from_utf8_lossy(&text));
            self.shared.write([output(&text), frame(b"OK")].concat());
            return true;
        }
        let reply: &[u8] = match packet {
            b"D" | [b'D', b';', ..] => {
                b"E.The simulated machine lives for its debugger, so its program cannot be let go."
            }
            b"?" if self.session.last.is_end() => b"W00",
            _ if self.session.last.is_end() => b"E.The program has ended.",
            _ => return false,
        };
        self.shared.reply(reply);
        true
    }

    /// One packet through gdbstub, and the run that it asks for.
    fn through(
        &mut self,
        stub: Option<Stub>,
        packet: &[u8],
        packets: &Receiver<Work>,
    ) -> Option<Stub> {
        let fed = stub.and_then(|stub| feed(stub, self.session, packet));
        let Some(mut stub) = fed else {
            self.shared.reply(b"E01");
            return begin(self.session);
        };
        self.shared.write(std::mem::take(capture(&mut stub)));
        let Some(go) = self.session.go.take() else {
            return Some(stub);
        };
        let shared = self.shared.clone();
        self.session.run(go, |session| {
            while let Ok(Work::Packet(packet)) = packets.try_recv() {
                let reply = Ask::parse(&packet).map(|ask| session.report(ask));
                shared.reply(reply.unwrap_or_default().as_bytes());
            }
            tell(session, &shared);
        });
        tell(self.session, &self.shared);
        self.shared.running.store(false, SeqCst);
        self.stopped(stub)
    }

    /// Reports the stop, with the registers that every debugger asks for first.
    fn stopped(&mut self, stub: Stub) -> Option<Stub> {
        let (reason, text) = self.session.reason();
        if let Some(text) = text {
            self.shared.print(&format!("{text}\n"));
        }
        let GdbStubStateMachine::Running(stub) = stub else {
            return Some(stub);
        };
        let all = registers::read(&self.session.machine.uc);
        let at = self.session.layout.offsets.clone();
        let few = [RBP, RSP, RIP].map(|n| (RegisterNumber(n), &all[at[n]..at[n + 1]]));
        let mut few = few.into_iter();
        let mut stub = stub
            .report_stop_with_regs(self.session, reason, &mut few)
            .ok()?;
        self.shared.write(std::mem::take(capture(&mut stub)));
        Some(stub)
    }
}

/// Prints what the machine has to say to the user.
fn tell(session: &Session, shared: &Shared) {
    let messages = std::mem::take(&mut session.machine.state.borrow_mut().debug.messages);
    for text in messages {
        shared.print(&format!("{text}\n"));
    }
}
