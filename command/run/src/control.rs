//! Controls the program's run over the remote serial protocol: to its entry, arming, and on to its end.
//!
//! Every signal that the stub reports is handed back to it for the program. Watches only log, so nothing else stops the
//! program.

use super::active_calls::Frames;
use super::events::{Event, OnSignal};
use super::parent::Parent;
use super::stops::{INTERRUPT, Stop, TRAP, console, pass_on, stop_of};
use super::tracers;
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use ulpf_host::foreign::numbers::Process;
use ulpf_host::process;
use ulpf_host::say::say;
use ulpf_host::signals::Incoming;
use ulpf_inject::client::{Client, Received};
use ulpf_inject::follow::Followed;
use ulpf_inject::inferior::follow::{Done, Follower, Note, forged};
use ulpf_inject::inferior::{self, Ending, Exit, Inferior, Woken};
use ulpf_inject::remains::Remains;
use ulpf_lib::command::HeapCheck;
use ulpf_session::control_socket::serve::{self, Asked, Requests};
use ulpf_session::memory::{Auxv, ProcessMemory};

pub struct Control {
    pub(super) client: Client,
    pub pid: i32,
    pub(super) exit: Exit,
    pub(super) remains: Remains,
    pub(super) process: Process,
    pub(super) signals: Incoming,
    pub(super) launched: bool,
    pub(super) on_signal: OnSignal,
    /// We were asked to leave, and have requested a stop for that.
    pub(super) leaving: bool,
    /// A signal had stopped the program when we left it, and it was woken for that.
    pub(super) woken: Woken,
    /// Time of the first request to leave.
    pub(super) told_at: Option<Instant>,
    /// The program that the process ran when we came.
    pub(super) executable: Option<PathBuf>,
    pub(super) follower: Follower,
    /// The program of an exec that is not followed, and the reason.
    unfollowed: Option<(String, String)>,
    /// Children are watched as well.
    pub follows_forks: bool,
    /// Children that execute another program as well.
    pub follows_any: bool,
    /// Settings of the check of its heap, and of the heaps of all programs that it starts.
    pub heap: Option<HeapCheck>,
    /// Last writers are recorded, in all programs that it starts, too.
    pub blame: bool,
    /// As [`super::events::Forked::parents_heap`].
    pub(super) parents_heap: Option<u64>,
    pub(super) is_child: bool,
    /// As [`super::events::Forked::parent_waits`].
    pub(super) parent_waits: Option<Parent>,
    /// Its number in the log.
    pub(super) life: usize,
    /// Requests from other processes; `waiting` are those that need a stop.
    requests: Option<Requests>,
    pub(super) waiting: Vec<Asked>,
    /// Bytes of notices that may still be shown.
    notices: usize,
    /// Its notices on the way to its entry.
    early: Vec<String>,
    pub(super) frames: Frames,
    /// Requests of its tracers to release it; `tracer` is the one that waits.
    tracers: tracers::Asked,
    tracer: Option<oneshot::Sender<()>>,
}

/// If the stub does not answer for this long when we are asked to leave, it is left as it is.
pub(super) const STUB_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit of the notices of one process, in bytes.
const NOTICES: usize = 1 << 20;

/// The stub ends with the program, or at exec. If the program exists this much later, the stub has ended alone.
const STUB_GONE: Duration = Duration::from_secs(2);
/// Signals at least this long after the first one are a second request to leave.
const TIMEOUT: Duration = Duration::from_secs(1);

pub(super) static FIRST_HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// Whether a signal is a second request to leave; the first one came at `first`. timeout(1) signals its child and the
/// child's group at once: these are one request.
pub(super) fn is_second_request(first: &mut Option<Instant>) -> bool {
    first.get_or_insert_with(Instant::now).elapsed() >= TIMEOUT
}

/// Result of running a program to a place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reached {
    There,
    /// The program has ended before.
    Ended,
    /// We were asked to leave, and have released the program.
    Left,
}

