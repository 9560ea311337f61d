//! `ulpf check`: what is wrong with the program's heap, for people and programs. The stub finds it
//! (`stub/handlers/src/check`), and notes it in the shared area, which is the program's to write: nothing there is more
//! than a claim.

pub mod functions;
mod sarif;
mod sink;
mod xml;

use super::events::Event;
use super::life::Life;
use super::options::Check;
use sarif::Sarif;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::mpsc::Sender;
use std::time::Duration;
use ulpf_heap::error::Error;
use ulpf_heap::sums::{Ended, NO_ALLOCATOR, Sums};
use ulpf_host::foreign::numbers::Process;
use ulpf_host::foreign::text::{Text, path};
use ulpf_lib::ring::Unpatched;
use ulpf_lib::ring::found::{Findings, Report, Wrong};
use ulpf_say::json;
use ulpf_say::say;
use ulpf_session::words::count;
use ulpf_symbols::Program;
use xml::Xml;

/// How often it is looked for news; and if the first error is the end.
const TICK: Duration = Duration::from_millis(50);
const SHORT_TICK: Duration = Duration::from_millis(2);
/// The exit status after the first error, if nobody has named one.
const ENDED: i32 = 1;
const SIGKILL: i32 = 9;
const NO_ALLOCATOR: &str = "the program has no function called malloc, or no symbols any more";
const WHAT_TO_DO: &str = "say how its functions are called, or where they are: --allocator malloc=my_malloc,free=FILE+0x41c910";

/// Asks the log to look for news, until nobody listens.
pub fn tick(check: &Check, events: Sender<Event>) {
    let tick = if check.first { SHORT_TICK } else { TICK };
    std::thread::spawn(move || {
        while events.send(Event::Look).is_ok() {
            std::thread::sleep(tick);
        }
    });
}

/// What has been found, as it is told.
pub struct Told {
    check: Check,
    file: Option<File>,
    xml: Option<Xml>,
    sarif: Option<Sarif>,
    /// Of each report that has been read, the suppression that hides it.
    reports: Vec<Option<usize>>,
    sums: Sums,
    /// The process, if it is to end at the first error and nobody has told it to so far.
    ends: Option<Process>,
    /// That is why it ends, as far as we know: see [`Told::end`].
    killed: bool,
}

impl Told {
    /// `process`: whose errors they are.
    pub fn new(check: Check, process: Process) -> Told {
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
        Told {
            ends: Some(process).filter(|_| check.first),
            check,
            file,
            xml: None,
            sarif,
            reports: Vec::new(),
            sums: Sums::default(),
            killed: false,
        }
    }

    /// The program begins: can anything be found?
    pub fn begin(&mut self, life: &mut Life) {
        let allocator = self.check.allocator.clone();
        let (found, missing) = functions::find(&life.program, &allocator);
        life.served = found.iter().map(|f| f.start).collect();
        for one in missing {
            let later = match life.program.static_executable() {
                Some(_) => "",
                None => "; it is looked for in each library that is loaded later",
            };
            self.notice(&format!(
                "--allocator: the program has no function {}{later}",
                Text(&one.function)
            ));
        }
        if life.shared.findings().functions.load(Relaxed) == 0 {
            self.notice(&format!("nothing is checked: {NO_ALLOCATOR}; {WHAT_TO_DO}"));
        }
    }

    fn notice(&mut self, text: &str) {
        let text = match self.check.json {
            true => json::line(&Notice {
                r#type: "notice",
                text,
            }),
            false => format!("ulpf: {text}\n"),
        };
        self.put(&text);
    }

    /// Tells what is new.
    pub fn look(&mut self, life: &mut Life) {
        if let Some(file) = self.check.xml.take() {
            self.xml = Some(Xml::begin(file, life.pid, &self.check.command));
        }
        let shared = life.shared.clone();
        let findings = shared.findings();
        let new = findings.reports.iter().skip(self.reports.len());
        let new: Vec<&Report> = new.take_while(|r| r.told.load(Acquire) == 1).collect();
        if new.is_empty() {
            return;
        }
        life.refresh();
        for report in new {
            let by = self.report(report, &life.program);
            self.reports.push(by);
        }
    }

    /// Tells of an error; the suppression that hides it instead.
    fn report(&mut self, report: &Report, program: &Program) -> Option<usize> {
        // (The program may have written anything there.)
        let wrong = Wrong::of(report.wrong.load(Relaxed))?;
        let number = self.reports.len();
        let mut error = Error::of(wrong, report, program);
        let hidden = self.check.suppressions.find(&error.case());
        if wrong.is_leak() {
            let all = (error.count, error.len);
            self.sums.left(wrong, hidden.is_some(), all);
            if wrong == Wrong::Reachable && !self.check.reachable {
                return hidden;
            }
        }
        if let (Some(sarif), by) = (&mut self.sarif, hidden) {
            sarif.add(&error, number, by.map(|n| self.check.suppressions.name(n)));
        }
        if hidden.is_some() {
            return hidden;
        }
        self.sums.told(wrong);
        if self.check.make {
            error.make_suppression();
        }
        if let Some(xml) = &mut self.xml {
            xml.error(&error, number);
        }
        let text = match self.check.json {
            true => error.json(),
            false => error.text(number + 1),
        };
        self.put(&text);
        if !wrong.is_leak()
            && let Some(process) = self.ends.take()
        {
            self.kill(&process);
        }
        None
    }

