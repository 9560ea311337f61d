//! `ulpf check`: reports errors of the program's heap, for people and programs. The stub finds them
//! (`stub/handlers/src/check`), and records them in the shared area. The program can write to that, so the records are
//! not trusted.

mod book;
mod sarif;
mod sink;
mod xml;

use super::events::Event;
use super::life::Life;
use super::options::Check;
use book::{Book, SumLine};
use sarif::Sarif;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::mpsc::Sender;
use std::time::Duration;
use ulpf_heap::before;
use ulpf_heap::error::Error;
use ulpf_heap::functions;
use ulpf_heap::sums::NO_ALLOCATOR;
use ulpf_host::foreign::numbers::Process;
use ulpf_host::foreign::text::{Text, path};
use ulpf_host::process;
use ulpf_host::say::json;
use ulpf_host::say::say;
use ulpf_lib::command::HeapFunction;
use ulpf_lib::ring::Unpatched;
use ulpf_lib::ring::findings::{Findings, Report, UNREPLACED, Wrong};
use ulpf_session::words::count;
use xml::Xml;

/// Interval of the checks for new findings; `SHORT_TICK` if the first error ends the program.
const TICK: Duration = Duration::from_millis(50);
const SHORT_TICK: Duration = Duration::from_millis(2);
/// Default exit status after the first error.
const ENDED: i32 = 1;
const SIGKILL: i32 = 9;
const WHAT_TO_DO: &str = "say how its functions are called, or where they are: --allocator malloc=my_malloc,free=FILE+0x41c910";

/// Asks the log for new findings until the log has ended.
pub fn tick(check: &Check, events: Sender<Event>) {
    let tick = if check.first { SHORT_TICK } else { TICK };
    std::thread::spawn(move || {
        while events.send(Event::Look).is_ok() {
            std::thread::sleep(tick);
        }
    });
}

/// Functions of the program that its stub needs and has not received yet.
pub fn functions(life: &mut Life, check: &Check) -> Vec<HeapFunction> {
    let (all, _) = functions::find(&life.program, &check.allocator);
    // (An unloaded library may come again.)
    let starts: Vec<u64> = all.iter().map(|f| f.start).collect();
    let before = std::mem::replace(&mut life.served, starts);
    let known = |f: &HeapFunction| before.contains(&f.start);
    all.into_iter().filter(|f| !known(f)).collect()
}

/// Reports the findings.
pub struct Reporter {
    check: Check,
    file: Option<File>,
    xml: Option<Xml>,
    sarif: Option<Sarif>,
    /// Findings of each process, by the number of its life.
    books: Vec<Book>,
    /// Number of reports that have been read, of all processes; `shown` counts those that were reported as text.
    numbers: usize,
    shown: usize,
    /// The processes, the first one first, if the first error ends them.
    ends: Vec<Process>,
    /// The first error has occurred.
    is_over: bool,
    /// The first process ends for that reason, as far as we know: see [`Reporter::end`].
    killed: bool,
}

impl Reporter {
    /// `process`: the first one.
    pub fn new(check: Check, process: Process) -> Reporter {
        let file = check.log.as_ref().and_then(|log| {
            let file = File::create(log);
            if let Err(error) = &file {
                say!(
                    "cannot write {}: {error}; what is found goes to standard error",
                    path(log)
                );
            }
            file.ok()
        });
        let sarif = check
            .sarif
            .clone()
            .map(|file| Sarif::new(file, &check.command));
        Reporter {
            ends: Vec::from_iter(Some(process).filter(|_| check.first)),
            check,
            file,
            xml: None,
            sarif,
            books: Vec::new(),
            numbers: 0,
            shown: 0,
            is_over: false,
            killed: false,
        }
    }

    /// The program starts: reports if no errors can be found. `more`: the stub is about to receive functions.
    pub fn begin(&mut self, life: &mut Life, more: bool) {
        let allocator = self.check.allocator.clone();
        let (found, missing) = functions::find(&life.program, &allocator);
        life.served = found.iter().map(|f| f.start).collect();
        // (Other programs need not have the functions of the first one.)
        let is_first = self.books.is_empty();
        for one in missing.into_iter().filter(|_| is_first) {
            let later = match life.program.static_executable() {
                Some(_) => "",
                None => "; it is looked for in each library that is loaded later",
            };
            self.notice(
                life,
                &format!(
                    "--allocator: the program has no function {}{later}",
                    Text(&one.function)
                ),
            );
        }
        let unreplaced = life.shared.findings().unreplaced.load(Relaxed) != 0;
        if !unreplaced && let Some(text) = before::text(life.shared.findings()) {
            self.notice(life, &text);
        }
        if !more && !unreplaced && life.shared.findings().functions.load(Relaxed) == 0 {
            let text = format!("nothing is checked: {NO_ALLOCATOR}; {WHAT_TO_DO}");
            self.notice(life, &text);
        }
    }