/// Signals that belong to the program, or ask us to leave. Receive them before the program is touched: if we died
/// during the injection, the program would be broken.
pub fn signals() -> Incoming {
    Incoming::new(&[libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP])
}

/// The next request. Pending for ever without a control socket.
async fn next_request(requests: &mut Option<Requests>) -> Asked {
    if let Some(open) = requests
        && let Some(asked) = open.recv().await
    {
        return asked;
    }
    std::future::pending().await
}

impl Control {
    pub fn new(inferior: Inferior, signals: Incoming) -> Result<Control> {
        let process = inferior.process();
        let follower = Control::follower(&inferior);
        Ok(Control {
            client: Client::new(inferior.control),
            pid: inferior.pid,
            exit: inferior.exit,
            remains: inferior.remains,
            process,
            signals,
            launched: inferior.launched,
            on_signal: match inferior.launched {
                true => OnSignal::Forward,
                false => OnSignal::Leave,
            },
            leaving: false,
            woken: Woken::default(),
            told_at: None,
            follower,
            unfollowed: None,
            follows_forks: false,
            follows_any: false,
            heap: None,
            blame: false,
            parents_heap: None,
            is_child: false,
            parent_waits: None,
            life: 0,
            requests: None,
            waiting: Vec::new(),
            notices: NOTICES,
            early: Vec::new(),
            frames: Frames::default(),
            tracers: tracers::Asked::of(inferior.pid),
            tracer: None,
            executable: process::executable(inferior.pid),
        })
    }

    /// Parses a packet, if it is a stop. An error if it reports an event that we have not offered to follow.
    fn stop_of(&self, packet: &[u8]) -> Result<Option<Stop>> {
        let stop = stop_of(packet);
        if let Some(Stop::Forked { vfork, .. }) = stop {
            let offered = self.follower.offered.children(vfork);
            ensure!(offered, forged(self.pid, "it has forked a child"));
        }
        if matches!(stop, Some(Stop::Traces { .. })) {
            let offered = self.follower.offered.traces;
            ensure!(offered, forged(self.pid, "it traces another process"));
        }
        Ok(stop)
    }

    /// Passes a text of the stub to the user, up to a limit.
    fn notice(&mut self, text: String, events: &Sender<Event>) {
        if self.notices == 0 {
            return;
        }
        self.notices = self.notices.saturating_sub(text.len() + 1);
        let _ = events.send(Event::Notice(text));
        if self.notices == 0 {
            let more = format!("process {} says more, which is not shown", self.pid);
            let _ = events.send(Event::Notice(more));
        }
    }

    /// Runs to the first of the breakpoints at these addresses.
    pub async fn run_to(&mut self, addrs: &[u64]) -> Result<Reached> {
        for addr in addrs {
            self.breakpoint(b'Z', *addr)
                .await
                .with_context(|| format!("cannot stop the program at {addr:#x}"))?;
        }
        let mut resume = String::from("vCont;c");
        loop {
            self.resume(&resume).await?;
            match self.stopped().await? {
                Stop::Gone => return Ok(Reached::Ended),
                Stop::GivenUp => return Ok(Reached::Left),
                Stop::Forked { .. } | Stop::Traces { .. } => resume = "vCont;c".into(),
                Stop::Signal { signal: TRAP, .. }
                    if self
                        .register(16)
                        .await?
                        .is_some_and(|pc| addrs.contains(&pc)) =>
                {
                    break;
                }
                Stop::Signal { signal, .. } if self.leaving && signal <= INTERRUPT => break,
                Stop::Signal { signal, thread } => resume = pass_on(signal, &thread),
            }
        }
        for addr in addrs {
            self.breakpoint(b'z', *addr).await?;
        }
        if self.leaving {
            self.let_go().await?;
            return Ok(Reached::Left);
        }
        Ok(Reached::There)
    }

    /// Resumes the program; only to the next stop if we are leaving.
    pub(super) async fn resume(&mut self, packet: &str) -> Result<()> {
        self.answer(async |stub: &mut Client| stub.send(packet.as_bytes()).await)
            .await?;
        if self.leaving {
            self.client.interrupt()?;
        }
        Ok(())
    }

