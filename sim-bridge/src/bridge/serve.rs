// SPDX-License-Identifier: GPL-2.0-or-later
//! `ulpf-sim --bridge ADDR`: a remote port. Two threads, because a machine that runs hears nothing.
//!
//! ```text
//!   debugger ⇄ listener thread: frames, acknowledgements, interrupt, kill, "it runs"
//!                  │ packets (a channel)       ▲ replies (the writer, under a lock)
//!                  └────▶ main thread: ulpf's own packets, else gdbstub; the machine ┘
//! ```
//! One debugger at a time (`ulpf server` is one). If it goes, a running machine is stopped, and another may
//! come for [`PATIENCE`]; then the process ends.

use super::arch::EXPEDITED;
use super::session::Session;
use crate::registers;
use anyhow::{Context, Result, bail};
use gdbstub::conn::Connection;
use gdbstub::stub::GdbStubBuilder;
use gdbstub::stub::state_machine::GdbStubStateMachine;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs::{DirBuilder, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use ulpf_host::peer::Owner;
use ulpf_rsp::greeting::is_debugger;
use ulpf_rsp::reports::{Ask, PREFIX};
use ulpf_rsp::{Decoder, Event, frame};

/// How long the process waits for a debugger that has not come yet, or has gone.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long a debugger may leave what we write unread.
const WRITING: Duration = Duration::from_secs(10);
/// The longest packet for gdbstub, in bytes. (Monitor commands may have [`ulpf_rsp::MAX_PACKET`].)
const BUFFER: usize = 0x10000;
/// Bytes of text in one packet.
const PIECE: usize = 8 << 10;
/// Connections that have not said their first words, and how much of these is waited for.
const STRANGERS: usize = 16;
const LONGEST: usize = 16 << 10;

enum Listening {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Accepts debuggers. Connections that have not identified themselves wait, and do not block others.
struct Listener {
    listening: Listening,
    waiting: VecDeque<Stranger>,
}

/// A connection that may become a debugger's.
struct Stranger {
    stream: Stream,
    said: Vec<u8>,
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn try_clone(&self) -> std::io::Result<Stream> {
        Ok(match self {
            Stream::Unix(s) => Stream::Unix(s.try_clone()?),
            Stream::Tcp(s) => Stream::Tcp(s.try_clone()?),
        })
    }

    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Unix(s) => s.read(buf),
            Stream::Tcp(s) => s.read(buf),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Stream::Unix(s) => s.write_all(bytes),
            Stream::Tcp(s) => s.write_all(bytes),
        }
    }

    fn set_nonblocking(&self, is: bool) -> std::io::Result<()> {
        match self {
            Stream::Unix(s) => s.set_nonblocking(is),
            Stream::Tcp(s) => s.set_nonblocking(is),
        }
    }

    /// For a debugger's connection.
    fn settle(&self) -> std::io::Result<()> {
        self.set_nonblocking(false)?;
        match self {
            Stream::Unix(s) => s.set_write_timeout(Some(WRITING)),
            Stream::Tcp(s) => s
                .set_nodelay(true)
                .and_then(|()| s.set_write_timeout(Some(WRITING))),
        }
    }

    /// Whether the connection is from our own user, root, or another machine. (The file system guards a
    /// unix socket.)
    fn may_come(&self) -> bool {
        let Stream::Tcp(stream) = self else {
            return true;
        };
        let (Ok(ours), Ok(theirs)) = (stream.local_addr(), stream.peer_addr()) else {
            return false;
        };
        match ulpf_host::peer::owner(ours, theirs) {
            Some(Owner::User(user)) => user == 0 || Some(user) == own_user(),
            Some(Owner::Closed) => false,
            None => !theirs.ip().to_canonical().is_loopback(),
        }
    }
}

fn own_user() -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").ok().map(|m| m.uid())
}

