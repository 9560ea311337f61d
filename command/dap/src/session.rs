//! One client, one GDB, one program and its successors.
//!
//! ```text
//!   client ─requests─▶ ┌─────────┐ ─commands─▶ gdb ─▶ ulpf server (a thread of ours) ─▶ program
//!          ◀─answers── │ Session │ ◀─records── gdb                                        │
//!          ◀─events─── └─────────┘ ◀─stdout, stderr───────────────────────────────────────┘
//!                           ◀─ the shared area: counters, rings of hits
//! ```
//! One task serves requests one after the other, so nothing here is locked. Events of the program wait in order
//! meanwhile. A request that needs the program stopped interrupts it and resumes it ([`Session::stop_program`]); the client
//! does not see that.

use super::client::{Client, Input};
use super::mi::parse::{Fields, Record};
use super::mi::{self, Gdb};
use super::plugin;
use super::program::Program;
use super::protocol::{Initialize, Request, Start};
use super::state::breakpoints::Breakpoints;
use super::state::data::Data;
use super::state::feed::Feed;
use super::state::frames::Frames;
use super::state::variables::Variables;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;

/// An answer's body, or the error.
pub type Answer = Result<Value, String>;

/// An error text defined by the protocol.
pub const NOT_STOPPED: &str = "notStopped";
/// Time limit for a stop. If it expires, the server's watchdog gives the reason.
const STOP: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No program yet, or it has ended.
    None,
    Stopped,
    Running,
}

pub struct Session {
    pub client: Client,
    pub asked: Initialize,
    pub start: Option<Start>,
    pub gdb: Option<Gdb>,
    pub program: Program,
    pub state: State,
    /// The client has not sent `configurationDone` yet.
    pub configuring: bool,
    /// A `*running` is expected that the client has requested.
    pub resuming: bool,
    /// The client has requested a stop.
    pub pausing: bool,
    pub thread: i64,
    /// Names of all existing threads.
    pub threads: BTreeMap<i64, String>,
    /// GDB's thread groups with a process and its number; several if GDB follows children.
    pub groups: BTreeMap<String, i32>,
    pub frames: Frames,
    pub variables: Variables,
    pub breakpoints: Breakpoints,
    pub data: Data,
    pub feed: Feed,
    /// The texts of the last stop for `exceptionInfo`.
    pub exception: Option<(String, String)>,
    /// `terminated` has been sent.
    pub over: bool,
    /// The end of GDB has been reported to the client.
    pub told_of_gdb: bool,
    leaving: bool,
}

enum Event {
    Client(Option<Input>),
    Gdb(Option<Record>),
    Output(&'static str, String),
    Tick,
}

impl Session {
    pub fn new(client: Client) -> Session {
        Session {
            client,
            asked: Initialize::default(),
            start: None,
            gdb: None,
            program: Program::default(),
            state: State::None,
            configuring: true,
            resuming: false,
            pausing: false,
            thread: 1,
            threads: BTreeMap::new(),
            groups: BTreeMap::new(),
            frames: Frames::default(),
            variables: Variables::default(),
            breakpoints: Breakpoints::default(),
            data: Data::default(),
            feed: Feed::default(),
            exception: None,
            over: false,
            told_of_gdb: false,
            leaving: false,
        }
    }