    /// Runs the program to its end (or, attached, to Ctrl-C) and passes everything on. With `libraries`, asks the log
    /// what to arm whenever the program has loaded some.
    pub async fn run(mut self, events: Sender<Event>, libraries: bool) -> Result<Ending> {
        self.requests = Some(serve::open(self.pid));
        let result = self.follow(&events, libraries).await;
        self.requests = None;
        self.waiting.clear();
        let result = match result {
            Ok(Some(ending)) => Ok(ending),
            Ok(None) => self.ended().await,
            Err(error) if self.has_ended(&error).await => self.ended().await,
            Err(error) => Err(error),
        };
        if !self.is_child {
            FIRST_HAS_ENDED.store(true, Ordering::Relaxed);
        }
        let _ = events.send(Event::Ended(self.life));
        result
    }

    /// Whether an error comes from the end of the program, which may be killed at any stop.
    pub async fn has_ended(&mut self, error: &anyhow::Error) -> bool {
        let of_end = |cause: &(dyn std::error::Error + 'static)| {
            cause.downcast_ref::<io::Error>().is_some_and(is_end)
        };
        error.chain().any(of_end)
            || tokio::time::timeout(Duration::from_millis(200), self.exit.wait())
                .await
                .is_ok()
    }

    /// Waits for the program's end, after that of its stub.
    ///
    /// # Errors
    /// The stub has ended alone, and the program was not started by us, so we no longer follow it.
    async fn ended(&mut self) -> Result<Ending> {
        // The control channel closes a moment before the process ends. Or the program has executed another one, and the
        // stub went with its memory.
        let pid = self.pid;
        let unfollowed = self.unfollowed.take();
        if self.follower.has_failed() {
            // It still runs the same program.
        } else if let Some((program, why)) = unfollowed {
            say!("process {pid} has executed {program} and runs on unwatched: {why}");
        } else if let Some(program) = self.another_program()
            && !self.is_child
        {
            say!(
                "the program has executed {program}; its watches ended there. To watch that one, run it directly."
            );
        }
        let mut doubt = pin!(tokio::time::sleep(STUB_GONE));
        let mut reported = false;
        if !self.leaving && has_stub(pid) && self.is_left_alone().await {
            let text = format!("ulpf has left process {pid}, which goes on without its watches");
            if !self.launched {
                bail!(text);
            }
            say!("{text}.");
            reported = true;
        }
        loop {
            tokio::select! {
                ending = self.exit.wait() => return Ok(ending),
                () = &mut doubt, if !reported => {
                    if self.leaving && !self.launched {
                        return Ok(Ending::Unknown);
                    }
                    // Up to Linux 5.15 a core dump, which may take its time, ends the stub first.
                    if process::dumps_core(pid) {
                        doubt.as_mut().reset(tokio::time::Instant::now() + STUB_GONE);
                        continue;
                    }
                    reported = true;
                    if has_stub(pid) && !self.leaving {
                        let lost = format!(
                            "the watchpoint stub in process {pid} has ended unexpectedly, and the program cannot go on without it"
                        );
                        if !self.launched {
                            bail!("{lost}. Kill it and start it again; please report this as a bug of ulpf.");
                        }
                        say!("{lost}: it is killed; please report this as a bug of ulpf.");
                        self.kill();
                    }
                }
                number = self.signals.next() => match self.on_signal {
                    OnSignal::Forward => forward(&self.process, number),
                    OnSignal::Leave => return Ok(Ending::Unknown),
                    OnSignal::Nothing => {}
                },
            }
        }
    }

    /// The stub has released the program by itself: its remains are removed, as after a detach.
    async fn is_left_alone(&mut self) -> bool {
        let stream = self.client.stream();
        // Its memory says so before its end of the channel is closed; a core dump of the program keeps both.
        if process::dumps_core(self.pid) || !self.remains.are_listed(&self.process) {
            return false;
        }
        if let Some(text) = inferior::leave_nothing(&self.process, self.remains, stream).await {
            say!("{text}");
        }
        true
    }