    fn notice(&mut self, life: &Life, text: &str) {
        let text = match self.check.json {
            true => json::line(&Notice {
                r#type: "notice",
                pid: self.check.follow.then_some(life.pid),
                text,
            }),
            false => format!("ulpf: {}{text}\n", self.who(life)),
        };
        self.put(&text);
    }

    /// Prefix that names the process, if there are several.
    fn who(&self, life: &Life) -> String {
        match self.check.follow {
            true => format!("process {} ({}): ", life.pid, Text(&life.name())),
            false => String::new(),
        }
    }

    /// Reports new findings.
    pub fn look(&mut self, lives: &mut [Life]) {
        if let (Some(file), Some(first)) = (self.check.xml.take(), lives.first()) {
            self.xml = Some(Xml::begin(file, first.pid, &self.check.command));
        }
        for (n, life) in lives.iter_mut().enumerate() {
            self.look_at(n, life);
        }
    }

    fn look_at(&mut self, n: usize, life: &mut Life) {
        if self.books.len() <= n {
            self.books.resize_with(n + 1, Book::default);
        }
        let shared = life.shared.clone();
        let findings = shared.findings();
        let unreplaced = findings.unreplaced.load(Relaxed);
        // (The stub has warned on standard error.)
        let is_elsewhere = self.check.json || self.file.is_some();
        if unreplaced != 0
            && !std::mem::replace(&mut self.books[n].unreplaced, true)
            && is_elsewhere
        {
            let whose = UNREPLACED.get(unreplaced as usize - 1);
            let whose = whose.unwrap_or(&"the program's allocator");
            let text = format!("the heap is not checked: ulpf cannot take the place of {whose}");
            self.notice(life, &text);
        }
        let new = findings.reports.iter().skip(self.books[n].reports.len());
        let new: Vec<&Report> = new.take_while(|r| r.published.load(Acquire) == 1).collect();
        if new.is_empty() {
            return;
        }
        life.refresh();
        for report in new {
            let by = self.report(report, n, life);
            self.books[n].reports.push((self.numbers, by));
            self.numbers += 1;
        }
    }

    /// Reports an error, or returns the suppression that hides it.
    fn report(&mut self, report: &Report, n: usize, life: &Life) -> Option<usize> {
        // (The program may have written anything there.)
        let wrong = Wrong::of(report.wrong.load(Relaxed))?;
        let number = self.numbers;
        let unsaid = wrong == Wrong::Reachable && !self.check.reachable;
        if unsaid && self.check.suppressions.is_empty() {
            // (These are not shown, and to resolve their places takes as long as many programs run.)
            let all = (report.count.load(Relaxed), report.len.load(Relaxed));
            self.books[n].sums.left(wrong, false, all);
            return None;
        }
        let program = &life.program;
        let mut error = Error::of(wrong, report, program);
        error.pid = self.check.follow.then_some(life.pid);
        error.who = self.who(life);
        let hidden = self.check.suppressions.find(&error.case());
        if wrong.is_leak() {
            let all = (error.count, error.len);
            self.books[n].sums.left(wrong, hidden.is_some(), all);
            if unsaid {
                return hidden;
            }
        }
        if let (Some(sarif), by) = (&mut self.sarif, hidden) {
            sarif.add(&error, number, by.map(|n| self.check.suppressions.name(n)));
        }
        if hidden.is_some() {
            return hidden;
        }
        let book = &mut self.books[n];
        book.reported = true;
        book.sums.count(wrong);
        if self.check.make {
            error.make_suppression();
        }
        if let Some(xml) = &mut self.xml {
            // (The first process is the last to report leaks.)
            xml.error(&error, number, n == 0);
        }
        self.shown += 1;
        let text = match self.check.json {
            true => error.json(),
            false => error.text(self.shown),
        };
        self.put(&text);
        if !wrong.is_leak() && self.check.first && !self.is_over {
            self.is_over = true;
            self.killed = self.ends.first().is_some_and(kill);
            self.ends
                .iter()
                .skip(1)
                .for_each(|process| _ = kill(process));
        }
        None
    }

    /// Adds a process to the check.
    pub fn comes(&mut self, process: Process) {
        if self.is_over {
            // (Its parent has been killed since.)
            kill(&process);
        } else if self.check.first {
            self.ends.push(process);
        }
    }

    fn put(&mut self, text: &str) {
        match &mut self.file {
            Some(file) => {
                if let Err(error) = file.write_all(text.as_bytes()) {
                    say!("the report is incomplete: {error}");
                    self.file = None;
                }
            }
            None => ulpf_host::say::put(text),
        }
    }

