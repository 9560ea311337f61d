//! Start and end of a session's program.
//!
//! A program is started at once and stopped at its first instruction, while the client sends its breakpoints. So data
//! breakpoints can be armed before any code of the program has run.

use super::mi::Gdb;
use super::mi::parse::{Record, quote};
use super::program::Origin;
use super::protocol::{Disconnect, Restart, Start, Words};
use super::session::{Answer, Session, State};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ulpf_host::programs::{find, locate};
use ulpf_host::sys;
use ulpf_server::BackEnd;

const BEGIN: Duration = Duration::from_secs(60);

impl Session {
    pub async fn launch(&mut self, start: Start) -> Answer {
        let Some(program) = start.program.clone() else {
            return Err("The configuration names no program: set \"program\" to its path.".into());
        };
        let path = match start.address {
            // The program may be on another machine.
            Some(_) => PathBuf::from(&program),
            None => locate(OsStr::new(&program))?,
        };
        self.begin(&start).await?;
        let result = self.launch_in(&start, &path).await;
        self.begun(start, Origin::Launched, result).await
    }

    async fn launch_in(&mut self, start: &Start, path: &Path) -> Result<(), String> {
        self.symbols(path).await?;
        self.connect(start).await?;
        let file = path.to_string_lossy();
        self.console(&format!("set remote exec-file {file}"))
            .await?;
        self.surroundings(start).await?;
        self.start_program().await
    }

    /// Sets arguments, folder and environment.
    async fn surroundings(&mut self, start: &Start) -> Result<(), String> {
        let line = match &start.args {
            None => String::new(),
            Some(Words::Line(line)) => line.clone(),
            Some(Words::List(words)) => words
                .iter()
                .map(|w| shell_word(w))
                .collect::<Vec<_>>()
                .join(" "),
        };
        self.console(&format!("set args {line}")).await?;
        if let Some(dir) = &start.cwd {
            if start.address.is_none() && !Path::new(dir).is_dir() {
                return Err(format!("There is no folder {dir}; look at \"cwd\"."));
            }
            self.console(&format!("set cwd {dir}")).await?;
        }
        for (name, value) in &start.env {
            let command = match value {
                Some(value) => format!("set environment {name} = {value}"),
                None => format!("unset environment {name}"),
            };
            self.console(&command).await?;
        }
        Ok(())
    }

    /// Runs to the program's first instruction.
    async fn start_program(&mut self) -> Result<(), String> {
        self.state = State::None;
        self.console("starti").await.map_err(|why| {
            format!("The program cannot be started: {why}. See stderr for what the server says.")
        })?;
        self.first_stop().await
    }

    pub async fn attach(&mut self, start: Start) -> Answer {
        let pid = start.pid.as_ref().map(|pid| {
            pid.number()
                .ok_or("\"pid\" is no number of a process.".to_string())
        });
        let pid = pid.transpose()?;
        if pid.is_none() && start.address.is_none() {
            return Err("The configuration says neither \"pid\" nor \"address\": which process, or which ulpf server?".into());
        }
        if let (Some(pid), None) = (pid, &start.address)
            && !Path::new(&format!("/proc/{pid}")).exists()
        {
            return Err(format!("There is no process {pid}; ps -e lists them."));
        }
        self.begin(&start).await?;
        let result = self.attach_in(&start, pid).await;
        self.begun(start, Origin::Attached, result).await
    }

    async fn attach_in(&mut self, start: &Start, pid: Option<i32>) -> Result<(), String> {
        if let Some(program) = &start.program {
            let path = locate(OsStr::new(program))?;
            self.symbols(&path).await?;
        }
        self.connect(start).await?;
        if let Some(pid) = pid {
            self.mi(&format!("-target-attach {pid}")).await?;
        }
        // A server may have no program yet.
        let groups = self.mi("-list-thread-groups").await?;
        let here = groups.tuples("groups").find_map(|g| g.number("pid"));
        match here {
            Some(pid) => self.began(pid as i32).await,
            None => return Err("The server has no program: name one with \"program\" and \"request\": \"launch\", or a \"pid\".".into()),
        }
        self.first_stop().await
    }