    /// Its first error was its last.
    fn kill(&mut self, process: &Process) {
        match process.signal(SIGKILL) {
            Ok(()) => self.killed = true,
            Err(_) if process.has_ended() => {}
            Err(error) => {
                say!("--exit-on-first-error: the program cannot be killed, and goes on: {error}")
            }
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
            None => ulpf_say::put(text),
        }
    }

    /// The program has ended, `by` that signal: all of it together. The exit status that was asked for, if there were
    /// errors.
    pub fn end(&mut self, life: &mut Life, by: Option<i32>) -> Option<i32> {
        self.look(life);
        // (Who had ended by itself shortly before notices no signal.)
        self.killed &= by == Some(SIGKILL);
        self.sums.add_untold(life.shared.clone().findings());
        let shared = life.shared.clone();
        let f = shared.findings();
        if let Some(xml) = &mut self.xml {
            let all = f.reports.iter().zip(&self.reports).enumerate();
            let count = |(n, (r, by)): (usize, (&Report, &Option<usize>))| {
                let leak = Wrong::of(r.wrong.load(Relaxed)).is_none_or(Wrong::is_leak);
                (by.is_none() && !leak).then(|| (n, r.count.load(Relaxed)))
            };
            xml.end(
                all.filter_map(count),
                used_by(&self.check, &self.reports, f),
            );
        }
        if let Some(sarif) = self.sarif.take() {
            let counts = f.reports.iter().map(|r| r.count.load(Relaxed));
            sarif.end(&counts.take(self.reports.len()).collect::<Vec<_>>());
        }
        let text = match self.check.json {
            true => json::line(&SumLine::of(f, self)),
            false => self.summary(f),
        };
        self.put(&text);
        if self.check.verbose {
            let used = used_by(&self.check, &self.reports, f);
            let used = used.map(|(n, name)| {
                format!("ulpf: {} suppressed by {}\n", count(n, "error"), Text(name))
            });
            let used: String = used.collect();
            self.put(&used);
            self.put(&cost(life));
        }
        match self.check.first && self.sums.places > 0 {
            true => Some(self.check.status.unwrap_or(ENDED)),
            false => self.check.status.filter(|_| self.sums.failed),
        }
    }

    /// Errors that are hidden, no leaks.
    fn suppressed(&self, f: &Findings) -> u64 {
        let all = f.reports.iter().zip(&self.reports);
        let hidden = all.filter(|(r, by)| {
            by.is_some() && Wrong::of(r.wrong.load(Relaxed)).is_some_and(|w| !w.is_leak())
        });
        hidden.fold(0, |n, (r, _)| n.saturating_add(r.count.load(Relaxed)))
    }

    fn summary(&self, f: &Findings) -> String {
        let how = Ended {
            suppressed: self.suppressed(f),
            killed: self.killed,
            leaks: self.check.how.leaks,
            reachable: self.check.reachable,
            command_line: true,
        };
        self.sums.text(f, how)
    }
}

/// The suppressions that have hidden something: how many errors, and their names.
fn used_by<'a>(
    check: &'a Check,
    reports: &[Option<usize>],
    f: &Findings,
) -> impl Iterator<Item = (u64, &'a str)> {
    let mut sums = std::collections::BTreeMap::<usize, u64>::new();
    for (report, by) in f.reports.iter().zip(reports) {
        if let Some(by) = by {
            let sum = sums.entry(*by).or_default();
            *sum = sum.saturating_add(report.count.load(Relaxed));
        }
    }
    sums.into_iter()
        .map(|(by, n)| (n, check.suppressions.name(by)))
}

/// What the check has cost, beside patched accesses.
fn cost(life: &Life) -> String {
    let header = life.shared.header();
    let mut out = String::new();
    let faults = header.faults.load(Relaxed);
    let slow = header.slow.load(Relaxed);
    let _ = writeln!(
        out,
        "ulpf: {}, {slow} of them the slow way",
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
    text: &'a str,
}

#[derive(Serialize)]
struct SumLine {
    r#type: &'static str,
    errors: u64,
    untold: u64,
    suppressed: u64,
    allocated: u64,
    freed: u64,
    most: u64,
    searched: bool,
    lost: (u64, u64),
    indirectly_lost: (u64, u64),
    possibly_lost: (u64, u64),
    reachable: (u64, u64),
    suppressed_blocks: (u64, u64),
}

impl SumLine {
    fn of(f: &Findings, told: &Told) -> SumLine {
        let get = |n: &std::sync::atomic::AtomicU64| n.load(Relaxed);
        SumLine {
            r#type: "heap",
            errors: get(&f.errors).saturating_sub(told.suppressed(f)),
            untold: get(&f.untold),
            suppressed: told.suppressed(f),
            allocated: get(&f.allocated),
            freed: get(&f.freed),
            most: get(&f.most),
            searched: f.searched.load(Relaxed) != 0,
            lost: told.sums.lost.lost,
            indirectly_lost: told.sums.lost.with,
            possibly_lost: told.sums.lost.perhaps,
            reachable: told.sums.lost.reachable,
            suppressed_blocks: told.sums.lost.suppressed,
        }
    }
}
