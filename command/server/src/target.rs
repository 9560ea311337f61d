//! A served program, as the relay sees it: frames to and from the stub, and its end.
#![forbid(unsafe_code)]

use super::answers;
use super::changes::Changed;
use super::checked::Checked;
use super::common::reap_later;
use super::prefetch::{self, Prefetch};

use super::packets::{exec_stop, is_output};
use super::refused::RefusedWatches;
use super::vfork::{self, VforkChild};
use super::watchdog;
use super::watches::LazyWatches;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio::time::error::Elapsed;
use ulpf_area::SharedArea;
use ulpf_host::foreign::numbers::{Budget, Process};
use ulpf_host::process;
use ulpf_host::say::message;
use ulpf_inject::follow::Followed;
use ulpf_inject::inferior::follow::{Done, Follower, Note, child_in, forged};
use ulpf_inject::inferior::{Ending, Exit, Inferior};
use ulpf_inject::remains::Remains;
use ulpf_rsp::Decoder;
use ulpf_session::memory::ProcessMemory;
use ulpf_symbols::{Memory, Program};

/// An event of the program or its stub.
#[derive(Debug)]
pub enum Event {
    Reply(Vec<u8>),
    Notification(Vec<u8>),
    /// Non-stop: one thread has stopped; the text of its stop reply.
    Stop(Vec<u8>),
    Ended(Ending),
    /// The program has executed another one and is stopped at its first instruction.
    Executed(String),
    /// The program has executed another one, which removed the stub with the program's memory.
    Replaced,
    /// The stub has ended, but the program has not.
    StubLost,
    /// A vfork child has executed another program and is stopped at its first instruction. It is no longer served here.
    ChildExecuted(Box<Inferior>),
    /// A vfork child has executed another program and could not be followed; the reason, for the user.
    ChildRunsOn(String),
    ChildEnded(i32, Ending),
}

/// Limit of consecutive reads from the stub, so that other tasks can run.
const MOST_READS: usize = 16;

/// The end of a stop reply caused only by `vUlpfHalt` (stub/task/src/gdb/mod.rs).
pub const HALTED: &[u8] = b"ulpfhalt:;";

/// The prefix of a notification that one thread has stopped.
pub const STOP: &[u8] = b"Stop:";

pub struct Target {
    pub pid: i32,
    pub process: Process,
    /// The process number that the program itself sees and the stub reports. It differs from `pid` in a container.
    pub number: i32,
    pub stub_pid: i32,
    pub launched: bool,
    pub exit: Exit,
    /// Between a resume request and its stop reply.
    pub running: bool,
    /// Threads stop and resume one by one, and `running` is never set (see `non_stop`).
    pub non_stop: bool,
    /// The stub has gone; the reason, for the debugger. The program can only be killed or awaited.
    pub lost: Option<String>,
    pub watches: LazyWatches,
    pub prefetch: Prefetch,
    pub refused: RefusedWatches,
    /// First packets for a new stub of this program.
    pub greeting: Vec<Vec<u8>>,
    /// A stop that arrived while a stop of another process was reported.
    pub pending: Option<Vec<u8>>,
    /// Events of its children that came while it was stopped.
    pub later: VecDeque<Event>,
    /// Vfork children that the debugger follows; they run in this program's memory (see `vfork`).
    pub(super) children: Vec<VforkChild>,
    /// A forked child that has not run yet: the debugger believes that it has its parent's watches.
    pub inherits: bool,
    /// State of the heap check, if the heap is checked.
    pub heap: Option<Checked>,
    /// Names of the program, read when the plugin first needs them.
    pub program: Option<Program>,
    /// Changes that other clients have made in its stub.
    pub changed: Changed,
    /// The packet that repeats the last resume; `None` if it cannot be repeated.
    pub again: Option<Vec<u8>>,
    /// The last resume packet in all-stop mode.
    pub resumed: Vec<u8>,
    /// In non-stop mode: stepping threads, and the action of each.
    pub steps: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The server has requested a stop that the debugger will not see.
    pub halted: bool,
    /// Kept for readers of past hits (`ulpf last`).
    shared: SharedArea,
    pub(super) remains: Remains,
    pub(super) replaced: bool,
    follower: Follower,
    /// A program that was executed but could not be followed, and the reason.
    unfollowed: Option<(String, String)>,
    /// The control channel has ended.
    eof: bool,
    /// Number of replies to ignore, such as those to greetings.
    pub(super) unread: usize,
    /// The stub owes answers that are no longer awaited; the reason, for the debugger.
    hung: Option<String>,
    /// Number of hex digits in the last answer to `g`.
    pub registers_len: usize,
    /// An interrupt request went to a stub that was about to end.
    interrupt_due: bool,
    pub(super) control: UnixStream,
    decoder: Decoder,
    queue: VecDeque<Event>,
    /// Limit of what the stub may send before the next request.
    budget: Budget,
}