/// A path, or HOST:PORT; no host is this machine.
fn bind(addr: &str) -> Result<Listener> {
    let listening = match addr.rsplit_once(':') {
        Some((host, port)) if !addr.contains('/') => {
            let port: u16 = port
                .parse()
                .with_context(|| format!("`{port}` is no port"))?;
            let host = if host.is_empty() { "127.0.0.1" } else { host };
            let l = TcpListener::bind((host, port))
                .with_context(|| format!("{addr} cannot be bound"))?;
            let address = l.local_addr()?;
            crate::message!("ulpf-sim: the bridge is at {address}");
            if !address.ip().is_loopback() {
                crate::message!(
                    "ulpf-sim: whoever reaches {address} has the machine: there is no password."
                );
            }
            l.set_nonblocking(true)?;
            Listening::Tcp(l)
        }
        _ => {
            if Path::new(addr).symlink_metadata().is_ok() {
                bail!("{addr} exists already; give the path of a new socket");
            }
            let l =
                bind_unix(Path::new(addr)).with_context(|| format!("{addr} cannot be bound"))?;
            l.set_nonblocking(true)?;
            Listening::Unix(l)
        }
    };
    Ok(Listener {
        listening,
        waiting: VecDeque::new(),
    })
}

/// Only the socket's owner may connect, from the beginning: it is bound in a folder that only the owner
/// enters, and gets its permissions and its name there.
fn bind_unix(path: &Path) -> std::io::Result<UnixListener> {
    let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let folder = path.with_file_name(format!(".ulpf-sim-{}", &random[..8]));
    DirBuilder::new().mode(0o700).create(&folder)?;
    let inside = folder.join("s");
    let bound = UnixListener::bind(&inside).and_then(|listener| {
        std::fs::set_permissions(&inside, Permissions::from_mode(0o600))?;
        std::fs::rename(&inside, path)?;
        Ok(listener)
    });
    let _ = std::fs::remove_file(&inside);
    let _ = std::fs::remove_dir(&folder);
    bound
}

