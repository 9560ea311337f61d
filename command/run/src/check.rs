//! `ulpf check`: what is wrong with the program's heap, for people and programs. The stub finds it
//! (`stub/handlers/src/check`), and notes it in the shared area, which is the program's to write: nothing there is more
//! than a claim.

use super::events::Event;
use super::life::Life;
use super::options::Check;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::rc::Rc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::mpsc::Sender;
use std::time::Duration;
use ulpf_lib::ring::Unpatched;
use ulpf_lib::ring::found::{By, Findings, Report, Trace, Wrong};
use ulpf_lib::{AccessKind, syscalls};
use ulpf_say::json::{self, Address};
use ulpf_say::say;
use ulpf_session::hit::place::Place;
use ulpf_session::words::count;
use ulpf_symbols::Program;

/// How often it is looked for news.
const TICK: Duration = Duration::from_millis(50);

/// Asks the log to look for news, until nobody listens.
pub fn tick(events: Sender<Event>) {
    std::thread::spawn(move || {
        while events.send(Event::Look).is_ok() {
            std::thread::sleep(TICK);
        }
    });
}

/// What has been found, as it is told.
pub struct Told {
    check: Check,
    file: Option<File>,
    /// Reports that are told.
    reports: usize,
    errors: u64,
    lost: Lost,
}

#[derive(Default)]
struct Lost {
    lost: (u64, u64),
    with: (u64, u64),
    perhaps: (u64, u64),
    reachable: (u64, u64),
}

impl Told {
    pub fn new(check: Check) -> Told {
        let file = check.log.as_ref().and_then(|path| {
            let file = File::create(path);
            if let Err(error) = &file {
                say!(
                    "cannot write {}: {error}; what is found goes to standard error",
                    path.display()
                );
            }
            file.ok()
        });
        Told {
            check,
            file,
            reports: 0,
            errors: 0,
            lost: Lost::default(),
        }
    }

    /// Tells what is new.
    pub fn look(&mut self, life: &mut Life) {
        let shared = life.shared.clone();
        let findings = shared.findings();
        let new = findings.reports.iter().skip(self.reports);
        let new: Vec<&Report> = new.take_while(|r| r.told.load(Acquire) == 1).collect();
        if new.is_empty() {
            return;
        }
        life.refresh();
        for report in new {
            self.reports += 1;
            self.report(report, &life.program);
        }
    }