impl Target {
    pub fn new(inferior: Inferior) -> Target {
        let follower = Follower::of(&inferior);
        Target {
            pid: inferior.pid,
            process: inferior.process(),
            number: process::own_number(inferior.pid).unwrap_or(inferior.pid),
            stub_pid: inferior.stub_pid,
            launched: inferior.launched,
            exit: inferior.exit,
            running: false,
            non_stop: false,
            lost: None,
            watches: LazyWatches::default(),
            prefetch: Prefetch::default(),
            refused: RefusedWatches::default(),
            greeting: Vec::new(),
            pending: None,
            later: VecDeque::new(),
            children: Vec::new(),
            inherits: false,
            heap: None,
            program: None,
            changed: Changed::default(),
            again: None,
            resumed: Vec::new(),
            steps: BTreeMap::new(),
            halted: false,
            replaced: false,
            follower,
            unfollowed: None,
            eof: false,
            unread: 0,
            hung: None,
            registers_len: 0,
            interrupt_due: false,
            control: inferior.control,
            shared: inferior.shared,
            remains: inferior.remains,
            decoder: Decoder::default(),
            queue: VecDeque::new(),
            budget: Budget::default(),
        }
    }

    /// A second handle of the control channel, for sending.
    pub fn channel(&self) -> Option<std::os::unix::net::UnixStream> {
        Some(self.control.as_fd().try_clone_to_owned().ok()?.into())
    }

