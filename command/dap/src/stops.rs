//! Stops and their reasons in the protocol's terms, and requests that resume the program.

use super::mi::Gdb;
use super::mi::parse::Fields;
use super::plugin;
use super::protocol::{GotoTargets, Resume};
use super::session::{Answer, NOT_STOPPED, Session, State};
use super::state::breakpoints::{Kind, Verdict};
use serde_json::{Value, json};

/// GDB's name of the stop before an error of a checked heap (`stub/task/src/gdb/signals.rs`).
const HEAP_ERROR: &str = "EXC_BAD_ACCESS";

impl Session {
    pub async fn stopped(&mut self, fields: Fields) {
        let reason = fields.text("reason").to_string();
        if reason.starts_with("exited") {
            match self.groups.is_empty() {
                true => self.exited(&reason, &fields).await,
                false => self.one_exited().await,
            }
            return;
        }
        self.state = State::Stopped;
        self.resuming = false;
        self.thread = match fields.number("thread-id") {
            Some(thread) => thread,
            // GDB has been told to be silent about this stop.
            None => match self.mi("-thread-list-ids").await {
                Ok(all) => all.number("current-thread-id").unwrap_or(self.thread),
                Err(_) => self.thread,
            },
        };
        let pausing = std::mem::take(&mut self.pausing);
        // GDB may give other reasons, too. A hit with its access and values says more than any of them.
        let hit = self.look_at_data().await;
        if self.gdb.as_ref().is_none_or(Gdb::is_gone) {
            // GDB has ended during these queries: there is no stop to report, and its end comes next.
            return;
        }
        if let Some(hit) = hit {
            self.tell_stop("data breakpoint", hit).await;
            return;
        }
        let stop = match reason.as_str() {
            "breakpoint-hit" => self.at_breakpoint(&fields).await,
            "end-stepping-range" | "location-reached" | "function-finished" => {
                Some(("step", json!({})))
            }
            "signal-received" if fields.text("signal-name") == HEAP_ERROR => {
                Some(self.at_heap_error(&fields).await)
            }
            "signal-received" => self.at_signal(&fields, pausing),
            "watchpoint-trigger" | "read-watchpoint-trigger" | "access-watchpoint-trigger" => {
                self.at_watch(&fields)
            }
            "watchpoint-scope" => {
                let number = fields.number("wpnum").unwrap_or(0);
                let text = format!("Watchpoint {number} has ended: its frame is gone");
                Some((
                    "data breakpoint",
                    json!({"hitBreakpointIds": [number], "description": "Out of scope", "text": text}),
                ))
            }
            "" => Some(("pause", json!({}))),
            other => {
                let text = other.replace('-', " ");
                Some(("pause", json!({"description": text, "text": text})))
            }
        };
        match stop {
            Some((reason, more)) => self.tell_stop(reason, more).await,
            // The stop is not to be reported.
            None => {
                if let Err(why) = self.resume("-exec-continue").await {
                    self.client.output("important", &format!("{why}\n")).await;
                    self.tell_stop("breakpoint", json!({})).await;
                }
            }
        }
    }

    pub async fn tell_stop(&mut self, reason: &str, more: Value) {
        let mut body =
            json!({"reason": reason, "threadId": self.thread, "allThreadsStopped": true});
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        self.show_all_hits().await;
        self.client.event("stopped", body).await;
    }

    async fn exited(&mut self, reason: &str, fields: &Fields) {
        let code = match reason {
            "exited-signalled" => {
                let name = fields.text("signal-name");
                let text = format!(
                    "The program was ended by {name} ({}).\n",
                    fields.text("signal-meaning")
                );
                self.client.output("important", &text).await;
                let number = ulpf_host::signals::number(name).unwrap_or(0);
                Some(128 + i64::from(number))
            }
            _ => i64::from_str_radix(fields.text("exit-code"), 8).ok(),
        };
        let code = code.or(self.program.take_exit()).unwrap_or(0);
        // The program's last output comes first.
        for (kind, text) in self.program.rest_of_output() {
            self.client.output(kind, &text).await;
        }
        self.show_all_hits().await;
        self.client.event("exited", json!({"exitCode": code})).await;
        self.program_over().await;
    }