impl Listener {
    /// The next debugger, and the bytes read from it so far; `None` if none has come.
    fn accept(&mut self) -> Option<(Stream, Vec<u8>)> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let stream = match &self.listening {
                Listening::Unix(l) => l.accept().map(|s| Stream::Unix(s.0)),
                Listening::Tcp(l) => l.accept().map(|s| Stream::Tcp(s.0)),
            };
            let come = stream.ok();
            if come.is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
            if let Some(stream) = come {
                self.meet(stream);
            }
            if let Some(found) = self.listen_to_all() {
                return Some(found);
            }
        }
        None
    }

    fn meet(&mut self, stream: Stream) {
        if !stream.may_come() {
            crate::message!(
                "ulpf-sim: a connection was refused: it is not known to be this user's"
            );
            return;
        }
        if stream.set_nonblocking(true).is_ok() {
            self.waiting.push_back(Stranger {
                stream,
                said: Vec::new(),
            });
        }
        if self.waiting.len() > STRANGERS {
            self.waiting.pop_front();
        }
    }

    /// Reads from all waiting connections. Drops closed ones, and takes out the first that is known to be
    /// a debugger.
    fn listen_to_all(&mut self) -> Option<(Stream, Vec<u8>)> {
        for mut stranger in std::mem::take(&mut self.waiting) {
            let mut piece = [0; 4096];
            match stranger.stream.read(&mut piece) {
                Ok(n @ 1..) => stranger.said.extend_from_slice(&piece[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                _ => continue,
            }
            self.waiting.push_back(stranger);
        }
        let known = |s: &Stranger| match is_debugger(&s.said) {
            None if s.said.len() > LONGEST => Some(false),
            verdict => verdict,
        };
        while let Some(at) = self.waiting.iter().position(|s| known(s).is_some()) {
            let stranger = self.waiting.remove(at)?;
            if known(&stranger) == Some(true) && stranger.stream.settle().is_ok() {
                return Some((stranger.stream, stranger.said));
            }
            crate::message!(
                "ulpf-sim: a connection was dropped: what it says is not how a debugger begins"
            );
        }
        None
    }
}

/// State shared by both threads.
struct Shared {
    /// The connection for replies; `None` without a debugger.
    writer: Mutex<Option<Stream>>,
    running: AtomicBool,
    interrupt: Arc<AtomicBool>,
    /// The machine is to look at what is asked while it runs.
    attention: Arc<AtomicBool>,
}

impl Shared {
    fn set_writer(&self, stream: Option<Stream>) {
        *self.writer.lock().unwrap_or_else(|e| e.into_inner()) = stream;
    }

    fn write(&self, bytes: &[u8]) {
        let mut writer = self.writer.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(stream) = &mut *writer
            && stream.write(bytes).is_err()
        {
            *writer = None;
        }
    }

    fn reply(&self, payload: &[u8]) {
        self.write(&frame(payload));
    }

    /// Text for the user.
    fn print(&self, text: &str) {
        self.write(&output(text));
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

struct Front {
    shared: Arc<Shared>,
    work: Sender<Work>,
}

impl Front {
    fn listen(self, mut listener: Listener) {
        while let Some((mut stream, said)) = listener.accept() {
            let Ok(writer) = stream.try_clone() else {
                continue;
            };
            self.shared.set_writer(Some(writer));
            let _ = self.work.send(Work::Begin);
            self.serve(&mut stream, &said);
            self.shared.set_writer(None);
            // The next debugger finds the machine stopped.
            while self.shared.running.load(SeqCst) {
                self.shared.interrupt.store(true, SeqCst);
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let _ = self.work.send(Work::Alone);
    }

    /// Until the connection ends; `said` is its beginning.
    fn serve(&self, stream: &mut Stream, said: &[u8]) {
        let mut decoder = Decoder::default();
        let (mut acks, mut buf) = (true, vec![0; 1 << 16]);
        let mut events = vec![];
        decoder.feed(said, |e| events.push(e));
        loop {
            for event in events.drain(..) {
                self.event(event, &mut acks);
            }
            match stream.read(&mut buf) {
                Ok(0) | Err(_) => return,
                Ok(n) => decoder.feed(&buf[..n], |e| events.push(e)),
            }
        }
    }

    fn event(&self, event: Event, acks: &mut bool) {
        match event {
            Event::Packet(packet) => {
                if *acks {
                    self.shared.write(b"+");
                }
                match &packet[..] {
                    b"QStartNoAckMode" => {
                        self.shared.reply(b"OK");
                        *acks = false;
                    }
                    _ => self.packet(packet),
                }
            }
            Event::Interrupt if self.shared.running.load(SeqCst) => {
                self.shared.interrupt.store(true, SeqCst);
            }
            Event::BadChecksum { .. } if *acks => self.shared.write(b"-"),
            Event::Oversize => {
                self.shared.reply(b"E.The packet is too long.");
            }
            _ => {}
        }
    }

    fn packet(&self, packet: Vec<u8>) {
        let running = self.shared.running.load(SeqCst);
        match &packet[..] {
            b"k" => std::process::exit(128 + 9),
            _ if packet.starts_with(b"vKill;") => {
                self.shared.reply(b"OK");
                std::process::exit(128 + 9);
            }
            _ if running && !packet.starts_with(PREFIX) => {
                self.shared
                    .reply(b"E.The program runs. Interrupt it first.");
                return;
            }
            [b'c' | b'C' | b's' | b'S', ..] => self.resumes(),
            _ if packet.starts_with(b"vCont;") => self.resumes(),
            _ => {}
        }
        let _ = self.work.send(Work::Packet(packet));
        if running {
            self.shared.attention.store(true, SeqCst);
        }
    }

    /// Until the machine has looked at the packet, it counts as running: two must not go on at once.
    fn resumes(&self) {
        self.shared.interrupt.store(false, SeqCst);
        self.shared.running.store(true, SeqCst);
    }
}

/// gdbstub writes its replies here.
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
    let listener = bind(addr)?;
    let mut session = load();
    let (interrupt, attention) = match &session {
        Ok(s) => {
            let debug = &s.machine.state.borrow().debug;
            (debug.interrupt.clone(), debug.attention.clone())
        }
        Err(_) => Default::default(),
    };
    let shared = Arc::new(Shared {
        writer: Mutex::new(None),
        running: AtomicBool::new(false),
        interrupt,
        attention,
    });
    let (work, packets) = channel();
    let front = Front {
        shared: shared.clone(),
        work,
    };
    std::thread::spawn(move || front.listen(listener));
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
            self.shared.write(&[output(&text), frame(b"OK")].concat());
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
        self.shared.write(&std::mem::take(capture(&mut stub)));
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
        let mut few = EXPEDITED.iter().map(|(n, at)| (*n, &all[at.clone()]));
        let mut stub = stub
            .report_stop_with_regs(self.session, reason, &mut few)
            .ok()?;
        self.shared.write(&std::mem::take(capture(&mut stub)));
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
