//! The program's run, over the remote serial protocol: to its entry, arming, and on to its end.
//!
//! Every signal that the stub reports is handed back to it for the program; nothing else stops it
//! (watches only log).

use super::log::Event;
use super::memory::{Auxv, ProcessMemory};
use super::watches::{Armed, Changes};
use crate::follow::{Done, Follower};
use crate::rsp::{self, Client, Received};
use crate::session::{Ending, Exit, Session};
use crate::symbols::Problem;
use anyhow::{Context, Result, anyhow, bail};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// GDB's number for SIGTRAP, and for the interrupt that we ask for ourselves.
const TRAP: u8 = 5;
const INTERRUPT: u8 = 2;
/// Commands in one `monitor` request: bytes before they are written in hex.
const BATCH: usize = 16 << 10;

pub struct Control {
    pub(super) client: Client,
    pub pid: i32,
    exit: Exit,
    pidfd: Arc<OwnedFd>,
    signals: Signals,
    launched: bool,
    pub(super) on_signal: OnSignal,
    /// What the process executed when we came.
    executable: Option<PathBuf>,
    follower: Follower,
    /// Children are watched, too.
    pub follows_forks: bool,
    pub(super) is_child: bool,
    /// Its number in the log.
    pub(super) life: usize,
}

/// What a signal to ourselves means for a process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OnSignal {
    /// The program gets it, too.
    Forward,
    /// We let go of the process.
    Leave,
    /// It is its parent's business, until the first process has ended: then as `Leave`.
    Nothing,
}

/// The stub's end is the program's, or exec's; if the program is still there so much later, it is not.
const STUB_GONE: Duration = Duration::from_secs(2);

static FIRST_HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// Signals to ourselves. The terminal sends its own to the program as well.
struct Signals {
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
    hangup: Signal,
}

/// Why the stub says that the program has stopped.
enum Stop {
    /// GDB signal number, thread as the protocol writes it.
    Signal {
        signal: u8,
        thread: String,
    },
    /// The thread has forked this child, which waits.
    Forked(i32),
    Gone,
}

impl Control {
    pub fn new(session: Session) -> Result<Control> {
        let pidfd = session.pidfd();
        let follower = Control::follower(&session);
        let signals = Signals {
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        };
        Ok(Control {
            client: Client::new(session.control),
            pid: session.pid,
            exit: session.exit,
            pidfd,
            signals,
            launched: session.launched,
            on_signal: match session.launched {
                true => OnSignal::Forward,
                false => OnSignal::Leave,
            },
            follower,
            follows_forks: false,
            is_child: false,
            life: 0,
            executable: executable(session.pid),
        })
    }

    /// First words: what we understand, and which signals need not be reported.
    pub async fn greet(&mut self) -> Result<()> {
        self.client
            .request(b"qSupported:swbreak+;hwbreak+;vContSupported+;error-message+")
            .await?;
        self.client.request(b"?").await?;
        // All of them: none is ours.
        let all: Vec<String> = (1..=0x97).map(|n| format!("{n:x}")).collect();
        self.client
            .request(format!("QPassSignals:{}", all.join(";")).as_bytes())
            .await?;
        Ok(())
    }

    /// Runs to a breakpoint at `addr`. `false`: the program ended before.
    pub async fn run_to(&mut self, addr: u64) -> Result<bool> {
        self.breakpoint(b'Z', addr)
            .await
            .with_context(|| format!("cannot stop the program at {addr:#x}"))?;
        let mut resume = String::from("vCont;c");
        loop {
            self.client.send(resume.as_bytes()).await?;
            match self.stopped().await? {
                Stop::Gone => return Ok(false),
                Stop::Forked(_) => resume = "vCont;c".into(),
                Stop::Signal { signal: TRAP, .. } if self.register(16).await? == Some(addr) => {
                    break;
                }
                Stop::Signal { signal, thread } => resume = pass_on(signal, &thread),
            }
        }
        self.breakpoint(b'z', addr).await?;
        Ok(true)
    }

    async fn breakpoint(&mut self, what: u8, addr: u64) -> Result<()> {
        let reply = self
            .client
            .request(format!("{}0,{addr:x},1", what as char).as_bytes())
            .await?;
        match reply.as_slice() {
            b"OK" => Ok(()),
            [b'E', b'.', why @ ..] => bail!("{}", String::from_utf8_lossy(why)),
            other => bail!("the stub answered `{}`", String::from_utf8_lossy(other)),
        }
    }

    /// A register of the selected thread, by GDB's number.
    async fn register(&mut self, number: u32) -> Result<Option<u64>> {
        let reply = self
            .client
            .request(format!("p{number:x}").as_bytes())
            .await?;
        let bytes = rsp::from_hex(&reply).and_then(|b| <[u8; 8]>::try_from(b).ok());
        Ok(bytes.map(u64::from_le_bytes))
    }