    /// One of several processes has ended; the others are stopped.
    async fn one_exited(&mut self) {
        self.state = State::Stopped;
        self.resuming = false;
        if let Some(thread) = self.threads.keys().next().copied() {
            self.thread = thread;
            let _ = self.mi(&format!("-thread-select {thread}")).await;
        }
        let text = "A process has ended; another one is there, and rests";
        let more = json!({"description": text, "text": text});
        self.tell_stop("pause", more).await;
    }

    async fn at_breakpoint(&mut self, fields: &Fields) -> Option<(&'static str, Value)> {
        let number = fields.number("bkptno").unwrap_or(0);
        if self.breakpoints.entry == Some(number) {
            self.breakpoints.entry = None;
            self.arm_waiting().await;
            let wanted = self.start.as_ref().is_some_and(|s| s.stop_on_entry);
            return wanted.then(|| ("entry", json!({})));
        }
        let Some(kind) = self.breakpoints.kind(number) else {
            return Some(("breakpoint", json!({"hitBreakpointIds": [number]})));
        };
        match self.judge(number).await {
            Verdict::GoOn => return None,
            Verdict::Stop => {}
        }
        let ids = json!([number]);
        Some(match kind {
            Kind::Source => ("breakpoint", json!({"hitBreakpointIds": ids})),
            Kind::Function => ("function breakpoint", json!({"hitBreakpointIds": ids})),
            Kind::Instruction => ("instruction breakpoint", json!({"hitBreakpointIds": ids})),
            Kind::Exception(what) => {
                let text = self.exception_text(what).await;
                self.exception = Some((what.to_string(), text.clone()));
                (
                    "exception",
                    json!({"description": format!("C++ exception: {what}"), "text": text, "hitBreakpointIds": ids}),
                )
            }
        })
    }

    /// An error of a checked heap, with the server's description.
    async fn at_heap_error(&mut self, fields: &Fields) -> (&'static str, Value) {
        let answer = self.console("monitor ulpf heap-error").await;
        let answer = answer.ok().and_then(|text| {
            let mut lines = text.lines().filter(|l| l.starts_with('{'));
            serde_json::from_str::<Value>(lines.next()?).ok()
        });
        let error = answer.as_ref().and_then(|a| a.get("heap_error"));
        let of = |name| error.and_then(|e| e.get(name)).and_then(Value::as_str);
        let what = of("what").unwrap_or(fields.text("signal-meaning"));
        let id = of("error").unwrap_or(HEAP_ERROR);
        let text = answer.as_ref().and_then(|a| a.get("text")?.as_str());
        let text = text.unwrap_or(what).trim_end();
        self.exception = Some((format!("heap: {id}"), text.to_string()));
        (
            "exception",
            json!({"description": format!("Error of the heap: {id}"), "text": what}),
        )
    }

    fn at_signal(&mut self, fields: &Fields, pausing: bool) -> Option<(&'static str, Value)> {
        let (name, meaning) = (fields.text("signal-name"), fields.text("signal-meaning"));
        if pausing && matches!(name, "SIGINT" | "0" | "SIGTRAP" | "SIGSTOP") {
            return Some(("pause", json!({})));
        }
        match name {
            "0" | "SIGTRAP" => Some(("breakpoint", json!({"description": meaning}))),
            _ => {
                let text = format!("{name}: {meaning}");
                self.exception = Some((name.to_string(), text.clone()));
                Some(("exception", json!({"description": name, "text": text})))
            }
        }
    }