    /// Serves the client until it disconnects, or until `leave` is set.
    pub async fn serve(mut self, mut leave: watch::Receiver<bool>) {
        while !self.leaving {
            let event = {
                let gdb = async {
                    match &mut self.gdb {
                        // The last command may have found GDB's end.
                        Some(gdb) if !self.told_of_gdb => gdb.event().await,
                        _ => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    record = gdb => Event::Gdb(record),
                    (kind, text) = self.program.output() => Event::Output(kind, text),
                    input = self.client.next() => Event::Client(input),
                    () = self.feed.due() => Event::Tick,
                    _ = leave.changed() => break,
                }
            };
            match event {
                Event::Client(None) => break,
                Event::Client(Some(input)) => self.input(input).await,
                Event::Gdb(Some(record)) => self.record(record).await,
                Event::Gdb(None) => self.gdb_gone().await,
                Event::Output(kind, text) => self.client.output(kind, &text).await,
                Event::Tick => self.show_hits().await,
            }
        }
        // When the client disconnects, launched programs are killed and attached ones continue.
        self.end(None).await;
        self.client.close().await;
    }

    pub fn leave(&mut self) {
        self.leaving = true;
    }

    async fn input(&mut self, input: Input) {
        match input {
            Input::Request(request) => self.request(request).await,
            Input::Garbage(why) => {
                let message = format!("The message is not understood: {why}.");
                self.respond(0, "", Err(message)).await;
            }
            Input::Answer(answer) => {
                if answer["success"] == false {
                    let why = answer["message"].as_str().unwrap_or("no reason given");
                    let text = format!("The client refuses a request: {why}\n");
                    self.client.output("important", &text).await;
                }
            }
        }
    }

    async fn request(&mut self, request: Request) {
        if self.client.shared.is_cancelled(&request.seq.to_string()) {
            self.respond(request.seq, &request.command, Err("cancelled".into()))
                .await;
            return;
        }
        self.client.begin(request.seq);
        let answer = self.dispatch(&request).await;
        self.client.done();
        let cancelled = self.client.shared.is_cancelled(&request.seq.to_string());
        let answer = match answer {
            Err(_) if cancelled => Err("cancelled".into()),
            answer => answer,
        };
        self.respond(request.seq, &request.command, answer).await;
        self.after(&request.command).await;
    }

    async fn respond(&mut self, seq: i64, command: &str, answer: Answer) {
        let mut message = json!({"type": "response", "request_seq": seq, "command": command, "success": answer.is_ok()});
        match answer {
            Ok(Value::Null) => {}
            Ok(body) => message["body"] = body,
            Err(why) => {
                message["message"] = why.clone().into();
                // Texts defined by the protocol are not shown to users.
                if why != "cancelled" && why != NOT_STOPPED {
                    message["body"] =
                        json!({"error": {"id": 1, "format": "{why}", "variables": {"why": why}}});
                }
            }
        }
        self.client.send(message).await;
    }

    // ---- GDB ----

    pub fn gdb(&mut self) -> Result<&mut Gdb, String> {
        self.gdb
            .as_mut()
            .ok_or_else(|| "There is no program yet: launch or attach first.".to_string())
    }

    /// Runs an MI command; the error is GDB's message.
    pub async fn mi(&mut self, command: &str) -> Result<Fields, String> {
        self.trace(command).await;
        let result = self.gdb()?.command(command).await;
        result.map_err(|e| e.to_string())
    }

    /// Runs a command as typed by a user. Returns its output.
    pub async fn console(&mut self, command: &str) -> Result<String, String> {
        self.trace(command).await;
        let result = self.gdb()?.console(command).await;
        result.map_err(|e| e.to_string())
    }

    async fn trace(&mut self, command: &str) {
        if self.start.as_ref().is_some_and(|s| s.trace) {
            let text = format!("gdb ◀ {command}\n");
            self.client.output("telemetry", &text).await;
        }
    }

    /// Runs one of the plugin's MI commands ([`plugin`]).
    pub async fn ask(&mut self, verb: &str, arguments: Value) -> Result<Fields, String> {
        let command = plugin::line(verb, &arguments);
        self.trace(&command).await;
        let (answer, said) = self.gdb()?.command_and_text(&command).await;
        // These lines are for the user.
        for line in said.lines().filter(|line| line.starts_with("ulpf")) {
            self.client.output("important", &format!("{line}\n")).await;
        }
        answer.map_err(|e| match e {
            mi::Error::Refused(why) if why.starts_with("Undefined MI command") => {
                "gdb has not loaded ulpf's plugin; see the debug console.".into()
            }
            e => e.to_string(),
        })
    }

    /// Stops the program. Returns whether it was running, for [`Session::go_on`]. A stop with a reason of its own is
    /// still reported.
    pub async fn stop_program(&mut self) -> Result<bool, String> {
        if self.state != State::Running {
            return Ok(false);
        }
        // It may have stopped just now.
        let asked = self.mi("-exec-interrupt --all").await;
        let gdb = self.gdb()?;
        if !gdb.has_event() {
            asked?;
        }
        let mut other = Vec::new();
        let end = tokio::time::Instant::now() + STOP;
        let result = loop {
            match tokio::time::timeout_at(end, gdb.event()).await {
                Ok(Some(Record::Async('*', class, fields))) if class == "stopped" => {
                    let interrupted = fields.text("reason") == "signal-received"
                        && matches!(fields.text("signal-name"), "SIGINT" | "0");
                    if !interrupted {
                        other.push(Record::Async('*', class, fields));
                    }
                    break Ok(interrupted);
                }
                Ok(Some(Record::Async('*', class, _))) if class == "running" => {}
                Ok(Some(record)) => other.push(record),
                Ok(None) => break Err(mi::Error::Gone.to_string()),
                Err(_) => {
                    break Err(
                        "The program does not stop; pause it, or see what ulpf says of it.".into(),
                    );
                }
            }
        };
        for record in other.into_iter().rev() {
            gdb.again(record);
        }
        let ours = result?;
        self.state = State::Stopped;
        self.resuming = false;
        Ok(ours)
    }

    /// Resumes the program after [`Session::stop_program`].
    pub async fn go_on(&mut self, was_running: bool) -> Result<(), String> {
        if was_running {
            self.resuming = true;
            self.mi("-exec-continue").await?;
            self.state = State::Running;
        }
        Ok(())
    }

    /// Fails unless the program is stopped.
    pub fn need_rest(&self) -> Result<(), String> {
        match self.state {
            State::Stopped => Ok(()),
            State::Running => Err(NOT_STOPPED.into()),
            State::None => Err("There is no program: it has not begun, or has ended.".into()),
        }
    }

    async fn record(&mut self, record: Record) {
        match record {
            Record::Async('*', class, fields) if class == "stopped" => self.stopped(fields).await,
            Record::Async('*', class, fields) if class == "running" => self.running(&fields).await,
            Record::Async('=', class, fields) => self.notified(&class, &fields).await,
            // GDB describes every stop as text, too. Only lines of the plugin are for the user.
            Record::Stream('~', text) => {
                for line in text.lines().filter(|l| l.starts_with("ulpf:")) {
                    self.client.output("important", &format!("{line}\n")).await;
                }
            }
            Record::Stream('&', text) if !text.starts_with("warning: Error disabling") => {
                self.client.output("console", &text).await;
            }
            // Messages of the server; the program's output comes through its own pipes.
            Record::Stream('@', text) if self.program.check.is_some() => {
                self.client.output("console", &text).await;
            }
            Record::Stream('@', text) => self.client.output("stdout", &text).await,
            // Output of a program that uses GDB's own terminal.
            Record::Other(text) => self.client.output("stdout", &format!("{text}\n")).await,
            _ => {}
        }
    }

    async fn running(&mut self, fields: &Fields) {
        if self.state == State::None {
            return;
        }
        self.state = State::Running;
        self.forget_stop().await;
        if !std::mem::take(&mut self.resuming) && !self.configuring {
            let thread = fields.number("thread-id").unwrap_or(self.thread);
            self.client
                .event(
                    "continued",
                    json!({"threadId": thread, "allThreadsContinued": true}),
                )
                .await;
        }
    }

    /// Drops all state that was valid only for the last stop.
    pub async fn forget_stop(&mut self) {
        self.frames.forget();
        self.variables.forget();
        self.exception = None;
    }

    async fn notified(&mut self, class: &str, fields: &Fields) {
        match class {
            "thread-created" | "thread-exited" => {
                let id = fields.number("id").unwrap_or(0);
                let reason = if class == "thread-created" {
                    self.threads.insert(id, format!("Thread {id}"));
                    "started"
                } else {
                    self.threads.remove(&id);
                    "exited"
                };
                self.client
                    .event("thread", json!({"reason": reason, "threadId": id}))
                    .await;
            }
            "thread-group-started" => {
                if let Some(pid) = fields.number("pid") {
                    self.group_started(fields.text("id"), pid as i32).await;
                }
            }
            "thread-group-exited" => {
                self.program.exit_code(fields.text("exit-code"));
                let gone = self.groups.remove(fields.text("id"));
                let left = self.groups.values().next().copied();
                // The child that GDB follows instead of its parent.
                if let (true, Some(pid)) = (gone.is_some() && gone == self.program.pid, left) {
                    self.began(pid).await;
                }
            }
            "library-loaded" | "library-unloaded" => self.library(class, fields).await,
            "breakpoint-created" | "breakpoint-modified" | "breakpoint-deleted" => {
                self.breakpoint_changed(class, fields).await;
            }
            "memory-changed" if self.asked.supportsInvalidatedEvent => {
                self.client
                    .event("invalidated", json!({"areas": ["variables"]}))
                    .await;
            }
            _ => {}
        }
    }

    /// GDB has the program, or a forked child that it follows.
    async fn group_started(&mut self, id: &str, pid: i32) {
        self.groups.insert(id.into(), pid);
        if self.groups.len() == 1 {
            self.began(pid).await;
            return;
        }
        let text = format!(
            "gdb follows process {pid}, which was forked: it has none of the data breakpoints. While gdb holds two \
             processes it lets only one of them run; \"set schedule-multiple on\" lets both.\n"
        );
        self.client.output("important", &text).await;
    }

    async fn gdb_gone(&mut self) {
        let text = "gdb has ended, and the session with it.\n";
        self.state = State::None;
        self.told_of_gdb = true;
        if !self.over {
            self.client.output("important", text).await;
        }
        self.program_over().await;
    }

    /// Reports the end of the debuggee to the client, once.
    pub async fn program_over(&mut self) {
        self.state = State::None;
        self.forget_stop().await;
        for (kind, text) in self.program.rest_of_output() {
            self.client.output(kind, &text).await;
        }
        self.show_all_hits().await;
        if !std::mem::replace(&mut self.over, true) {
            self.client.event("terminated", json!({})).await;
        }
    }
}