    pub async fn memory(&mut self) -> Result<ProcessMemory> {
        // fs_base is 58 in the stub's target description.
        let thread_pointer = self.register(58).await?.filter(|p| *p != 0);
        Ok(ProcessMemory::of(self.pid, thread_pointer)?)
    }

    /// Disarms and arms; the outcome for each watch that was to be armed.
    pub async fn change(&mut self, changes: &Changes) -> Result<Vec<(usize, Armed)>> {
        let disarm: Vec<String> = changes
            .disarm
            .iter()
            .map(|id| format!("ulpf unwatch {id}"))
            .collect();
        self.monitor(&disarm).await?;
        let arm: Vec<&str> = changes
            .arm
            .iter()
            .map(|(_, command)| command.as_str())
            .collect();
        let lines = self.monitor(&arm).await?;
        let armed = |((number, _), line): (&(usize, String), String)| {
            let armed = outcome(&line).with_context(|| format!("the stub answered `{line}`"))?;
            Ok((*number, armed))
        };
        changes.arm.iter().zip(lines).map(armed).collect()
    }

    /// Sends commands, many at a time; one line of answer for each, in order.
    async fn monitor(&mut self, commands: &[impl AsRef<str>]) -> Result<Vec<String>> {
        let mut lines = Vec::with_capacity(commands.len());
        let mut rest = commands;
        while !rest.is_empty() {
            let mut batch = String::new();
            let mut taken = 0;
            while taken < rest.len()
                && (taken == 0 || batch.len() + rest[taken].as_ref().len() < BATCH)
            {
                batch.push_str(rest[taken].as_ref());
                batch.push(';');
                taken += 1;
            }
            rest = &rest[taken..];
            let answer = self
                .client
                .monitor(&batch)
                .await
                .context("cannot set the watches")?;
            let before = lines.len();
            lines.extend(
                answer
                    .lines()
                    .filter(|l| !l.trim().is_empty())
                    .map(str::to_string),
            );
            if lines.len() - before != taken {
                bail!(
                    "the stub answered {} of {taken} watches: {answer}",
                    lines.len() - before
                );
            }
        }
        Ok(lines)
    }

    /// Lets the program run to its end (or, attached, to Ctrl-C), passing everything on. With
    /// `libraries`, the log is asked what to arm whenever the program has loaded some.
    pub async fn run(mut self, events: Sender<Event>, libraries: bool) -> Result<Ending> {
        let result = self.follow(&events, libraries).await;
        let ending = match result {
            Ok(Some(ending)) => ending,
            Ok(None) => self.ended().await,
            Err(_) => self.exit.now().unwrap_or(Ending::Unknown),
        };
        if !self.is_child {
            FIRST_HAS_ENDED.store(true, Ordering::Relaxed);
        }
        let _ = events.send(Event::Ended(self.life));
        result.map(|_| ending)
    }

    async fn ended(&mut self) -> Ending {
        // The control channel ends a moment before the process does; or the program has become
        // another one, and the stub went with the memory it lived in.
        if let (Some(program), false) = (self.another_program(), self.is_child) {
            say!(
                "the program has executed {program}; its watches ended there. To watch that one, run it directly."
            );
        }
        let Control {
            pid,
            exit,
            signals,
            pidfd,
            on_signal,
            launched,
            ..
        } = self;
        let mut doubt = pin!(tokio::time::sleep(STUB_GONE));
        let mut told = false;
        loop {
            tokio::select! {
                ending = exit.wait() => return ending,
                () = &mut doubt, if !told => {
                    told = true;
                    if has_stub(*pid) {
                        say!(
                            "the watchpoint stub in process {pid} has ended unexpectedly, and the program cannot go on without it{}; please report this as a bug of ulpf.",
                            if *launched { ": it is killed" } else { ". Kill it and start it again" }
                        );
                        if !*launched {
                            return Ending::Unknown;
                        }
                        forward(pidfd, Some(libc::SIGKILL));
                    }
                }
                number = signals.next() => match on_signal {
                    OnSignal::Forward => forward(pidfd, number),
                    OnSignal::Leave => return Ending::Unknown,
                    OnSignal::Nothing => {}
                },
            }
        }
    }

    /// What the process executes now, if that is no longer what was watched.
    fn another_program(&self) -> Option<String> {
        let exe = executable(self.pid)?;
        // Reading maps tells a living process from a dead one, whose memory is gone already.
        let alive =
            std::fs::read(format!("/proc/{}/maps", self.pid)).is_ok_and(|maps| !maps.is_empty());
        (alive && self.executable.as_ref() != Some(&exe)).then(|| exe.display().to_string())
    }