    /// A watch set with GDB's own `watch`, or one of ulpf that is no longer known.
    fn at_watch(&self, fields: &Fields) -> Option<(&'static str, Value)> {
        let watch = ["wpt", "hw-rwpt", "hw-awpt"]
            .iter()
            .find_map(|name| fields.fields(name));
        let number = watch.and_then(|w| w.number("number")).unwrap_or(0);
        let expression = watch.map(|w| w.text("exp").to_string()).unwrap_or_default();
        if number <= 0 {
            return Some(("data breakpoint", json!({"description": "A watch was hit"})));
        }
        let value = fields.fields("value");
        let of = |name| value.map(|v| v.text(name)).unwrap_or_default();
        let text = match (of("old"), of("new")) {
            ("", "") => format!("{expression} = {}", of("value")),
            (old, new) => format!("{expression}: {old} → {new}"),
        };
        Some((
            "data breakpoint",
            json!({"hitBreakpointIds": [number], "description": text, "text": text}),
        ))
    }

    // ---- running ----

    /// Runs a command that resumes the program, at the client's request.
    pub async fn resume(&mut self, command: &str) -> Result<(), String> {
        self.need_rest()?;
        self.resuming = true;
        self.forget_stop().await;
        let result = self.mi(command).await;
        match result {
            Ok(_) => self.state = State::Running,
            Err(_) => self.resuming = false,
        }
        result.map(drop)
    }

    pub async fn continue_(&mut self, _how: Resume) -> Answer {
        self.resume("-exec-continue").await?;
        Ok(json!({"allThreadsContinued": true}))
    }

    /// The thread of a request. GDB may do anything for an invalid number, so the number is checked.
    fn known_thread(&self, asked: i64) -> Result<i64, String> {
        match asked {
            ..=0 => Ok(self.thread),
            thread if self.threads.contains_key(&thread) => Ok(thread),
            thread => Err(format!("There is no thread {thread}; it may have ended.")),
        }
    }

    async fn step(&mut self, how: Resume, line: &str, instruction: &str) -> Answer {
        let command = match how.granularity.as_deref() {
            Some("instruction") => instruction,
            _ => line,
        };
        let thread = self.known_thread(how.threadId)?;
        self.resume(&format!("{command} --thread {thread}")).await?;
        Ok(Value::Null)
    }

    pub async fn next(&mut self, how: Resume) -> Answer {
        self.step(how, "-exec-next", "-exec-next-instruction").await
    }

    pub async fn step_in(&mut self, how: Resume) -> Answer {
        self.step(how, "-exec-step", "-exec-step-instruction").await
    }

    pub async fn step_out(&mut self, how: Resume) -> Answer {
        let thread = self.known_thread(how.threadId)?;
        self.resume(&format!("-exec-finish --thread {thread} --frame 0"))
            .await?;
        Ok(Value::Null)
    }

    pub async fn pause(&mut self) -> Answer {
        match self.state {
            State::Stopped => return Ok(Value::Null),
            State::None => return Err("There is no program to pause.".into()),
            State::Running => {}
        }
        self.pausing = true;
        self.mi("-exec-interrupt --all").await?;
        Ok(Value::Null)
    }

    /// Addresses of a line's code. A target is identified by its address's position in the answer.
    pub async fn goto_targets(&mut self, asked: GotoTargets) -> Answer {
        if self.state != State::Stopped {
            return Err(NOT_STOPPED.into());
        }
        let file = asked.source.path.unwrap_or_default();
        let answer = self
            .ask("lines-of", json!({"file": file, "line": asked.line}))
            .await?;
        let mut targets = Vec::new();
        for address in plugin::addresses(&answer) {
            let id = self.frames.target(address);
            targets.push(json!({"id": id, "label": format!("line {} at {address:#x}", asked.line), "line": asked.line,
                                "instructionPointerReference": format!("{address:#x}")}));
        }
        Ok(json!({"targets": targets}))
    }

    pub async fn goto(&mut self, how: Resume) -> Answer {
        self.need_rest()?;
        let address = self
            .frames
            .target_of(how.targetId)
            .ok_or("That target is not known any more; ask again.")?;
        let thread = self.known_thread(how.threadId)?;
        self.mi(&format!(
            "-data-evaluate-expression --thread {thread} --frame 0 \"$pc = {address:#x}\""
        ))
        .await?;
        self.forget_stop().await;
        self.thread = thread;
        self.tell_stop("goto", json!({})).await;
        Ok(Value::Null)
    }
}
