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
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use ulpf_bridge::{Ask, Lines, Reason, Refusal, Reply, Request, Said, State, Stop, agree};

/// How long the process waits for a front end that has not come yet, or has gone.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long a front end may leave what we write unread.
const WRITING: Duration = Duration::from_secs(10);

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
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
}

/// A path, or HOST:PORT; no host is this machine.
fn bind(addr: &str) -> Result<Listener> {
    let listener = match addr.rsplit_once(':') {
        Some((host, port)) if !addr.contains('/') => {
            let port: u16 = port
                .parse()
                .with_context(|| format!("`{port}` is no port"))?;
            let host = if host.is_empty() { "127.0.0.1" } else { host };
            let l = TcpListener::bind((host, port))
                .with_context(|| format!("{addr} cannot be bound"))?;
            eprintln!("ulpf-sim: the bridge is at {}", l.local_addr()?);
            l.set_nonblocking(true)?;
            Listener::Tcp(l)
        }
        _ => {
            if Path::new(addr).exists() {
                bail!("{addr} exists already; give the path of a new socket");
            }
            let l = UnixListener::bind(addr).with_context(|| format!("{addr} cannot be bound"))?;
            l.set_nonblocking(true)?;
            Listener::Unix(l)
        }
    };
    Ok(listener)
}

impl Listener {
    /// The next front end; `None`: nobody has come.
    fn accept(&self) -> Option<Stream> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let stream = match self {
                Listener::Unix(l) => l.accept().map(|s| Stream::Unix(s.0)),
                Listener::Tcp(l) => l.accept().map(|s| Stream::Tcp(s.0)),
            };
            match stream {
                Ok(s) => {
                    let done = match &s {
                        Stream::Unix(s) => s
                            .set_nonblocking(false)
                            .and_then(|()| s.set_write_timeout(Some(WRITING))),
                        Stream::Tcp(s) => s
                            .set_nonblocking(false)
                            .and_then(|()| s.set_nodelay(true))
                            .and_then(|()| s.set_write_timeout(Some(WRITING))),
                    };
                    if done.is_ok() {
                        return Some(s);
                    }
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        None
    }
}

/// What both threads know.
struct Shared {
    /// Where answers go; none while nobody listens.
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

/// What the machine's thread is told.
enum Work {
    Ask(Ask),
    /// Nobody has come (back).
    Alone,
}

struct Front {
    shared: Arc<Shared>,
    work: Sender<Work>,
    hello: Result<Reply, Refusal>,
}

impl Front {
    fn listen(self, listener: &Listener) {
        while let Some(mut stream) = listener.accept() {
            let Ok(writer) = stream.try_clone() else {
                continue;
            };
            *self.shared.writer.lock().unwrap_or_else(|e| e.into_inner()) = Some(writer);
            self.serve(&mut stream);
            *self.shared.writer.lock().unwrap_or_else(|e| e.into_inner()) = None;
            if self.shared.running.load(SeqCst) {
                self.shared.interrupt.store(true, SeqCst);
            }
        }
        let _ = self.work.send(Work::Alone);
    }

    /// Until the connection ends.
    fn serve(&self, stream: &mut Stream) {
        let (mut lines, mut greeted, mut buf) = (Lines::default(), false, vec![0; 1 << 16]);
        loop {
            match stream.read(&mut buf) {
                Ok(0) | Err(_) => return,
                Ok(n) => lines.feed(&buf[..n]),
            }
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
                    Some(_) => self.hello.clone(),
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
    std::thread::spawn(move || front.listen(&listener));
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