    pub async fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        self.prefetch.sending(payload);
        let frame = self.frame(payload);
        self.write(&frame).await
    }

    pub(super) fn frame(&mut self, payload: &[u8]) -> Vec<u8> {
        let renamed = vfork::to_stub(payload, self.number, &self.children);
        let payload = renamed.as_deref().unwrap_or(payload);
        self.follower.offered.note(payload);
        ulpf_rsp::frame(payload)
    }

    /// Writes with a time limit, since a stub may stop reading.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.budget.renew();
        tokio::time::timeout(watchdog::READ_TIMEOUT, self.control.write_all(bytes)).await?
    }

    /// The program with its present mappings.
    pub(super) fn names(&mut self) -> &Program {
        let program = self.program.get_or_insert_default();
        // On failure the earlier mappings are better than none.
        let _ = program.refresh_from_process(self.pid);
        program
    }

    /// Answers a request of the plugin.
    pub(super) fn answer_plugin(&mut self, request: &answers::Request) -> String {
        let pid = self.pid;
        let program = self.names();
        let memory = match request.reads() {
            true => ProcessMemory::of(pid, None).ok(),
            false => None,
        };
        request.answer(program, memory.as_ref().map(|m| m as &dyn Memory))
    }

    pub(super) fn shared(&self) -> &SharedArea {
        &self.shared
    }

    /// Requests a stop that the debugger will not see, if the program can be resumed as before.
    pub(super) async fn halt(&mut self) {
        if !self.halted && self.again.is_some() && !self.follower.is_busy() {
            self.halted = self.send(b"vUlpfHalt").await.is_ok();
        }
    }

    /// Requests a stop. A stop reply follows if the program runs.
    pub async fn interrupt(&mut self) -> io::Result<()> {
        self.interrupt_due = self.follower.is_busy();
        self.write(&[ulpf_rsp::INTERRUPT]).await
    }

    /// The next event. Cancel-safe.
    pub async fn event(&mut self) -> Event {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return event;
            }
            tokio::select! {
                biased;
                ready = self.control.readable(), if self.lost.is_none() && !self.eof => {
                    self.eof = ready.is_err() || !self.drain();
                }
                done = self.follower.done(), if self.follower.is_busy() => match done {
                    Done { child: Some(child), .. } => match self.child_done(child, done) {
                        Some(event) => return event,
                        None => continue,
                    },
                    Done { how, .. } => match how {
                    Followed::Into(inferior) => return self.begin_again(*inferior).await,
                    Followed::Failed => self.interrupt_due = false,
                    Followed::Not { program, why } => self.unfollowed = Some((program, why)),
                    Followed::Other | Followed::Ended => {}
                    Followed::Lost { program, why } => {
                        self.unfollowed = Some((program, why));
                        return self.replaced();
                    }
                    }
                },
                (child, ending) = vfork::next_end(&mut self.children),
                    if !self.children.is_empty() && !self.follower.is_busy() =>
                {
                    self.children.retain(|c| c.number != child);
                    return Event::ChildEnded(child, ending);
                }
                // The outcome of an exec is reported before the end.
                ending = self.exit.wait(), if !self.follower.is_busy() => {
                    // The stub's last packets come before the end.
                    self.drain();
                    self.has_ended(ending);
                    continue;
                }
            };
            if self.eof && self.lost.is_none() && self.queue.is_empty() && !self.follower.is_busy()
            {
                return self.stub_has_gone().await;
            }
        }
    }

    /// A vfork child has executed another program, or has tried to.
    fn child_done(&mut self, number: i32, done: Done) -> Option<Event> {
        if let Some(word) = done.last_word() {
            // The stub waits for this only, so the socket has room.
            let _ = self.control.try_write(&word);
        }
        let child = self.children.iter_mut().find(|c| c.number == number)?;
        match done.how {
            Followed::Into(inferior) => {
                self.children.retain(|c| c.number != number);
                Some(Event::ChildExecuted(inferior))
            }
            Followed::Not { program, why } | Followed::Lost { program, why } => {
                child.lost = true;
                Some(Event::ChildRunsOn(format!(
                    "Process {} executes {program} and runs on unwatched: {why}",
                    child.process.pid
                )))
            }
            Followed::Failed | Followed::Other | Followed::Ended => None,
        }
    }

    /// The stub's channel has closed. The stub ends with the program (perhaps a moment before the program's end is
    /// visible), or with its memory at an exec. Otherwise it has crashed.
    async fn stub_has_gone(&mut self) -> Event {
        let mut left = 300;
        while left > 0 {
            // Up to Linux 5.15 a core dump, which may take long, ends the stub first.
            left -= i32::from(!process::dumps_core(self.pid));
            if let Some(program) = process::without_mapping(self.pid, "/memfd:ulpf-shared") {
                let why = "it could not be followed.".to_string();
                let program = program.display().to_string();
                self.unfollowed.get_or_insert((program, why));
                return self.replaced();
            }
            if let Ok(ending) =
                tokio::time::timeout(Duration::from_millis(10), self.exit.wait()).await
            {
                self.has_ended(ending);
                return self.queue.pop_front().unwrap_or(Event::Ended(ending));
            }
        }
        self.lost = Some(format!(
            "E.The watchpoint stub in process {} has ended unexpectedly, so the program can neither be inspected nor resumed. Kill it (`kill`) and start it again; please report this as a bug of ulpf.",
            self.pid
        ));
        Event::StubLost
    }

    /// Queues the end, after an exec that preceded it.
    fn has_ended(&mut self, ending: Ending) {
        if self.unfollowed.is_some() && !self.follower.has_failed() {
            let event = self.replaced();
            self.queue.push_back(event);
        }
        self.queue.push_back(Event::Ended(ending));
    }

    fn replaced(&mut self) -> Event {
        let (program, why) = self.unfollowed.take().unwrap_or_default();
        self.lost = Some(format!(
            "E.Process {} has executed {program} and runs on unwatched: {why}",
            self.pid
        ));
        self.replaced = true;
        Event::Replaced
    }

    /// The process has become another program, with a new stub.
    async fn begin_again(&mut self, inferior: Inferior) -> Event {
        for warning in &inferior.warnings {
            message!("{warning}");
        }
        reap_later(std::mem::replace(&mut self.stub_pid, inferior.stub_pid));
        self.control = inferior.control;
        self.shared = inferior.shared;
        self.remains = inferior.remains;
        self.decoder = Decoder::default();
        let former = self.watches.keys().chain(self.refused.keys()).cloned();
        self.refused = RefusedWatches::after_exec(former);
        self.watches = LazyWatches::default();
        self.prefetch = Prefetch::default();
        self.changed = Changed::default();
        self.heap = None;
        self.halted = false;
        self.unfollowed = None;
        self.eof = false;
        self.queue.clear();
        self.unread = self.greeting.len();
        for packet in self.greeting.clone() {
            // An error shows as end of file later.
            let _ = self.write(&ulpf_rsp::frame(&packet)).await;
        }
        if std::mem::take(&mut self.interrupt_due) {
            let _ = self.write(&[ulpf_rsp::INTERRUPT]).await;
        }
        let program = process::executable(self.pid).unwrap_or_default();
        Event::Executed(program.display().to_string())
    }

    /// Reads what has arrived, at most [`MOST_READS`] times. Returns false at end of file.
    fn drain(&mut self) -> bool {
        let mut buf = [0; 16384];
        for _ in 0..MOST_READS {
            let n = match self.control.try_read(&mut buf) {
                Ok(0) => return false,
                Ok(n) => n,
                Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
            };
            if !self.budget.take(n) {
                self.distrust(self.budget.too_much("the program's stub"));
            }
            let mut events = Vec::new();
            self.decoder.feed(&buf[..n], |e| events.push(e));
            for event in events {
                if self.lost.is_some() {
                    return true;
                }
                self.heard(event);
            }
            if n < buf.len() {
                break;
            }
        }
        true
    }

    fn heard(&mut self, event: ulpf_rsp::Event) {
        match event {
            ulpf_rsp::Event::Packet(p) if self.unread > 0 => {
                self.unread -= usize::from(!is_output(&p))
            }
            ulpf_rsp::Event::Packet(p) => {
                if self.running && !self.non_stop && !is_output(&p) {
                    self.prefetch.stopped();
                }
                if let Some(p) = self.checked(p) {
                    self.queue.push_back(Event::Reply(p));
                }
            }
            ulpf_rsp::Event::Notification(p) if p.starts_with(prefetch::ANSWERS) => {
                let answers = &p[prefetch::ANSWERS.len()..];
                // A vfork child has a different name in the stub than in the debugger's packets.
                if self.children.is_empty() {
                    self.prefetch.answers(answers);
                }
            }
            ulpf_rsp::Event::Notification(p) if p.starts_with(STOP) => {
                if let Some(p) = self.checked(p[STOP.len()..].to_vec()) {
                    self.queue.push_back(Event::Stop(p));
                }
            }
            ulpf_rsp::Event::Notification(p) => match self.follower.notified(&p, &self.control) {
                Note::Taken => {}
                Note::Theirs => self.queue.push_back(Event::Notification(p)),
                Note::Forged(why) => self.distrust(why),
            },
            _ => {}
        }
    }

    /// A packet of the stub in the debugger's numbering; `None` if it cannot be true.
    fn checked(&mut self, said: Vec<u8>) -> Option<Vec<u8>> {
        match child_in(&said) {
            Some((_, vfork)) if !self.follower.offered.children(vfork) => {
                self.distrust(forged(self.pid, "it has forked a child"));
                None
            }
            _ => Some(vfork::to_debugger(said, self.number, &self.children)),
        }
    }

    /// Stops believing this stub, and drops all that it has sent.
    fn distrust(&mut self, why: impl Display) {
        let pid = self.pid;
        self.lost = Some(format!("E.Process {pid} is not served any more: {why}"));
        self.queue.clear();
        self.queue.push_back(Event::StubLost);
    }

    /// One request and its one reply, for the server's own requests. No other request may be in flight. `None` if the
    /// program or its stub has gone, or if the stub does not answer (see [`Target::hangs`]).
    pub async fn request(&mut self, payload: &[u8]) -> Option<Vec<u8>> {
        self.request_with(payload, &mut Vec::new()).await
    }

    /// The stub's output for a `monitor` command. Fails as [`Target::request`] does.
    pub async fn monitor(&mut self, command: &str) -> Option<String> {
        let packet = format!("qRcmd,{}", ulpf_rsp::to_hex(command.as_bytes()));
        let mut said = Vec::new();
        self.request_with(packet.as_bytes(), &mut said).await?;
        Some(String::from_utf8_lossy(&said).into_owned())
    }

    async fn request_with(&mut self, payload: &[u8], said: &mut Vec<u8>) -> Option<Vec<u8>> {
        if self.lost.is_some() || self.still_hangs(watchdog::HUNG_TIMEOUT).await.is_some() {
            return None;
        }
        // An error shows as end of file below, where the end of the program is awaited.
        let _ = self.send(payload).await;
        let limit = watchdog::timeout_of(payload);
        match self.reply_by(Instant::now() + limit, said).await {
            Ok(reply) => reply,
            Err(_) => {
                self.hangs(limit);
                None
            }
        }
    }

    /// The next reply that is not text to print; such text is added to `said`. `Ok(None)`: no reply will come.
    pub(super) async fn reply_by(
        &mut self,
        end: Instant,
        said: &mut Vec<u8>,
    ) -> Result<Option<Vec<u8>>, Elapsed> {
        loop {
            match tokio::time::timeout_at(end, self.event()).await? {
                Event::Reply(reply) if is_output(&reply) => {
                    said.extend(ulpf_rsp::from_hex(&reply[1..]).unwrap_or_default());
                }
                Event::Reply(reply) => return Ok(Some(reply)),
                Event::Notification(_) => {}
                event @ (Event::Stop(_)
                | Event::ChildExecuted(_)
                | Event::ChildEnded(..)
                | Event::ChildRunsOn(_)) => {
                    self.later.push_back(event);
                }
                // The exec discards the answer, but the event is kept.
                event @ Event::Executed(_) if self.non_stop => {
                    self.later.push_back(event);
                    return Ok(None);
                }
                Event::Ended(_) | Event::Replaced | Event::StubLost | Event::Executed(_) => {
                    return Ok(None);
                }
            }
        }
    }

    /// Stops a running program without a report to the debugger. Returns false if it has ended or cannot be stopped.
    pub async fn stop(&mut self) -> bool {
        if !self.running {
            return self.lost.is_none() && self.exit.now().is_none();
        }
        (self.running, self.halted) = (false, false);
        if self.send(b"vUlpfHalt").await.is_err() {
            return false;
        }
        let end = Instant::now() + watchdog::STOP_TIMEOUT;
        loop {
            match tokio::time::timeout_at(end, self.event()).await {
                // Console output of the program, not its stop.
                Ok(Event::Reply(reply)) if is_output(&reply) => {}
                Ok(Event::Reply(reply)) => {
                    if !reply.ends_with(HALTED) {
                        self.pending = Some(reply);
                    }
                    return true;
                }
                Ok(Event::Notification(_)) => {}
                Ok(
                    event @ (Event::Stop(_)
                    | Event::ChildExecuted(_)
                    | Event::ChildEnded(..)
                    | Event::ChildRunsOn(_)),
                ) => self.later.push_back(event),
                Ok(Event::Executed(program)) => {
                    let stop = self.request(b"?").await.unwrap_or_default();
                    self.pending = Some(exec_stop(&stop, &program));
                    return true;
                }
                Ok(Event::Ended(_) | Event::Replaced | Event::StubLost) => return false,
                // It stops when it can. The late stop reply will be ignored.
                Err(_) => {
                    self.hangs(watchdog::STOP_TIMEOUT);
                    return false;
                }
            }
        }
    }

    /// The stub has not answered for `waited`. Its answer will be ignored. Returns a text for the debugger.
    pub fn hangs(&mut self, waited: Duration) -> String {
        let why = format!("E.{}", watchdog::report(self.pid, self.stub_pid, waited));
        self.unread += 1;
        self.hung = Some(why.clone());
        why
    }

    /// Gives a stub that owes answers at most `time` for them. Returns `Some` if it still does not answer.
    pub async fn still_hangs(&mut self, time: Duration) -> Option<String> {
        let why = self.hung.clone()?;
        match tokio::time::timeout(time, self.answers()).await {
            Ok(()) => None,
            Err(_) => Some(why),
        }
    }

    /// Waits until the stub has given the answers that it owes, or has gone. Cancel-safe.
    pub async fn answers(&mut self) {
        while self.unread > 0 && self.lost.is_none() && !self.eof {
            tokio::select! {
                ready = self.control.readable() => self.eof = ready.is_err() || !self.drain(),
                _ = self.exit.wait() => break,
            }
        }
        self.hung = None;
    }

    pub fn is_replaced(&self) -> bool {
        self.replaced
    }
}