    /// `None`: the program is gone.
    async fn follow(&mut self, events: &Sender<Event>, libraries: bool) -> Result<Option<Ending>> {
        let mut library_event = None;
        if libraries {
            let memory = ProcessMemory::of(self.pid, None)?;
            library_event = Auxv::of(self.pid)?.library_event(&memory);
            if let Some((addr, _)) = library_event {
                self.breakpoint(b'Z', addr)
                    .await
                    .context("cannot follow the libraries that are loaded")?;
            }
        }
        let mut resume = String::from("vCont;c");
        let mut leaving = false;
        let mut eof = false;
        self.offer().await?;
        'run: loop {
            if !leaving || !resume.is_empty() {
                self.client.send(resume.as_bytes()).await?;
            }
            let stop = loop {
                tokio::select! {
                    received = self.client.next(), if !eof => match received {
                        Ok(Received::Packet(packet)) => {
                            if let Some(stop) = stop_of(&packet) {
                                break stop;
                            }
                            if let Some(text) = console(&packet) {
                                let _ = events.send(Event::Notice(text));
                            }
                        }
                        Ok(Received::Notification(text)) => {
                            self.follower.notified(&text, self.client.stream());
                        }
                        Err(e) if is_end(&e) && self.follower.is_busy() => eof = true,
                        Err(e) if is_end(&e) => return Ok(None),
                        Err(e) => return Err(e.into()),
                    },
                    done = self.follower.done(), if self.follower.is_busy() => match done {
                        Done::Into(session) => {
                            self.again(*session, events).await?;
                            (eof, library_event) = (false, None);
                            resume = "vCont;c".into();
                            continue 'run;
                        }
                        Done::Failed | Done::Not { .. } if !eof => {}
                        _ => return Ok(None),
                    },
                    _ = self.exit.wait() => return Ok(None),
                    number = self.signals.next() => match self.on_signal {
                        OnSignal::Forward => forward(&self.pidfd, number),
                        OnSignal::Nothing if !FIRST_HAS_ENDED.load(Ordering::Relaxed) => {}
                        OnSignal::Leave | OnSignal::Nothing => {
                            leaving = true;
                            self.client.interrupt().await?;
                        }
                    },
                }
            };
            if let Stop::Forked(child) = stop {
                self.forked(child, events).await?;
                resume = "vCont;c".into();
                continue;
            }
            let Stop::Signal { signal, thread } = stop else {
                return Ok(None);
            };
            if leaving && signal <= INTERRUPT {
                let _ = self.client.request(b"D").await;
                return Ok(Some(Ending::Unknown));
            }
            let pc = if signal == TRAP {
                self.register(16).await?
            } else {
                None
            };
            resume = match library_event {
                Some((addr, state)) if pc == Some(addr) => {
                    self.libraries_changed(events, state).await?;
                    self.step_over(addr, &thread).await?
                }
                _ => pass_on(signal, &thread),
            };
            if leaving {
                // Another stop came first: let it pass, then ask again.
                self.client.send(resume.as_bytes()).await?;
                resume.clear();
                self.client.interrupt().await?;
            }
        }
    }

    async fn libraries_changed(&mut self, events: &Sender<Event>, state: u64) -> Result<()> {
        // RT_CONSISTENT; before that the list is being changed.
        let memory = ProcessMemory::of(self.pid, None)?;
        if memory.read_u64(state).unwrap_or(0) & 0xffff_ffff != 0 {
            return Ok(());
        }
        let (reply, answer) = tokio::sync::oneshot::channel();
        events
            .send(Event::Libraries(self.life, reply))
            .map_err(|_| anyhow!("the log has ended"))?;
        let changes = answer.await?;
        for (number, armed) in self.change(&changes).await? {
            let _ = events.send(Event::Armed(self.life, number, armed));
        }
        Ok(())
    }

    /// Executes the instruction under a breakpoint; the resume packet to go on with.
    async fn step_over(&mut self, addr: u64, thread: &str) -> Result<String> {
        self.breakpoint(b'z', addr).await?;
        self.client
            .send(format!("vCont;s:{thread}").as_bytes())
            .await?;
        let stop = self.stopped().await?;
        self.breakpoint(b'Z', addr).await?;
        Ok(match stop {
            Stop::Signal { signal: TRAP, .. } | Stop::Forked(_) | Stop::Gone => "vCont;c".into(),
            Stop::Signal { signal, thread } => pass_on(signal, &thread),
        })
    }

    /// Waits for the stop that follows a resume, forwarding signals to the program meanwhile.
    async fn stopped(&mut self) -> Result<Stop> {
        loop {
            tokio::select! {
                packet = self.client.recv() => match packet {
                    Ok(packet) => if let Some(stop) = stop_of(&packet) { return Ok(stop) },
                    Err(e) if is_end(&e) => return Ok(Stop::Gone),
                    Err(e) => return Err(e.into()),
                },
                _ = self.exit.wait() => return Ok(Stop::Gone),
                number = self.signals.next() => forward(&self.pidfd, number),
            }
        }
    }

    /// After a failure: a program that we started is ended, one that we attached to goes on.
    pub async fn give_up(mut self) {
        if self.launched {
            forward(&self.pidfd, Some(libc::SIGKILL));
            self.exit.wait().await;
        } else {
            let _ = self.client.request(b"D").await;
        }
    }

    /// How the program ended, once it has.
    pub async fn ending(mut self) -> Ending {
        self.ended().await
    }
}