    // ---- GDB and the server ----

    async fn begin(&mut self, start: &Start) -> Result<(), String> {
        if self.gdb.is_some() {
            return Err(
                "This session has a program already; use restart, or another session.".into(),
            );
        }
        let (placement, backend) = (start.placement.as_deref(), start.backend.as_deref());
        (self.program.backend, self.program.settings) = BackEnd::choose(placement, backend, false)?;
        self.program.check = start.check.options()?;
        self.program.blame = start.blame;
        let checks = self.program.check.is_some();
        if checks && self.program.backend.is_some() {
            return Err("The heap is checked in programs of this machine: leave \"backend\" out, or \"check\".".into());
        }
        if checks && start.address.is_some() {
            return Err("Whether heaps are checked is up to the server at \"address\": start it with --check, and leave \"check\" out.".into());
        }
        if start.blame && (self.program.backend.is_some() || start.address.is_some()) {
            return Err("Last writers are recorded in programs that ulpf starts or attaches to on this machine: leave \"blame\" out; with \"address\", start the server with --blame.".into());
        }
        let name = start.gdb.as_deref().unwrap_or("gdb");
        let path = if name.contains('/') {
            Some(PathBuf::from(name))
        } else {
            find(name)
        };
        let path = path.ok_or("There is no gdb in PATH. Install it (Debian, Ubuntu: apt install gdb), or set \"gdb\" to its path.")?;
        self.program.prepare()?;
        let plugin = ulpf_server::plugin::write(&self.program.file("plugin")?)
            .map_err(|e| format!("The plugin for gdb cannot be written: {e}."))?;
        let mut args: Vec<OsString> = start.gdb_args.iter().map(OsString::from).collect();
        let sysroot = start.sysroot.as_deref().unwrap_or("/");
        for setting in [
            "set pagination off".to_string(),
            "set confirm off".into(),
            format!("set sysroot {sysroot}"),
            // Always UTF-8, because the adapter expects it; the locale's default may differ.
            "set host-charset UTF-8".into(),
            format!("source {}", plugin.display()),
        ] {
            args.extend(["-iex".into(), setting.into()]);
        }
        let gdb = Gdb::start(&path, &args, None)?;
        self.client
            .shared
            .gdb
            .store(0, std::sync::atomic::Ordering::Release);
        self.gdb = Some(gdb);
        self.told_of_gdb = false;
        self.groups.clear();
        self.start = Some(start.clone());
        let mut result = Ok(());
        for command in [
            "-gdb-set mi-async on",
            "-gdb-set pagination off",
            "-gdb-set confirm off",
            "-gdb-set width 0",
            "-gdb-set height 0",
            "-gdb-set breakpoint pending on",
            "-gdb-set print thread-events off",
            "-gdb-set startup-with-shell on",
            "-enable-pretty-printing",
        ] {
            result = result.and(self.mi(command).await.map(drop));
        }
        for (from, to) in &start.source_map {
            let command = format!("set substitute-path {} {}", quote(from), quote(to));
            result = result.and(self.console(&command).await.map(drop));
        }
        for command in &start.init_commands {
            result = result.and(self.user_command(command).await);
        }
        if result.is_err() {
            self.abandon().await;
        }
        result
    }

    /// Runs a command of the configuration.
    async fn user_command(&mut self, command: &str) -> Result<(), String> {
        let said = self
            .console(command)
            .await
            .map_err(|e| format!("{command}: {e}"))?;
        self.client.output("console", &said).await;
        Ok(())
    }

    async fn symbols(&mut self, path: &Path) -> Result<(), String> {
        let path = path.to_string_lossy();
        self.mi(&format!("-file-exec-and-symbols {}", quote(&path)))
            .await
            .map_err(|e| format!("gdb cannot use {path}: {e}."))?;
        Ok(())
    }

