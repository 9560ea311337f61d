//! The real GDB as a child process, controlled through MI.
//!
//! One task sends a command and waits for its answer. Other records (stops, threads, text) are kept in order until they
//! are read. A second task reads lines, so that GDB never blocks on its output.

pub mod parse;

use parse::{Fields, Record, quote};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

/// Time limit for an answer of GDB. A server that hangs is noticed earlier, by its watchdog.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Why a command has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// GDB's own message.
    #[error("{0}")]
    Refused(String),
    #[error("gdb has ended; start the session again")]
    Gone,
    #[error("gdb has not answered for {} s; end the session, or wait and try again", TIMEOUT.as_secs())]
    Late,
}

pub struct Gdb {
    child: Child,
    stdin: ChildStdin,
    records: mpsc::UnboundedReceiver<Record>,
    token: u64,
    /// Records that came while an answer was awaited.
    waiting: VecDeque<Record>,
    pub pid: i32,
    gone: bool,
}

impl Gdb {
    pub fn start(gdb: &Path, args: &[OsString], dir: Option<&Path>) -> Result<Gdb, String> {
        let mut command = Command::new(gdb);
        command
            .args(["-q", "--interpreter=mi3"])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            // Ctrl-C at a terminal should reach the adapter only.
            .process_group(0);
        if let Some(dir) = dir {
            command.current_dir(dir);
        }
        let mut child = command
            .spawn()
            .map_err(|e| format!("{} cannot be started: {e}. Install gdb (Debian, Ubuntu: apt install gdb), or set \"gdb\" to its path.", gdb.display()))?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err("gdb has no pipes.".into());
        };
        let (sender, records) = mpsc::unbounded_channel();
        let complaints = sender.clone();
        tokio::spawn(lines(stdout, move |line| {
            sender.send(parse::line(line)).is_ok()
        }));
        // Python's tracebacks, messages of the dynamic loader.
        tokio::spawn(lines(stderr, move |line| {
            let text = String::from_utf8_lossy(line).into_owned() + "\n";
            complaints.send(Record::Stream('&', text)).is_ok()
        }));
        let pid = child.id().unwrap_or(0) as i32;
        Ok(Gdb {
            child,
            stdin,
            records,
            token: 0,
            waiting: VecDeque::new(),
            pid,
            gone: false,
        })
    }

    /// Sends an MI command (without a token) and waits for its answer.
    pub async fn command(&mut self, command: &str) -> Result<Fields, Error> {
        self.command_for(command, TIMEOUT).await
    }

    pub async fn command_for(&mut self, command: &str, limit: Duration) -> Result<Fields, Error> {
        if self.gone {
            return Err(Error::Gone);
        }
        self.token += 1;
        let text = format!("{}{}\n", self.token, command.replace('\n', " "));
        let end = Instant::now() + limit;
        // A GDB that does not read must not block the adapter.
        match timeout_at(end, self.stdin.write_all(text.as_bytes())).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Error::Gone),
            Err(_) => return Err(Error::Late),
        }
        loop {
            let record = timeout_at(end, self.records.recv())
                .await
                .map_err(|_| Error::Late)?;
            match record {
                Some(Record::Answer(token, class, fields)) if token == Some(self.token) => {
                    return match class.as_str() {
                        "error" => Err(Error::Refused(fields.text("msg").to_string())),
                        _ => Ok(fields),
                    };
                }
                // An answer that came too late.
                Some(Record::Answer(..) | Record::Prompt) => {}
                Some(record) => self.waiting.push_back(record),
                None => {
                    self.gone = true;
                    return Err(Error::Gone);
                }
            }
        }
    }

    /// Runs a command of GDB's command line, and returns its output.
    pub async fn console(&mut self, command: &str) -> Result<String, Error> {
        let command = format!("-interpreter-exec console {}", quote(command));
        let (result, text) = self.command_and_text(&command).await;
        result.map(|_| text)
    }

    /// Runs an MI command. Returns its answer and the text printed meanwhile.
    pub async fn command_and_text(&mut self, command: &str) -> (Result<Fields, Error>, String) {
        let before = self.waiting.len();
        let result = self.command(command).await;
        let mut text = String::new();
        let mut kept = VecDeque::with_capacity(before);
        for (n, record) in self.waiting.drain(..).enumerate() {
            match record {
                Record::Stream('~' | '@', said) if n >= before => text += &said,
                // An error message is repeated there.
                Record::Stream('&', said) if n >= before => {
                    if result.is_ok() {
                        text += &said;
                    }
                }
                other => kept.push_back(other),
            }
        }
        self.waiting = kept;
        (result, text)
    }

    /// The next unsolicited record, or `None` if GDB has ended. Cancel-safe.
    pub async fn event(&mut self) -> Option<Record> {
        if let Some(record) = self.waiting.pop_front() {
            return Some(record);
        }
        loop {
            match self.records.recv().await {
                Some(Record::Answer(..) | Record::Prompt) => {}
                Some(record) => return Some(record),
                None => {
                    self.gone = true;
                    return None;
                }
            }
        }
    }

    /// Puts a record of `event` back.
    pub fn again(&mut self, record: Record) {
        self.waiting.push_front(record);
    }

    /// Whether records are waiting.
    pub fn has_event(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Ends GDB; kills it if it does not exit.
    pub async fn end(mut self) {
        let _ = self.command_for("-gdb-exit", Duration::from_secs(3)).await;
        let wait = tokio::time::timeout(Duration::from_secs(3), self.child.wait());
        if wait.await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}

async fn lines(source: impl tokio::io::AsyncRead + Unpin, mut take: impl FnMut(&[u8]) -> bool) {
    let mut source = BufReader::new(source);
    let mut line = Vec::new();
    loop {
        line.clear();
        match source.read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if !take(&line) {
            return;
        }
    }
}