impl Signals {
    /// The signal to hand to the program; `None` for those that the terminal gave it as well.
    async fn next(&mut self) -> Option<i32> {
        tokio::select! {
            _ = self.interrupt.recv() => None,
            _ = self.quit.recv() => None,
            _ = self.terminate.recv() => Some(libc::SIGTERM),
            _ = self.hangup.recv() => Some(libc::SIGHUP),
        }
    }
}

fn executable(pid: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Is the memory of a stub still there? (It goes with the program, also at exec.)
fn has_stub(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|m| m.contains("/memfd:ulpf-"))
}

fn forward(pidfd: &OwnedFd, number: Option<i32>) {
    if let Some(number) = number {
        let _ = crate::inject::sys::pidfd_signal(pidfd.as_fd(), number);
    }
}

fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}

/// Resumes everything, with `signal` for the thread that it stopped.
fn pass_on(signal: u8, thread: &str) -> String {
    match (signal, thread) {
        (0, _) => "vCont;c".into(),
        (_, "") => format!("vCont;C{signal:02x}"),
        _ => format!("vCont;C{signal:02x}:{thread};c"),
    }
}

/// What the stub has to say to the user.
fn console(packet: &[u8]) -> Option<String> {
    let text = rsp::from_hex(packet.strip_prefix(b"O")?)?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Reads a stop reply; `None` for packets that are none (console output).
fn stop_of(packet: &[u8]) -> Option<Stop> {
    match packet {
        [kind @ (b'T' | b'S'), high, low, rest @ ..] => {
            let signal = rsp::hex_digit(*high)? << 4 | rsp::hex_digit(*low)?;
            let fields = std::str::from_utf8(rest).unwrap_or("");
            if let Some(child) = fields.split(';').find_map(|f| f.strip_prefix("fork:")) {
                let number = child.split('.').next_back()?;
                return Some(Stop::Forked(i32::from_str_radix(number, 16).ok()?));
            }
            let thread = fields
                .split(';')
                .find_map(|f| f.strip_prefix("thread:"))
                .filter(|_| *kind == b'T');
            Some(Stop::Signal {
                signal,
                thread: thread.unwrap_or("").to_string(),
            })
        }
        [b'W' | b'X', ..] => Some(Stop::Gone),
        _ => None,
    }
}

/// Reads one line of the answer to `ulpf watch`.
fn outcome(line: &str) -> Result<Armed> {
    let json: serde_json::Value = serde_json::from_str(line)?;
    if let Some(id) = json["watch"].as_u64() {
        return Ok(Armed::Yes(u32::try_from(id)?));
    }
    let refused = &json["refused"];
    let text = |key: &str| {
        refused[key]
            .as_str()
            .map(str::to_string)
            .ok_or_else(|| anyhow!("no `{key}`"))
    };
    Ok(Armed::No(Problem::new(
        text("what")?,
        text("why")?,
        text("what_to_do")?,
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_replies() {
        match stop_of(b"T0bthread:p12.34;core:1;").unwrap() {
            Stop::Signal { signal, thread } => {
                assert_eq!((signal, thread.as_str()), (11, "p12.34"));
                assert_eq!(pass_on(signal, &thread), "vCont;C0b:p12.34;c");
            }
            _ => panic!(),
        }
        assert!(matches!(
            stop_of(b"S05"),
            Some(Stop::Signal { signal: 5, .. })
        ));
        assert!(matches!(stop_of(b"W00"), Some(Stop::Gone)));
        assert!(stop_of(b"O48").is_none());
        assert!(stop_of(b"Tzz").is_none());
        assert_eq!(pass_on(0, "1"), "vCont;c");
    }

    #[test]
    fn outcomes() {
        assert!(matches!(outcome("{\"watch\":7}").unwrap(), Armed::Yes(7)));
        match outcome(r#"{"refused":{"what":"a","why":"b","what_to_do":"c"}}"#).unwrap() {
            Armed::No(problem) => assert_eq!(problem.to_string(), "a: b; c"),
            _ => panic!(),
        }
        assert!(outcome("{}").is_err());
        assert!(outcome("OK").is_err());
    }
}