    /// Reports the totals when the program has ended, `by` that signal. Returns the exit status that the user wants for
    /// errors, if there were any.
    pub fn end(&mut self, lives: &mut [Life], by: Option<i32>) -> Option<i32> {
        self.look(lives);
        // (A program that had ended by itself shortly before is not killed by the signal.)
        self.killed &= by == Some(SIGKILL);
        let shared: Vec<_> = lives.iter().map(|life| life.shared.clone()).collect();
        let all: Vec<&Findings> = shared.iter().map(|shared| shared.findings()).collect();
        for (book, f) in self.books.iter_mut().zip(&all) {
            book.sums.add_unreported(f);
        }
        self.end_files(&all);
        let mut others = 0;
        for (n, (life, f)) in lives.iter().zip(&all).enumerate() {
            let who = self.who(life);
            let book = &self.books[n];
            let quiet = n > 0 && !book.reported && !self.check.verbose;
            let mut text = match self.check.json {
                true => json::line(&SumLine::of(f, book, self.check.follow.then_some(life.pid))),
                false if quiet => {
                    others += 1;
                    continue;
                }
                false => {
                    let goes_on = self.check.how.running && process::is_alive(life.pid);
                    book.summary(f, &self.check, &who, self.killed && n == 0, goes_on)
                }
            };
            if self.check.verbose {
                let used = used_by(&self.check, &[(book, *f)]);
                let used = used.into_iter().map(|(n, name)| {
                    format!("ulpf: {} suppressed by {}\n", count(n, "error"), Text(name))
                });
                text.extend(used);
                text.push_str(&cost(life));
            }
            self.put(&text);
        }
        if others > 0 {
            let text = format!(
                "ulpf: nothing was found in {} more\n",
                match others {
                    1 => "1 process".to_string(),
                    n => format!("{n} processes"),
                }
            );
            self.put(&text);
        }
        match self.check.first && self.books.iter().any(|book| book.sums.places > 0) {
            true => Some(self.check.status.unwrap_or(ENDED)),
            false => {
                let failed = self.books.iter().any(|book| book.sums.failed);
                self.check.status.filter(|_| failed)
            }
        }
    }

    /// Completes the files for other programs.
    fn end_files(&mut self, all: &[&Findings]) {
        let both: Vec<_> = self.books.iter().zip(all.iter().copied()).collect();
        // By their numbers: count, and whether the finding is reported.
        let mut counts = vec![(0, false); self.numbers];
        for (book, f) in &both {
            for (report, (number, by)) in f.reports.iter().zip(&book.reports) {
                let leak = Wrong::of(report.wrong.load(Relaxed)).is_none_or(Wrong::is_leak);
                counts[*number] = (report.count.load(Relaxed), by.is_none() && !leak);
            }
        }
        if let Some(xml) = &mut self.xml {
            let reported = counts
                .iter()
                .enumerate()
                .filter(|(_, (_, reported))| *reported);
            let used = used_by(&self.check, &both);
            xml.end(
                reported.map(|(n, (count, _))| (n, *count)),
                used.into_iter(),
            );
        }
        if let Some(sarif) = self.sarif.take() {
            sarif.end(&counts.iter().map(|c| c.0).collect::<Vec<_>>());
        }
    }
}

/// Kills a process at its first error. `false`: it has ended before, or it cannot be killed.
fn kill(process: &Process) -> bool {
    match process.signal(SIGKILL) {
        Ok(()) => return true,
        Err(_) if process.has_ended() => {}
        Err(error) => {
            say!("--exit-on-first-error: the program cannot be killed, and goes on: {error}")
        }
    }
    false
}

/// The suppressions that have hidden errors in these processes: number of errors, and name.
fn used_by<'a>(check: &'a Check, books: &[(&Book, &Findings)]) -> Vec<(u64, &'a str)> {
    let mut sums = std::collections::BTreeMap::<usize, u64>::new();
    for (book, f) in books {
        for (report, (_, by)) in f.reports.iter().zip(&book.reports) {
            if let Some(by) = by {
                let sum = sums.entry(*by).or_default();
                *sum = sum.saturating_add(report.count.load(Relaxed));
            }
        }
    }
    let all = sums.into_iter();
    all.map(|(by, n)| (n, check.suppressions.name(by)))
        .collect()
}

/// Cost of the check, apart from patched accesses.
fn cost(life: &Life) -> String {
    let header = life.shared.header();
    let mut out = String::new();
    let faults = header.faults.load(Relaxed);
    let slow = header.slow.load(Relaxed);
    let _ = writeln!(
        out,
        "ulpf: {}, {slow} of them on the slow path",
        count(faults, "fault")
    );
    for why in Unpatched::ALL {
        let n = header
            .unpatched
            .get(why as usize)
            .map_or(0, |n| n.load(Relaxed));
        if n > 0 {
            let _ = writeln!(out, "ulpf: {n:>12} {}", why.why());
        }
    }
    out
}

#[derive(Serialize)]
struct Notice<'a> {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    text: &'a str,
}