    /// The program that the process runs now, if it is another than the watched one.
    fn another_program(&self) -> Option<String> {
        let exe = process::executable(self.pid)?;
        (is_alive(self.pid) && self.executable.as_ref() != Some(&exe))
            .then(|| exe.display().to_string())
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
        let mut eof = false;
        self.offer().await?;
        for text in std::mem::take(&mut self.early) {
            self.notice(text, events);
        }
        'run: loop {
            self.set_off(&resume).await?;
            let stop = loop {
                tokio::select! {
                    // The stub's packets from before the program's end come first, but a stub that never stops sending
                    // must not keep us from requests to leave.
                    biased;
                    number = self.signals.next() => if !self.heard(number)? {
                        break Stop::GivenUp;
                    },
                    received = self.client.next(), if !eof => match received {
                        Ok(Received::Packet(packet)) => {
                            if let Some(stop) = self.stop_of(&packet)? {
                                break stop;
                            }
                            if let Some(text) = console(&packet) {
                                self.notice(text, events);
                            }
                        }
                        Ok(Received::Notification(text)) => {
                            let note = self.follower.notified(&text, self.client.stream());
                            if let Note::Forged(why) = note {
                                bail!(why);
                            }
                        }
                        Err(e) if is_end(&e) && self.follower.is_busy() => eof = true,
                        Err(e) if is_end(&e) => return Ok(None),
                        Err(e) => return Err(e.into()),
                    },
                    done = self.follower.done(), if self.follower.is_busy() => match done.how {
                        _ if done.child.is_some() => self.spawned(done, events),
                        Followed::Into(inferior) => {
                            self.unfollowed = None;
                            if self.again(*inferior, events).await? == Reached::Left {
                                return Ok(Some(Ending::Unknown));
                            }
                            (eof, library_event) = (false, None);
                            resume = "vCont;c".into();
                            continue 'run;
                        }
                        Followed::Failed if !eof => self.unfollowed = None,
                        Followed::Other if !eof => {}
                        Followed::Not { program, why } => {
                            self.unfollowed = Some((program, why));
                            if eof {
                                return Ok(None);
                            }
                        }
                        Followed::Lost { program, why } => {
                            self.unfollowed = Some((program, why));
                            return Ok(None);
                        }
                        Followed::Failed | Followed::Other | Followed::Ended => return Ok(None),
                    },
                    () = inferior::wake(&self.process), if self.leaving && self.tracer.is_none() && !eof => self.woken.note(&self.process),
                    _ = self.exit.wait() => {
                        if !eof {
                            self.last_words(events).await;
                        }
                        self.last_outcome().await;
                        return Ok(None);
                    }
                    tracer = self.tracers.next(), if !eof => {
                        self.tracer = Some(tracer);
                        self.leaving = true;
                        self.client.interrupt()?;
                    }
                    asked = next_request(&mut self.requests), if !eof => {
                        self.asked(asked, events).await?;
                    }
                }
            };
            let (signal, thread) = match stop {
                Stop::Signal { signal, thread } => (signal, thread),
                Stop::Forked { child, thread, .. } => {
                    if !self.forked((thread, child), events).await? {
                        return Ok(Some(Ending::Unknown));
                    }
                    resume = "vCont;c".into();
                    continue;
                }
                Stop::Traces { number: 0 } => {
                    self.is_traced().await;
                    return Ok(self.left());
                }
                Stop::Traces { number } => {
                    tracers::let_go(&self.process, number).await;
                    resume = "vCont;c".into();
                    continue;
                }
                Stop::Gone => return Ok(None),
                Stop::GivenUp => return Ok(Some(Ending::Unknown)),
            };
            let pc = if signal == TRAP {
                self.register(16).await?
            } else {
                None
            };
            let library_event = library_event.filter(|(addr, _)| pc == Some(*addr));
            let frame = pc.filter(|pc| self.frames.knows(*pc));
            if self.leaving && (signal <= INTERRUPT || library_event.is_some() || frame.is_some()) {
                self.let_go().await?;
                return Ok(self.left());
            }
            self.serve(events).await?;
            resume = match (library_event, frame) {
                // The program's own interrupts do not stop it, so this is the stop that we requested.
                (None, _) if signal == INTERRUPT => "vCont;c".into(),
                (None, Some(pc)) => match self.at_frame(pc, &thread).await? {
                    Some(resume) => resume,
                    None => return Ok(Some(Ending::Unknown)),
                },
                (Some((addr, state)), _) => {
                    self.libraries_changed(events, state).await?;
                    match self.step_over(addr, &thread).await? {
                        Some(resume) => resume,
                        None => return Ok(Some(Ending::Unknown)),
                    }
                }
                (None, None) => pass_on(signal, &thread),
            };
        }
    }

    /// The end of the program may be known before all packets of the stub have been read.
    async fn last_words(&mut self, events: &Sender<Event>) {
        let mut enough = pin!(tokio::time::sleep(STUB_GONE));
        loop {
            let received = tokio::select! {
                received = self.client.next() => received,
                () = &mut enough => return,
            };
            match received {
                Ok(Received::Packet(packet)) => {
                    if let Some(text) = console(&packet) {
                        self.notice(text, events);
                    }
                }
                Ok(Received::Notification(_)) => {}
                Err(_) => return, // the stub has gone
            }
        }
    }

    /// The process has ended, perhaps as a program that was not followed: the reason arrives in a moment.
    async fn last_outcome(&mut self) {
        if !self.follower.is_busy() {
            return;
        }
        let done = tokio::time::timeout(STUB_GONE, self.follower.done()).await;
        if let Ok(Done {
            child: None,
            how: Followed::Not { program, why } | Followed::Lost { program, why },
        }) = done
        {
            self.unfollowed = Some((program, why));
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

    /// Executes the instruction under a breakpoint. Returns the packet that resumes the program, or `None` if we leave.
    pub(super) async fn step_over(&mut self, addr: u64, thread: &str) -> Result<Option<String>> {
        self.breakpoint(b'z', addr).await?;
        self.resume(&format!("vCont;s:{thread}")).await?;
        let resume = match self.stopped().await? {
            Stop::GivenUp => return Ok(None),
            Stop::Signal { signal, .. } if self.leaving && signal <= INTERRUPT => "vCont;c".into(),
            Stop::Signal { signal, thread } if signal != TRAP => pass_on(signal, &thread),
            Stop::Signal { .. } | Stop::Forked { .. } | Stop::Traces { .. } | Stop::Gone => {
                "vCont;c".into()
            }
        };
        self.breakpoint(b'Z', addr).await?;
        Ok(Some(resume))
    }

    /// Handles a signal to ourselves. False if it is another request to leave, and the program does not stop.
    pub(super) fn heard(&mut self, number: i32) -> Result<bool> {
        match self.on_signal {
            OnSignal::Forward => forward(&self.process, number),
            OnSignal::Nothing if !FIRST_HAS_ENDED.load(Ordering::Relaxed) => {}
            OnSignal::Leave | OnSignal::Nothing if self.leaving => {
                if is_second_request(&mut self.told_at) {
                    say!("{}", restless(self.pid));
                    return Ok(false);
                }
            }
            OnSignal::Leave | OnSignal::Nothing => {
                is_second_request(&mut self.told_at);
                self.leaving = true;
                self.client.interrupt()?;
            }
        }
        Ok(true)
    }

    fn kill(&self) {
        let _ = self.process.signal(libc::SIGKILL);
    }

    /// Releases the stopped program, which runs on without us.
    ///
    /// # Errors
    /// The program lives and its stub does not answer; the stub releases it when we are gone.
    pub(super) async fn let_go(&mut self) -> Result<()> {
        self.leaving = true;
        let told_at = &mut self.told_at;
        let mut enough = pin!(tokio::time::sleep(STUB_TIMEOUT));
        // (A tracer wants to find the program as it is.)
        let wakes = self.tracer.is_none();
        let packet: &[u8] = if wakes { b"D" } else { b"vUlpfDetachStopped" };
        let detached = {
            let mut reply = pin!(self.client.request(packet));
            loop {
                tokio::select! {
                    reply = &mut reply => break reply.is_ok_and(|r| r == b"OK"),
                    () = inferior::wake(&self.process), if wakes => self.woken.note(&self.process),
                    _ = self.signals.next() => if is_second_request(told_at) {
                        break false;
                    },
                    () = &mut enough => break false,
                }
            }
        };
        if detached {
            let left = inferior::leave_nothing(&self.process, self.remains, self.client.stream());
            let error = match wakes {
                true => inferior::waking(&self.process, &mut self.woken, left).await,
                false => left.await,
            };
            if let Some(text) = error {
                say!("{text}");
            }
        }
        drop(std::mem::take(&mut self.woken));
        self.tracer = None;
        ensure!(detached || !is_alive(self.pid), silent(self.pid));
        Ok(())
    }

    /// Result after the release. `None` for a program that we have started: we wait for its end and report it.
    fn left(&self) -> Option<Ending> {
        (!self.launched).then_some(Ending::Unknown)
    }

    /// Waits for the stop that follows a resume.
    async fn stopped(&mut self) -> Result<Stop> {
        loop {
            tokio::select! {
                packet = self.client.recv() => match packet {
                    Ok(packet) => {
                        if let Some(stop) = self.stop_of(&packet)? {
                            return Ok(stop);
                        }
                        let said: usize = self.early.iter().map(String::len).sum();
                        self.early.extend(console(&packet).filter(|_| said < NOTICES));
                    }
                    Err(e) if is_end(&e) => return Ok(Stop::Gone),
                    Err(e) => return Err(e.into()),
                },
                _ = self.exit.wait() => return Ok(Stop::Gone),
                () = inferior::wake(&self.process), if self.leaving && self.tracer.is_none() => self.woken.note(&self.process),
                number = self.signals.next() => if !self.heard(number)? {
                    return Ok(Stop::GivenUp);
                },
            }
        }
    }

    /// After a failure: kills a program that we started; releases one that we attached to.
    pub async fn give_up(mut self) {
        if self.launched {
            self.kill();
            self.exit.wait().await;
        } else if let Err(error) = self.let_go().await {
            say!("{error}");
        }
    }

    /// How the program ended, once it has.
    ///
    /// # Errors
    /// As those of a run: the stub has ended alone.
    pub async fn ending(mut self) -> Result<Ending> {
        self.ended().await
    }
}

/// Passes a signal of ours to the program, unless the terminal has sent it to both of us.
pub(super) fn forward(to: &Process, number: i32) {
    ulpf_host::signals::passed_on();
    let typed = matches!(number, libc::SIGINT | libc::SIGQUIT);
    if !(typed && process::gets_keys_with_us(to.pid)) {
        let _ = to.signal(number);
    }
}

/// Message that a program does not stop and is left as it is.
pub(super) fn restless(pid: i32) -> String {
    format!("process {pid} does not come to rest, {LEFT}")
}

/// Message that a stub does not answer and its program is left as it is.
pub(super) fn silent(pid: i32) -> String {
    format!("the stub of process {pid} does not answer, {LEFT}")
}

const LEFT: &str = "so it is left as it is; its watches end as soon as it does";

/// Whether the process lives: a dead one has no maps any more.
fn is_alive(pid: i32) -> bool {
    std::fs::read(format!("/proc/{pid}/maps")).is_ok_and(|maps| !maps.is_empty())
}

/// Whether the stub's memory exists. (It goes with the program, also at exec.)
fn has_stub(pid: i32) -> bool {
    process::mapping(pid, "/memfd:ulpf-").is_ok_and(|m| m.is_some())
}

fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}
