//! The process of `keeper`. It injects stubs into running programs, and lists the programs that have one. It removes the
//! stubs' remains on request, and when `ulpf` has ended.
#![forbid(unsafe_code)]

use crate::attach;
use crate::keeper::{self, Handed};
use crate::remains::Remains;
use rustix::net::{SendFlags, send};
use std::io::BufRead;
use std::time::Duration;
use ulpf_host::foreign::numbers::Process;
use ulpf_host::{process, programs, sys};

/// A program with a stub inside, or on its way there.
struct Kept {
    process: Process,
    /// `None` if it has ended or is unknown.
    stub: Option<Process>,
    /// `None` until the stub is known to be complete.
    remains: Option<Remains>,
    /// Number of attempts to remove the remains.
    tries: u32,
}

impl Kept {
    /// Parses a line: number of the process, and of a complete stub address of the boot block, number of the task.
    fn of(mut words: std::str::SplitAsciiWhitespace<'_>) -> Option<Kept> {
        let mut word = || words.next();
        let process = Process::open(word()?.parse().ok()?).ok()?;
        let mut kept = Kept {
            process,
            stub: None,
            remains: None,
            tries: 0,
        };
        if let (Some(args), Some(stub)) = (word(), word()) {
            let args = args.parse().ok()?;
            kept.is_complete(Remains { args }, stub.parse().ok());
        }
        Some(kept)
    }

    /// The stub is there. The program can overwrite the number of the task.
    fn is_complete(&mut self, remains: Remains, stub: Option<i32>) {
        let stub = stub.filter(|pid| *pid > 0);
        let stub = stub.and_then(|pid| Process::open(pid).ok());
        self.stub = stub.filter(|stub| sys::same_memory(self.process.pid, stub.pid));
        self.remains = Some(remains);
    }

    /// Looks for the stub that was being put in. `false` as long as something of it is there.
    fn is_nothing(&mut self) -> bool {
        /// Its first calls leave nothing by which it is known.
        const LEAST: u32 = 3;
        const TRIES: u32 = 40;
        self.tries += 1;
        let found = Remains::find(&self.process);
        let Some(remains) = found.first() else {
            return self.tries >= LEAST;
        };
        if let Some(stub) = remains.task(&self.process) {
            self.tries = 0;
            self.is_complete(*remains, Some(stub));
            return false;
        }
        remains.unload(&self.process).is_ok() || self.tries >= TRIES
    }

    /// Tries to remove the remains. `false` if it is too early.
    fn is_done(&mut self) -> bool {
        /// A thread of the program may stay in our code for long, in an uninterruptible system call.
        const TRIES: u32 = 20;
        if self.process.has_ended() {
            return true;
        }
        let Some(remains) = self.remains else {
            return self.is_nothing();
        };
        if self.stub.as_ref().is_some_and(|stub| !stub.has_ended()) {
            return false;
        }
        // After exec, the memory has nothing of ours. A stub that was killed has left no list.
        let there = process::mapping(self.process.pid, "/memfd:ulpf-");
        if !there.is_ok_and(|found| found.is_some()) || !remains.are_listed(&self.process) {
            return true;
        }
        // A vfork child, or the stub of another `ulpf`, runs in the same memory.
        if process::shares_memory(self.process.pid).is_some() {
            return false;
        }
        self.tries += 1;
        remains.take_away_now(&self.process).is_ok() || self.tries >= TRIES
    }
}

/// Parses a line: number of a process, boot flags. Injects the stub.
fn inject(mut words: std::str::SplitAsciiWhitespace<'_>) -> Option<Handed> {
    let pid = words.next()?.parse().ok()?;
    let flags = words.next()?.parse().ok()?;
    let loaded = attach::inject(&Process::open(pid).ok()?, flags).ok()?;
    Some(Handed {
        stub_pid: loaded.stub_pid,
        args: loaded.remains.args,
        control: loaded.control,
        shared: loaded.shared,
    })
}

/// Parses a line: number of a process. Removes the remains from it, and returns the answer.
fn take(all: &[Kept], mut words: std::str::SplitAsciiWhitespace<'_>) -> &'static str {
    let pid = words.next().and_then(|word| word.parse().ok());
    let kept = all.iter().find(|kept| Some(kept.process.pid) == pid);
    let known = kept.and_then(|kept| Some((kept, kept.remains?)));
    let Some((kept, remains)) = known else {
        return keeper::UNKNOWN;
    };
    match remains.take_away_now(&kept.process) {
        Ok(()) => keeper::DONE,
        Err(_) => keeper::FAILED,
    }
}

fn note(all: &mut Vec<Kept>, line: &str) {
    all.retain(|kept| !kept.process.has_ended());
    let mut words = line.split_ascii_whitespace();
    let sign = words.next();
    let pid = words.clone().next().and_then(|word| word.parse().ok());
    all.retain(|kept| Some(kept.process.pid) != pid);
    if matches!(sign, Some("+" | "~")) {
        all.extend(Kept::of(words));
    }
}

/// Runs the keeper: reads standard input until `ulpf` ends. Returns the exit status.
pub fn main() -> i32 {
    /// Interval of the attempts: at first, and later.
    const SOON: Duration = Duration::from_millis(5);
    const LATER: Duration = Duration::from_secs(1);
    programs::name_helper(keeper::NAME);
    keeper::is_here();
    let mut all: Vec<Kept> = Vec::new();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("inject") => {
                let handed = inject(words);
                // (If `ulpf` has ended, this fails, and the stub finds its channel closed.)
                let _ = keeper::send(std::io::stdin(), handed);
                let lines = keeper::lines_here();
                lines.iter().for_each(|line| note(&mut all, line));
            }
            Some("take") => {
                let answer = format!("{}\n", take(&all, words));
                let _ = send(std::io::stdin(), answer.as_bytes(), SendFlags::NOSIGNAL);
            }
            _ => note(&mut all, &line),
        }
    }
    let mut pause = SOON;
    loop {
        all.retain_mut(|kept| !kept.is_done());
        if all.is_empty() {
            return 0;
        }
        std::thread::sleep(pause);
        pause = (pause * 11 / 10).min(LATER);
    }
}
