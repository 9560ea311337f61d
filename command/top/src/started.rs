//! A program started by `ulpf top` as a child of `ulpf run`. The output of both is read at once, and the newest lines
//! are kept in memory. So a slow terminal or a full log disk does not affect the program.

use anyhow::{Context, Result, bail};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use ulpf_area::sessions::{self, Watched, Whose};
use ulpf_host::foreign::numbers::Process;
use ulpf_host::foreign::text::Bytes;
use ulpf_host::{process, sys};

const LINES: usize = 200;
/// Time limit for reading symbols and setting watches.
const TIMEOUT: Duration = Duration::from_secs(60);

pub struct Started {
    child: Child,
    process: Process,
    said: Arc<Mutex<VecDeque<String>>>,
    readers: Vec<std::thread::JoinHandle<()>>,
    pub status: Option<ExitStatus>,
}

impl Started {
    /// Starts the program. Returns when its watches are set, before it has run.
    pub fn start(
        watches: &[String],
        more: &[String],
        command: &[OsString],
    ) -> Result<(Started, Option<Watched>)> {
        let ulpf = std::env::current_exe().context("cannot find ulpf itself")?;
        let mut run = Command::new(ulpf);
        run.args(["run", "--held", "--log", "/dev/null", "--no-summary"]);
        for watch in watches {
            run.args(["--watch", watch]);
        }
        run.args(more).arg("--").args(command);
        run.stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = run.spawn().context("cannot start `ulpf run`")?;
        let process = Process::open(child.id() as i32)
            .inspect_err(|_| drop(child.kill()))
            .context("cannot watch `ulpf run`")?;
        let said = Arc::new(Mutex::new(VecDeque::new()));
        let mut readers = Vec::new();
        if let Some(out) = child.stdout.take() {
            readers.push(keep(out, said.clone()));
        }
        if let Some(err) = child.stderr.take() {
            readers.push(keep(err, said.clone()));
        }
        let mut started = Started {
            child,
            process,
            said,
            readers,
            status: None,
        };
        let session = started.held()?;
        Ok((started, session))
    }

    /// Waits until `ulpf run` stops itself, so that no hit is missed.
    fn held(&mut self) -> Result<Option<Watched>> {
        let pid = self.process.pid;
        let late = Instant::now() + TIMEOUT;
        loop {
            if self.ended() {
                return Ok(None);
            }
            if process::Status::of(pid).is_ok_and(|s| s.state() == 'T') {
                let found =
                    sessions::find(Some(pid), Whose::Own).context("cannot look at processes")?;
                return Ok(found.list.into_iter().next());
            }
            if Instant::now() > late {
                self.end();
                bail!(
                    "the program's watches were not set within {} s",
                    TIMEOUT.as_secs()
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Lets the program run. It may end at once, so the caller must have read what it needs.
    pub fn go(&self) -> Result<()> {
        self.process
            .signal(libc::SIGCONT)
            .context("cannot let the program run")
    }

    /// The process of `ulpf run`.
    pub fn process(&self) -> Process {
        self.process.clone()
    }

    /// Whether `ulpf run` has ended, and thus the program.
    pub fn ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
            if self.status.is_some() {
                // Wait for the rest of the output, unless another process has inherited the pipe.
                let late = Instant::now() + Duration::from_millis(200);
                while self.readers.iter().any(|r| !r.is_finished()) && Instant::now() < late {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        self.status.is_some()
    }

    /// The last `most` lines of output.
    pub fn said(&self, most: usize) -> Vec<String> {
        let said = self.said.lock();
        let lines = said.map(|l| l.iter().rev().take(most).cloned().collect::<Vec<_>>());
        let mut lines = lines.unwrap_or_default();
        lines.reverse();
        lines
    }

    /// Ends the program together with `ulpf top`.
    pub fn end(&mut self) {
        end(&self.process());
        self.ended();
    }
}

/// Ends `ulpf run`, a child of ours, and its program.
pub fn end(run: &Process) {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        if run.has_ended() {
            return;
        }
        if signal == libc::SIGKILL {
            // The program ignores SIGTERM. After SIGKILL, `ulpf run` could no longer end it.
            for program in children(run.pid) {
                let _ = sys::kill(program, signal);
            }
        }
        let _ = run.signal(signal);
        let _ = run.signal(libc::SIGCONT);
        let late = Instant::now() + Duration::from_secs(2);
        while !run.has_ended() && Instant::now() < late {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.end();
    }
}

fn children(parent: i32) -> Vec<i32> {
    let of = |pid: &i32| process::Status::of(*pid).is_ok_and(|s| s.parent() == Some(parent));
    let all = process::all().unwrap_or_default();
    all.into_iter().filter(of).collect()
}

fn keep(
    from: impl Read + Send + 'static,
    to: Arc<Mutex<VecDeque<String>>>,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            // Limit the length: a program may write for ever without a line end.
            match (&mut from).take(4096).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            let text = Bytes(line.trim_ascii_end()).to_string();
            if let Ok(mut to) = to.lock() {
                if to.len() >= LINES {
                    to.pop_front();
                }
                to.push_back(text);
            }
        }
    })
}