    fn report(&mut self, report: &Report, program: &Program) {
        // (The program may have written anything there.)
        let Some(wrong) = Wrong::of(report.wrong.load(Relaxed)) else {
            return;
        };
        let error = Error::of(wrong, report, program);
        if wrong.is_leak() {
            let all = match wrong {
                Wrong::Lost => &mut self.lost.lost,
                Wrong::LostWith => &mut self.lost.with,
                Wrong::PerhapsLost => &mut self.lost.perhaps,
                _ => &mut self.lost.reachable,
            };
            all.0 = all.0.saturating_add(error.count);
            all.1 = all.1.saturating_add(error.len);
            if wrong == Wrong::Reachable && !self.check.reachable {
                return;
            }
        }
        if matches!(wrong, Wrong::Lost) || !wrong.is_leak() {
            self.errors += 1;
        }
        let text = match self.check.json {
            true => error.json(),
            false => error.text(self.reports),
        };
        self.put(&text);
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

    /// The program has ended: all of it together. The exit status that was asked for, if there were errors.
    pub fn end(&mut self, life: &mut Life) -> Option<i32> {
        self.look(life);
        let shared = life.shared.clone();
        let f = shared.findings();
        let text = match self.check.json {
            true => json::line(&Sum::of(f, self)),
            false => self.summary(f),
        };
        self.put(&text);
        if self.check.verbose {
            self.put(&cost(life));
        }
        self.check.status.filter(|_| self.errors > 0)
    }

    fn summary(&self, f: &Findings) -> String {
        let get = |n: &std::sync::atomic::AtomicU64| n.load(Relaxed);
        let mut out = String::new();
        let leaks = f.searched.load(Relaxed) != 0;
        let _ = writeln!(
            out,
            "ulpf: {} at {}; {} allocated, {} freed, {} bytes at most",
            count(get(&f.errors), "error"),
            count(
                self.errors.saturating_sub(u64::from(self.lost.lost.0 > 0)),
                "place"
            ),
            count(get(&f.allocated), "block"),
            get(&f.freed),
            get(&f.most),
        );
        if leaks {
            let l = &self.lost;
            for (what, (blocks, bytes)) in [
                ("lost", l.lost),
                ("lost with these", l.with),
                ("perhaps lost", l.perhaps),
                ("still reachable", l.reachable),
            ] {
                if blocks > 0 {
                    let _ = writeln!(
                        out,
                        "ulpf: {what}: {} ({bytes} bytes)",
                        count(blocks, "block")
                    );
                }
            }
            if l.reachable.0 > 0 && !self.check.reachable {
                let _ = writeln!(
                    out,
                    "ulpf: (--show-reachable says where those were allocated)"
                );
            }
        } else if self.check.how.leaks {
            let _ = writeln!(
                out,
                "ulpf: the program did not come to its end by itself, so nobody has looked for lost blocks"
            );
        }
        if get(&f.untold) > 0 {
            let _ = writeln!(
                out,
                "ulpf: {} more that no room was left for",
                count(get(&f.untold), "error")
            );
        }
        if get(&f.functions) == 0 {
            let _ = writeln!(
                out,
                "ulpf: no allocator was found in the program, so nothing was checked: it has no dynamic symbols, or none called malloc"
            );
        }
        out
    }
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

/// One error with its places named.
struct Error<'a> {
    wrong: Wrong,
    report: &'a Report,
    count: u64,
    addr: u64,
    len: u64,
    place: Rc<Place>,
    callers: Vec<Rc<Place>>,
    allocated_by: Vec<Rc<Place>>,
    freed_by: Vec<Rc<Place>>,
}

fn places(program: &Program, trace: &Trace) -> Vec<Rc<Place>> {
    let at = |pc| Rc::new(Place::at(program, pc, true));
    let mut places: Vec<_> = trace.callers().map(at).collect();
    // What calls main is nobody's concern.
    let before_main = |c: &Rc<Place>| c.is_runtime() || c.function.as_deref() == Some("_start");
    while places.last().is_some_and(before_main) {
        places.pop();
    }
    places
}

impl Error<'_> {
    fn of<'a>(wrong: Wrong, report: &'a Report, program: &Program) -> Error<'a> {
        Error {
            wrong,
            report,
            count: report.count.load(Relaxed),
            addr: report.addr.load(Relaxed),
            len: report.len.load(Relaxed),
            place: Rc::new(Place::at(program, report.pc.load(Relaxed), false)),
            callers: places(program, &report.here),
            allocated_by: places(program, &report.allocated_at),
            freed_by: places(program, &report.freed_at),
        }
    }

    /// The block: its first byte, and its bytes.
    fn block(&self) -> Option<(u64, u64)> {
        let start = self.report.block.load(Relaxed);
        (start != 0).then(|| (start, self.report.size.load(Relaxed)))
    }

    /// `8 bytes behind a block of 24 bytes`
    fn where_in_block(&self) -> String {
        let Some((start, size)) = self.block() else {
            return "which is in no block".into();
        };
        let freed = match self.report.freed.load(Relaxed) {
            0 => "",
            _ => "freed ",
        };
        let what = format!("a {freed}block of {}", count(size, "byte"));
        let end = start.saturating_add(size);
        match self.addr {
            at if at < start => format!("{} before {what}", count(start - at, "byte")),
            at if at >= end => format!("{} behind {what}", count(at - end, "byte")),
            at => format!("{} inside {what}", count(at - start, "byte")),
        }
    }

    fn what(&self) -> String {
        let by = self.report.kind.load(Relaxed);
        match self.wrong {
            Wrong::Outside | Wrong::Freed => {
                let access = match by {
                    n if n == AccessKind::Read as u32 => "read",
                    n if n == AccessKind::Write as u32 => "write",
                    _ => "update",
                };
                let call = self.report.syscall.load(Relaxed);
                let by = match call.checked_sub(1).and_then(|nr| syscalls::row(nr.into())) {
                    Some(row) => format!(" by {}(2)", row.name),
                    None => String::new(),
                };
                let len = count(self.len, "byte");
                format!(
                    "{access} of {len}{by} at {:#x}, {}",
                    self.addr,
                    self.where_in_block()
                )
            }
            Wrong::Twice => format!("{} of what was freed before: {:#x}", freeing(by), self.addr),
            Wrong::NoBlock => match self.block() {
                Some(_) => format!(
                    "{} of {:#x}, {}",
                    freeing(by),
                    self.addr,
                    self.where_in_block()
                ),
                None => format!("{} of {:#x}, where no block begins", freeing(by), self.addr),
            },
            Wrong::Mismatch => format!(
                "{} of {:#x}, which was allocated by {}",
                freeing(by),
                self.addr,
                allocating(self.report.by.load(Relaxed))
            ),
            Wrong::Lost => self.left("lost: nothing points there any more"),
            Wrong::LostWith => self.left("lost with a block that pointed there"),
            Wrong::PerhapsLost => self.left("perhaps lost: only their inside is pointed to"),
            Wrong::Reachable => self.left("not freed, but reachable"),
        }
    }

    fn left(&self, how: &str) -> String {
        format!("{} ({} bytes) {how}", count(self.count, "block"), self.len)
    }

    fn text(&self, number: usize) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "ulpf: #{number} {}", self.what());
        let mut list = |title: &str, places: &[Rc<Place>], first: Option<&Place>| {
            if !title.is_empty() && !places.is_empty() {
                let _ = writeln!(out, "    {title}");
            }
            if let Some(first) = first {
                let _ = writeln!(out, "        {}", first.text);
            }
            for place in places {
                let _ = writeln!(out, "        {}", place.caller);
            }
        };
        if !self.wrong.is_leak() {
            let instruction = matches!(self.wrong, Wrong::Outside | Wrong::Freed);
            list("", &self.callers, instruction.then_some(&*self.place));
        }
        let freed = self.report.freed_at.thread.load(Relaxed);
        let allocated = self.report.allocated_at.thread.load(Relaxed);
        let here = self.report.here.thread.load(Relaxed);
        let thread = |of: u32| match of {
            0 => String::new(),
            of if of == here => String::new(),
            of => format!(" (thread {of})"),
        };
        list(&format!("freed by{}", thread(freed)), &self.freed_by, None);
        let thread = if self.wrong.is_leak() {
            String::new()
        } else {
            thread(allocated)
        };
        list(&format!("allocated by{thread}"), &self.allocated_by, None);
        out
    }

    fn json(&self) -> String {
        let block = self.block();
        let access = matches!(self.wrong, Wrong::Outside | Wrong::Freed);
        let leak = self.wrong.is_leak();
        json::line(&Line {
            r#type: "error",
            error: word(self.wrong),
            what: self.what(),
            count: self.count,
            tid: (!leak).then(|| self.report.here.thread.load(Relaxed)),
            addr: (!leak).then_some(Address(self.addr)),
            len: (access || leak).then_some(self.len),
            place: access.then_some(&*self.place),
            callers: &self.callers,
            block: block.map(|b| Address(b.0)),
            size: block.map(|b| b.1),
            allocated_by: &self.allocated_by,
            freed_by: &self.freed_by,
        })
    }
}

