//! The keeper (`keeper`) puts stubs into running programs, and knows which have one. When `ulpf` has ended, it takes the rest
//! of the stub out of them.
#![forbid(unsafe_code)]

use crate::attach;
use crate::keeper::{self, Handed};
use crate::remains::Remains;
use std::io::BufRead;
use std::time::Duration;
use ulpf_host::foreign::numbers::Process;
use ulpf_host::{process, sys};

/// A program with a stub inside.
struct Kept {
    process: Process,
    /// `None`: it has ended, or is not known.
    stub: Option<Process>,
    remains: Remains,
    /// How often it was tried.
    tries: u32,
}

impl Kept {
    /// Of the words of a line: the number of the process, the address of the boot block, and the number of the stub's task.
    fn of(mut words: std::str::SplitAsciiWhitespace<'_>) -> Option<Kept> {
        let mut word = || words.next();
        let process = Process::open(word()?.parse().ok()?).ok()?;
        let args = word()?.parse().ok()?;
        // The program can write where its stub has left this number.
        let stub = word()?.parse().ok().filter(|pid| *pid > 0);
        let stub = stub.and_then(|pid| Process::open(pid).ok());
        Some(Kept {
            stub: stub.filter(|stub| sys::same_memory(process.pid, stub.pid)),
            process,
            remains: Remains { args },
            tries: 0,
        })
    }

    /// Takes ours out of the program. `false`: it is too early.
    fn is_done(&mut self) -> bool {
        /// A thread of the program may stay in our code for long, in a system call that nothing interrupts.
        const TRIES: u32 = 20;
        if self.process.has_ended() {
            return true;
        }
        if self.stub.as_ref().is_some_and(|stub| !stub.has_ended()) {
            return false;
        }
        // Another program's memory has nothing of ours; a stub that was killed has left no list.
        let there = process::mapping(self.process.pid, "/memfd:ulpf-");
        if !there.is_ok_and(|found| found.is_some()) || !self.remains.are_listed(&self.process) {
            return true;
        }
        // A vfork child runs in the same memory, or the stub of another `ulpf`.
        if process::shares_memory(self.process.pid).is_some() {
            return false;
        }
        self.tries += 1;
        self.remains.take_away_now(&self.process).is_ok() || self.tries >= TRIES
    }
}

/// Of the words of a line: the number of a process, and the boot flags.
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

fn note(all: &mut Vec<Kept>, line: &str) {
    all.retain(|kept| !kept.process.has_ended());
    let mut words = line.split_ascii_whitespace();
    let sign = words.next();
    let pid = words.clone().next().and_then(|word| word.parse().ok());
    all.retain(|kept| Some(kept.process.pid) != pid);
    if sign == Some("+") {
        all.extend(Kept::of(words));
    }
}

/// The keeper: listens on standard input until `ulpf` ends. The exit status.
pub fn main() -> i32 {
    /// How often it looks: at first, and in the long run.
    const SOON: Duration = Duration::from_millis(5);
    const LATER: Duration = Duration::from_secs(1);
    // Executed by way of /proc, it would be called "exe" there.
    let _ = std::fs::write("/proc/self/comm", "ulpf-keeper");
    keeper::is_here();
    let mut all: Vec<Kept> = Vec::new();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let mut words = line.split_ascii_whitespace();
        if words.next() == Some("inject") {
            let handed = inject(words);
            // (To nobody: the stub finds its channel closed.)
            let _ = keeper::send(std::io::stdin(), handed);
            let told = keeper::told_here();
            told.iter().for_each(|line| note(&mut all, line));
        } else {
            note(&mut all, &line);
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