    /// Connects to the server of the configuration, or to one of our own.
    async fn connect(&mut self, start: &Start) -> Result<(), String> {
        let console = start.console.as_deref().unwrap_or("internalConsole");
        let to = match &start.address {
            Some(address) => address.clone(),
            None if console != "internalConsole" && self.asked.supportsRunInTerminalRequest => {
                self.server_in_terminal(console, start).await?
            }
            None => self.program.serve()?.to_string_lossy().into_owned(),
        };
        // GDB would wait for a host that does not answer.
        self.console("set tcp connect-timeout 10").await?;
        self.mi(&format!("-target-select extended-remote {to}"))
            .await
            .map_err(|e| format!("There is no connection to {to}: {e}. Start `ulpf server --multi {to}`, or look at \"address\"."))?;
        Ok(())
    }

    /// The program gets a terminal of the client: the server is started there.
    async fn server_in_terminal(&mut self, console: &str, start: &Start) -> Result<String, String> {
        let socket = self.program.file("gdb")?;
        let ulpf = std::env::current_exe().map_err(|e| format!("Who am I? {e}."))?;
        let kind = console.trim_end_matches("Terminal");
        let mut words = vec![
            ulpf.to_string_lossy().into_owned(),
            "server".into(),
            "--backend".into(),
            start.backend.clone().unwrap_or_else(|| "auto".into()),
            "--multi".into(),
            "--once".into(),
        ];
        words.extend(start.check.words());
        words.extend(start.blame.then(|| "--blame".to_string()));
        words.push(socket.to_string_lossy().into_owned());
        let cwd = start.cwd.clone().unwrap_or_else(|| ".".into());
        self.client
            .ask(
                "runInTerminal",
                json!({"kind": kind, "title": "ulpf", "cwd": cwd, "args": words}),
            )
            .await;
        for _ in 0..200 {
            if socket.exists() {
                return Ok(socket.to_string_lossy().into_owned());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Err("The client has opened no terminal for the program; set \"console\" to \"internalConsole\".".into())
    }

    /// Waits for the program's first stop.
    async fn first_stop(&mut self) -> Result<(), String> {
        let gdb = self.gdb()?;
        let mut other = Vec::new();
        let end = tokio::time::Instant::now() + BEGIN;
        let result = loop {
            match tokio::time::timeout_at(end, gdb.event()).await {
                Ok(Some(Record::Async('*', class, fields))) if class == "stopped" => {
                    break match fields.text("reason").starts_with("exited") {
                        true => Err("The program has ended before it began.".to_string()),
                        false => Ok(fields.number("thread-id").unwrap_or(1)),
                    };
                }
                Ok(Some(Record::Async('*', class, _))) if class == "running" => {}
                Ok(Some(record)) => other.push(record),
                Ok(None) => break Err("gdb has ended.".into()),
                Err(_) => break Err("The program does not come to rest.".into()),
            }
        };
        for record in other.into_iter().rev() {
            gdb.again(record);
        }
        self.thread = result?;
        self.state = State::Stopped;
        Ok(())
    }

    /// GDB has a process.
    pub async fn began(&mut self, pid: i32) {
        if self.program.pid.replace(pid) == Some(pid) {
            return;
        }
        self.feed.forget();
        let start = self.start.as_ref();
        let name = start.and_then(|s| s.program.clone()).unwrap_or_default();
        let method = match start {
            Some(s) if s.pid.is_some() || s.program.is_none() => "attach",
            _ => "launch",
        };
        let local = start.is_none_or(|s| s.address.is_none());
        self.client
            .event(
                "process",
                json!({"name": name, "systemProcessId": pid, "isLocalProcess": local, "startMethod": method, "pointerSize": 64}),
            )
            .await;
    }

    async fn begun(&mut self, start: Start, origin: Origin, result: Result<(), String>) -> Answer {
        self.program.origin = origin;
        if let Err(why) = result {
            self.abandon().await;
            return Err(why);
        }
        let help = self.console("monitor help").await.unwrap_or_default();
        if !help.contains("ulpf") {
            let text = "This is no ulpf server: data breakpoints do not work over it.\n";
            self.client.output("important", text).await;
        }
        for command in start.post_commands.clone() {
            if let Err(why) = self.user_command(&command).await {
                self.client.output("important", &format!("{why}\n")).await;
            }
        }
        Ok(Value::Null)
    }

    /// Cleans up after a failed start; the client may try again.
    async fn abandon(&mut self) {
        self.end(Some(true)).await;
        self.program = Default::default();
        self.state = State::None;
    }

    pub async fn configuration_done(&mut self) -> Answer {
        self.need_rest()?;
        self.configuring = false;
        self.let_go().await?;
        Ok(Value::Null)
    }

    /// Continues from the first stop to the place where the client wants the program.
    async fn let_go(&mut self) -> Result<(), String> {
        let entry = self.start.as_ref().is_some_and(|s| s.stop_on_entry);
        if self.program.origin == Origin::Launched {
            // Also for data breakpoints whose memory needs the libraries.
            if entry || self.data.waits() {
                self.breakpoints.entry = match self.mi("-break-insert -t -h main").await {
                    Ok(answer) => answer.fields("bkpt").and_then(|b| b.number("number")),
                    Err(_) => None,
                };
            }
            if self.breakpoints.entry.is_none() && entry {
                self.tell_stop("entry", json!({})).await;
                return Ok(());
            }
        } else if entry {
            self.tell_stop("entry", json!({})).await;
            return Ok(());
        }
        self.resume("-exec-continue").await
    }

    pub async fn restart(&mut self, restart: Restart) -> Answer {
        if self.program.origin != Origin::Launched {
            return Err(
                "Only a program that was launched can be started again; this one was attached to."
                    .into(),
            );
        }
        self.stop_program().await?;
        if self.state == State::Stopped {
            self.console("kill").await?;
        }
        self.program.rest_of_output();
        self.forget_stop().await;
        if let Some(start) = restart.arguments {
            // GDB itself keeps its settings.
            self.surroundings(&start).await?;
            self.start = Some(start);
        }
        self.over = false;
        self.program.pid = None;
        self.start_program().await?;
        self.count_anew().await;
        self.let_go().await?;
        Ok(Value::Null)
    }

    /// Requests the program's end. For a second request, or a program that ignores it, the client uses `disconnect`.
    pub async fn terminate(&mut self) -> Answer {
        match self.state {
            State::None => {
                self.program_over().await;
                return Ok(Value::Null);
            }
            State::Running => {
                self.stop_program().await?;
            }
            State::Stopped => {}
        }
        self.console("handle SIGTERM nostop noprint pass").await?;
        self.resuming = true;
        self.console("signal SIGTERM").await?;
        Ok(Value::Null)
    }

    pub async fn disconnect(&mut self, how: Disconnect) -> Answer {
        self.end(how.terminateDebuggee).await;
        Ok(Value::Null)
    }

    /// Ends GDB; the program ends or continues.
    pub async fn end(&mut self, terminate: Option<bool>) {
        let kill = terminate.unwrap_or(self.program.origin != Origin::Attached);
        if let Some(gdb) = &self.gdb
            && !gdb.is_gone()
        {
            let stopped = self.state == State::None || self.stop_program().await.is_ok();
            if self.state == State::Stopped {
                let command = if kill { "kill" } else { "detach" };
                if let Err(why) = self.console(command).await {
                    self.client.output("important", &format!("{why}\n")).await;
                }
            }
            // On another machine, GDB's process number may be invented, or belong to another process here.
            if !stopped
                && kill
                && self.program.backend.is_none()
                && let Some(pid) = self.program.pid
            {
                let _ = sys::kill(pid, libc::SIGKILL);
            }
        }
        if let Some(gdb) = self.gdb.take() {
            gdb.end().await;
        }
        self.program.end().await;
        for (kind, text) in self.program.rest_of_output() {
            self.client.output(kind, &text).await;
        }
        self.state = State::None;
    }
}

/// Quotes a word for the shell that starts the program.
fn shell_word(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-./=:,+@%".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::shell_word;

    #[test]
    fn words_for_a_shell() {
        assert_eq!(shell_word("-v"), "-v");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_word("it's $HOME"), "'it'\\''s $HOME'");
    }
}