fn freeing(by: u32) -> &'static str {
    match By::of(by) {
        By::Malloc => "free",
        By::New => "delete",
        By::NewArray => "delete[]",
    }
}

fn allocating(by: u32) -> &'static str {
    match By::of(by) {
        By::Malloc => "malloc",
        By::New => "new",
        By::NewArray => "new[]",
    }
}

fn word(wrong: Wrong) -> &'static str {
    match wrong {
        Wrong::Outside => "outside",
        Wrong::Freed => "freed",
        Wrong::Twice => "double-free",
        Wrong::NoBlock => "invalid-free",
        Wrong::Mismatch => "mismatched-free",
        Wrong::Lost => "lost",
        Wrong::LostWith => "indirectly-lost",
        Wrong::PerhapsLost => "possibly-lost",
        Wrong::Reachable => "reachable",
    }
}

#[derive(Serialize)]
struct Line<'a> {
    r#type: &'static str,
    error: &'static str,
    what: String,
    count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    addr: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    len: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<&'a Place>,
    callers: &'a [Rc<Place>],
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    allocated_by: &'a [Rc<Place>],
    freed_by: &'a [Rc<Place>],
}

#[derive(Serialize)]
struct Sum {
    r#type: &'static str,
    errors: u64,
    untold: u64,
    allocated: u64,
    freed: u64,
    most: u64,
    searched: bool,
    lost: (u64, u64),
    indirectly_lost: (u64, u64),
    possibly_lost: (u64, u64),
    reachable: (u64, u64),
}

impl Sum {
    fn of(f: &Findings, told: &Told) -> Sum {
        let get = |n: &std::sync::atomic::AtomicU64| n.load(Relaxed);
        Sum {
            r#type: "heap",
            errors: get(&f.errors),
            untold: get(&f.untold),
            allocated: get(&f.allocated),
            freed: get(&f.freed),
            most: get(&f.most),
            searched: f.searched.load(Relaxed) != 0,
            lost: told.lost.lost,
            indirectly_lost: told.lost.with,
            possibly_lost: told.lost.perhaps,
            reachable: told.lost.reachable,
        }
    }
}
