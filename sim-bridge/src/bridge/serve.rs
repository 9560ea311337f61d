// SPDX-License-Identifier: GPL-2.0-or-later
//! `ulpf-sim --bridge ADDR`: the connection. Two threads, because a machine that runs hears nothing.
//!
//! ```text
//!   front end ⇄ listener thread: lines, hello, interrupt, kill, "it runs"
//!                  │ requests (a channel)      ▲ answers, events (the writer, under a lock)
//!                  └────▶ main thread: the machine ┘
//! ```
//! One front end at a time. If it goes, a running machine is stopped, and another may come for
//! [`PATIENCE`]; then the process ends.

use super::session::Session;
use anyhow::{Context, Result, bail};
use std::collections::VecDeque;
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
use ulpf_bridge::greeting::is_front_end;
use ulpf_bridge::{Ask, Lines, Reason, Refusal, Reply, Request, Said, State, Stop, agree};
use ulpf_host::peer::Owner;

/// How long the process waits for a front end that has not come yet, or has gone.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long a front end may leave what we write unread.
const WRITING: Duration = Duration::from_secs(10);
/// Connections that have not said their first words, and how much of these is waited for.
const STRANGERS: usize = 16;
const LONGEST: usize = 16 << 10;

enum Listening {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Accepts front ends. Connections that have not identified themselves wait, and do not block others.
struct Listener {
    listening: Listening,
    waiting: VecDeque<Stranger>,
}

/// A connection that may become a front end's.
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

    /// For a front end's connection.
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
    /// The next front end, and the bytes read from it so far; `None` if none has come.
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
    /// a front end.
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
        let known = |s: &Stranger| match is_front_end(&s.said) {
            None if s.said.len() > LONGEST => Some(false),
            verdict => verdict,
        };
        while let Some(at) = self.waiting.iter().position(|s| known(s).is_some()) {
            let stranger = self.waiting.remove(at)?;
            if known(&stranger) == Some(true) && stranger.stream.settle().is_ok() {
                return Some((stranger.stream, stranger.said));
            }
            crate::message!(
                "ulpf-sim: a connection was dropped: what it says is not how a front end of the bridge begins"
            );
        }
        None
    }
}

/// State shared by both threads.
struct Shared {
    /// The connection for answers; `None` without a front end.
    writer: Mutex<Option<Stream>>,
    running: AtomicBool,
    interrupt: Arc<AtomicBool>,
    /// The machine is to look at what is asked while it runs.
    attention: Arc<AtomicBool>,
}

impl Shared {
    fn say(&self, said: &Said) {
        let mut writer = self.writer.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(stream) = &mut *writer
            && stream.write(&said.line()).is_err()
        {
            *writer = None;
        }
    }

    fn answer(&self, id: u64, answer: Result<Reply, Refusal>) {
        self.say(&Said::Answer { id, answer });
    }
}

/// Commands to the machine's thread.
enum Work {
    Ask(Ask),
    /// No front end has come (back).
    Alone,
}

struct Front {
    shared: Arc<Shared>,
    work: Sender<Work>,
    hello: Result<Reply, Refusal>,
}

impl Front {
    fn listen(self, mut listener: Listener) {
        while let Some((mut stream, said)) = listener.accept() {
            let Ok(writer) = stream.try_clone() else {
                continue;
            };
            *self.shared.writer.lock().unwrap_or_else(|e| e.into_inner()) = Some(writer);
            self.serve(&mut stream, &said);
            *self.shared.writer.lock().unwrap_or_else(|e| e.into_inner()) = None;
            if self.shared.running.load(SeqCst) {
                self.shared.interrupt.store(true, SeqCst);
            }
        }
        let _ = self.work.send(Work::Alone);
    }

    /// Until the connection ends; `said` is its beginning.
    fn serve(&self, stream: &mut Stream, said: &[u8]) {
        let (mut lines, mut greeted, mut buf) = (Lines::default(), false, vec![0; 1 << 16]);
        lines.feed(said);
        loop {
            loop {
                match lines.take() {
                    Ok(None) => break,
                    Ok(Some(text)) => self.line(&text, &mut greeted),
                    Err(ulpf_bridge::Bad::NotText) => {
                        self.shared
                            .answer(0, Err(not_understood("a line is not UTF-8")));
                    }
                    Err(bad) => {
                        self.shared.answer(0, Err(not_understood(&bad.to_string())));
                        return;
                    }
                }
            }
            match stream.read(&mut buf) {
                Ok(0) | Err(_) => return,
                Ok(n) => lines.feed(&buf[..n]),
            }
        }
    }

    fn line(&self, text: &str, greeted: &mut bool) {
        let ask = match Ask::parse(text) {
            Ok(ask) => ask,
            Err((id, why)) => {
                return self
                    .shared
                    .answer(id.unwrap_or(0), Err(not_understood(&why)));
            }
        };
        let (id, running) = (ask.id, self.shared.running.load(SeqCst));
        match ask.request {
            Request::Hello { versions, .. } => {
                let answer = match agree(versions) {
                    Some(agreed) => {
                        let mut hello = self.hello.clone();
                        if let Ok(Reply::Hello { version, .. }) = &mut hello {
                            *version = agreed;
                        }
                        hello
                    }
                    None => Err(Refusal::new(
                        format!(
                            "There is no version of the bridge that both sides speak: {versions:?} and {}",
                            ulpf_bridge::VERSION
                        ),
                        "ulpf and ulpf-sim are of different times",
                        "Build both from the same source.",
                    )),
                };
                *greeted = answer.is_ok();
                self.shared.answer(id, answer);
            }
            _ if !*greeted => self.shared.answer(
                id,
                Err(Refusal::new(
                    "This is too early",
                    "the first request is `hello`",
                    "",
                )),
            ),
            Request::Interrupt => {
                if running {
                    self.shared.interrupt.store(true, SeqCst);
                }
                self.shared.answer(id, Ok(Reply::Done));
            }
            Request::Kill => {
                self.shared.answer(id, Ok(Reply::Done));
                let reason = Reason::Killed {
                    number: 9,
                    why: "the debugger killed it".into(),
                };
                self.shared.say(&Said::Stopped(Stop {
                    thread: 1,
                    pc: 0,
                    reason,
                }));
                std::process::exit(128 + 9);
            }
            Request::Status if running => {
                self.shared.answer(id, Ok(Reply::Status(State::Running)));
            }
            request @ (Request::Hits { .. } | Request::List | Request::Statistics) if running => {
                let _ = self.work.send(Work::Ask(Ask { id, request }));
                self.shared.attention.store(true, SeqCst);
            }
            _ if running => self.shared.answer(
                id,
                Err(Refusal::new(
                    "Not now",
                    "the program runs",
                    "Interrupt it first.",
                )),
            ),
            request => {
                // Until the machine has looked at it, it counts as running: two must not go on at once.
                if matches!(request, Request::Resume { .. }) {
                    self.shared.interrupt.store(false, SeqCst);
                    self.shared.running.store(true, SeqCst);
                }
                let _ = self.work.send(Work::Ask(Ask { id, request }));
            }
        }
    }
}

fn not_understood(why: &str) -> Refusal {
    Refusal::new("This is no request", why, "docs/bridge.md has them all.")
}

/// Serves the machine that `load` makes; the process's exit status.
pub fn serve(addr: &str, load: impl FnOnce(String) -> Result<Session>) -> Result<i32> {
    let listener = bind(addr)?;
    let token = format!("{:x}-{:x}", std::process::id(), start_time());
    let mut session = load(token);
    let (interrupt, attention) = match &session {
        Ok(s) => {
            let debug = &s.machine.state.borrow().debug;
            (debug.interrupt.clone(), debug.attention.clone())
        }
        Err(_) => Default::default(),
    };
    let hello = match &session {
        Ok(s) => Ok(s.hello()),
        Err(e) => Err(Refusal::new(
            "The program cannot be loaded",
            format!("{e:#}"),
            "",
        )),
    };
    let shared = Arc::new(Shared {
        writer: Mutex::new(None),
        running: AtomicBool::new(false),
        interrupt,
        attention,
    });
    let (work, requests) = channel();
    let front = Front {
        shared: shared.clone(),
        work,
        hello,
    };
    std::thread::spawn(move || front.listen(listener));
    let status = run(&mut session, &shared, &requests);
    if !addr.contains(':') || addr.contains('/') {
        let _ = std::fs::remove_file(addr);
    }
    session.map(|_| status)
}

fn start_time() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| d.as_nanos() as u64)
}

fn tell(session: &mut Session, shared: &Shared) {
    let messages = std::mem::take(&mut session.machine.state.borrow_mut().debug.messages);
    for text in messages {
        shared.say(&Said::Message(text));
    }
}

fn run(session: &mut Result<Session>, shared: &Shared, requests: &Receiver<Work>) -> i32 {
    while let Ok(Work::Ask(Ask { id, request })) = requests.recv() {
        let Ok(session) = session else { continue };
        let Request::Resume { how, signal, .. } = request else {
            shared.answer(id, session.answer(request));
            continue;
        };
        if let Err(refusal) = session.may_resume(signal) {
            shared.running.store(false, SeqCst);
            shared.answer(id, Err(refusal));
            continue;
        }
        shared.answer(id, Ok(Reply::Done));
        let stop = session.resume(&how, signal, |session| {
            while let Ok(Work::Ask(Ask { id, request })) = requests.try_recv() {
                shared.answer(id, session.answer(request));
            }
            tell(session, shared);
        });
        tell(session, shared);
        shared.running.store(false, SeqCst);
        shared.say(&Said::Stopped(stop));
    }
    session.as_ref().map_or(125, Session::exit_status)
}
