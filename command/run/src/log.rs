//! Writes the log.
//!
//! ```text
//!   ring::read (thread) ──Hits──┐
//!   Control::run (task) ──Event─┴──▶ Log::follow (the main thread) ──▶ stderr, FILE
//! ```
//!
//! With `--follow` there are several processes, and exec starts a new life of one. Each life has its own ring, symbols
//! and watches.
//!
//! Hits that the ring lost are counted, shown where they happened, and repeated in the summary. The main thread owns
//! the symbols, so it resolves libraries that appear later. Messages that the control task sends before it resumes the
//! program arrive before the hits that follow.

use super::changes;
use super::check::{self, Reporter};
use super::chosen::Chosen;
use super::clock::Clock;
use super::compact;
use super::events::{Entered, Event, Forked, Ready, Reexecuted, Spawned};
use super::life::Life;
use super::options::Check;
use super::output::Output;
use super::watches::{self, Changes, Watch};
use serde::Serialize;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;
use ulpf_area::SharedArea;
use ulpf_heap::blocks;
use ulpf_host::foreign::numbers::Process;
use ulpf_host::foreign::text::Text;
use ulpf_host::process;
use ulpf_host::say::{json, say};
use ulpf_lib::command::How;
use ulpf_lib::ring::{Hit, hit_flags};
use ulpf_session::armed::Armed;
use ulpf_session::drain::Drained;
use ulpf_session::hit::entry::When;
use ulpf_session::hit::log::{Look, Record};
use ulpf_session::merge;
use ulpf_session::words::count;
use ulpf_symbols::{Program, Spec, stored};

/// Settings of the log for all processes.
pub struct Plan {
    pub specs: Vec<Spec>,
    /// `watches::how`.
    pub how: How,
    /// `--at`
    pub at: Option<String>,
    /// Children are watched as well: lines name the process.
    pub follow: bool,
    /// Selects the watched programs.
    pub chosen: Chosen,
    /// The heap is checked.
    pub check: Option<Check>,
    /// Threads wait for room in their rings.
    pub lossless: bool,
}

/// Approximate size of a write.
const CHUNK: usize = 64 << 10;

/// Runs a child as the life with this number, with the watches that it inherits. `None` after exec of the same program:
/// its watches are resolved again.
pub type RunChild = Box<dyn Fn(Forked, usize, Option<Changes>, Sender<Event>)>;

pub struct Log {
    clock: Clock,
    plan: Plan,
    pub lives: Vec<Life>,
    pub output: Output,
    run_child: RunChild,
    sender: Sender<Event>,
    events: Receiver<Event>,
    /// Events that arrived while the log waited for another one, oldest first.
    waiting: VecDeque<Event>,
    /// Hits that wait for the reader of the log, oldest first.
    held: VecDeque<(usize, merge::Batch)>,
    /// Number of processes whose rings have been read to their end.
    read: usize,
    readers: Vec<std::thread::JoinHandle<()>>,
    /// The types that a compact log already has.
    types: stored::Writer,
    /// Findings of the heap check.
    found: Option<Reporter>,
}

impl Log {
    /// `process`: the first one.
    pub fn new(
        clock: Clock,
        plan: Plan,
        output: Output,
        process: &Process,
        run_child: RunChild,
    ) -> Log {
        let (sender, events) = std::sync::mpsc::channel();
        compact::begin(&output, &clock, plan.follow);
        let found = plan.check.clone();
        let found = found.map(|check| Reporter::new(check, process.clone()));
        if let Some(check) = &plan.check {
            check::tick(check, sender.clone());
        }
        Log {
            clock,
            plan,
            lives: Vec::new(),
            output,
            run_child,
            sender,
            events,
            waiting: VecDeque::new(),
            held: VecDeque::new(),
            read: 0,
            readers: Vec::new(),
            types: stored::Writer::default(),
            found,
        }
    }

    /// Writes all watches of a process to a compact log.
    pub fn name_watches(&mut self, life: usize) {
        for number in 0..self.lives[life].watches.len() {
            let of = &self.lives[life];
            compact::name_watch(&self.output, &mut self.types, life, of, number);
        }
    }

    /// Begins the check of the first program, which has reached its entry.
    pub fn begin_check(&mut self) {
        if let (Some(found), Some(life)) = (&mut self.found, self.lives.first_mut()) {
            found.begin(life, false);
        }
    }

    /// All programs have ended, the first one by the signal `by`. Reports the remaining findings of the check, and
    /// returns the exit status that the user wants for errors, if there were any.
    pub fn end_check(&mut self, by: Option<i32>) -> Option<i32> {
        self.found.as_mut()?.end(&mut self.lives, by)
    }

    /// Whether the user has chosen among programs.
    pub fn chooses(&self) -> bool {
        self.plan.chosen.any()
    }

    /// A sender of events to the log.
    pub fn sender(&self) -> Sender<Event> {
        self.sender.clone()
    }

    /// Adds a process and returns its number.
    pub fn begin(
        &mut self,
        pid: i32,
        shared: SharedArea,
        program: Program,
        watches: Vec<Watch>,
    ) -> usize {
        let life = Life::new(pid, shared, program, watches, self.output.look);
        let (number, sender) = (self.lives.len(), self.sender.clone());
        let (source, flow) = (life.shared.clone(), life.flow.clone());
        if self.plan.lossless {
            source.lose_nothing();
        }
        self.lives.push(life);
        if let Some(log) = &self.output.compact {
            self.readers.push(compact::record(
                log.clone(),
                (number, pid),
                self.output.changes_only,
                (source, flow),
                sender,
            ));
            return number;
        }
        self.readers.push(std::thread::spawn(move || {
            merge::read(&source, &flow, |batch| {
                sender.send(Event::Hits(number, batch)).is_ok()
            });
            let _ = sender.send(Event::NoMoreHits(number));
        }));
        number
    }

    /// Writes hits until all processes have ended and their rings are empty.
    pub fn follow(&mut self) {
        let mut text = String::with_capacity(2 * CHUNK);
        while self.read < self.lives.len() {
            let Some(event) = self.next(&mut text) else {
                break;
            };
            match event {
                // Only hits wait: processes are stopped until other events are answered.
                Event::Hits(life, batch) if self.output.is_full() || !self.held.is_empty() => {
                    self.held.push_back((life, batch));
                }
                Event::Hits(life, batch) => self.hits(life, &batch, &mut text),
                Event::Code(life, code) => self.code(life, &code),
                Event::Drained(life, drained) => self.drained(life, &drained, &mut text),
                Event::NoMoreHits(life) => self.no_more_hits(life),
                Event::Look => self.look(),
                Event::Libraries(life, reply) => {
                    let how = self.plan.how;
                    let life = &mut self.lives[life];
                    life.refresh();
                    let (program, watches) = (&life.program, &mut life.watches);
                    let mut changes = watches::follow_libraries(watches, program, life.pid, how);
                    if let Some(check) = &self.plan.check {
                        changes.functions = Some(check::functions(life, check));
                    }
                    let _ = reply.send(changes);
                }
                Event::Notice(lines) => self.notice(&lines, &mut text),
                Event::List(life, reply) => drop(reply.send(changes::list(&self.lives[life]))),
                Event::Blocks(life, count, reply) => {
                    let life = &mut self.lives[life];
                    life.refresh();
                    let reports = life.shared.findings().answer(count);
                    let _ = reply.send(blocks::answer(reports, &life.program));
                }
                Event::Change(life, ask, reply) => {
                    let life = &mut self.lives[life];
                    life.refresh();
                    let _ = reply.send(changes::plan(life, &ask, self.plan.how));
                }
                Event::Armed(index, number, armed) => {
                    let life = &mut self.lives[index];
                    life.watches[number].armed = armed;
                    life.know(number);
                    compact::name_watch(&self.output, &mut self.types, index, life, number);
                }
                Event::Forked(forked) => self.forked(*forked, &mut text),
                Event::Spawned(spawned) => self.spawned(*spawned, &mut text),
                Event::Entered(entered) => self.entered(entered),
                Event::Reexecuted(again) => self.again(again, &mut text),
                Event::Ready(ready) => self.ready(ready),
                Event::Ended(life) => {
                    self.lives[life].finish();
                }
            }
        }
        self.write_held(&mut text);
        self.output.write(&mut text);
        self.output.finish();
        compact::name_programs(&self.output, &self.lives);
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }

    /// The next event. `None` if all senders are gone.
    fn next(&mut self, text: &mut String) -> Option<Event> {
        if let Some(event) = self.waiting.pop_front() {
            return Some(event);
        }
        while !self.held.is_empty() {
            /// Time between two looks at whether the reader goes on.
            const TICK: Duration = Duration::from_millis(5);
            if !self.output.is_full() {
                let (life, batch) = self.held.pop_front()?;
                self.hits(life, &batch, text);
                continue;
            }
            match self.events.recv_timeout(TICK) {
                Ok(event) => return Some(event),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        match self.events.try_recv() {
            Ok(event) => Some(event),
            Err(TryRecvError::Empty) => {
                // No event is waiting: write the buffered lines.
                self.output.write(text);
                self.events.recv().ok()
            }
            Err(TryRecvError::Disconnected) => None,
        }
    }

    /// Writes the hits that wait, however long it takes.
    fn write_held(&mut self, text: &mut String) {
        while let Some((life, batch)) = self.held.pop_front() {
            self.hits(life, &batch, text);
        }
    }

    fn hits(&mut self, life: usize, batch: &merge::Batch, text: &mut String) {
        for hit in &batch.hits {
            self.lose(life, hit.lost, text);
            self.hit(life, hit, text);
            if text.len() >= CHUNK {
                self.output.write(text);
            }
        }
        self.lose(life, batch.lost, text);
        self.damaged(life, batch.damaged, text);
    }

    fn code(&mut self, life: usize, code: &[(u64, bool)]) {
        compact::name_code(&self.output, life, &mut self.lives[life], code);
    }

    fn drained(&mut self, life: usize, drained: &Drained, text: &mut String) {
        let lost = &mut self.lives[life].lost;
        *lost = lost.saturating_add(drained.lost);
        self.damaged(life, drained.damaged, text);
    }

    /// A process has executed another program: writes its hits from before the exec first.
    fn finish(&mut self, life: usize, text: &mut String) {
        self.lives[life].finish();
        self.write_held(text);
        let mut before = std::mem::take(&mut self.waiting);
        while !self.lives[life].is_read {
            let event = before.pop_front().or_else(|| self.events.recv().ok());
            match event {
                Some(Event::Hits(of, batch)) if of == life => self.hits(life, &batch, text),
                Some(Event::Code(of, code)) if of == life => self.code(life, &code),
                Some(Event::Drained(of, drained)) if of == life => {
                    self.drained(life, &drained, text);
                }
                Some(Event::NoMoreHits(of)) if of == life => self.no_more_hits(life),
                Some(other) => self.waiting.push_back(other),
                None => return,
            }
        }
        self.waiting.append(&mut before);
    }

    fn no_more_hits(&mut self, life: usize) {
        self.lives[life].is_read = true;
        self.read += 1;
    }

    /// Reads new findings of the check.
    fn look(&mut self) {
        if let Some(found) = &mut self.found {
            found.look(&mut self.lives);
        }
    }

    /// Adds a child that starts with its parent's watches.
    fn forked(&mut self, forked: Forked, text: &mut String) {
        let parent = &self.lives[forked.parent];
        let (program, from) = (parent.program.forked(), parent.pid);
        let (watches, mut changes) = watches::inherit(&parent.watches, &program, self.plan.how);
        if let Some(check) = &self.plan.check {
            changes.functions = Some(ulpf_heap::functions::find(&program, &check.allocator).0);
        }
        let (pid, shared) = (forked.inferior.pid, forked.inferior.shared.clone());
        let life = self.begin(pid, shared, program, watches);
        self.lives[life].parent = Some(from);
        self.lives[life].wanted = self.lives[forked.parent].wanted;
        // Numbers are the parent's until its own stub has given others.
        self.lives[life].by_id.clear();
        self.tell_of_fork(pid, from, text);
        let process = forked.inferior.process().clone();
        (self.run_child)(forked, life, Some(changes), self.sender());
        self.comes(process);
    }

    /// Adds a child that has executed the same program as its parent.
    fn spawned(&mut self, spawned: Spawned, text: &mut String) {
        let from = self.lives[spawned.parent].pid;
        let (pid, shared) = (spawned.inferior.pid, spawned.inferior.shared.clone());
        let life = self.begin(pid, shared, Program::default(), Vec::new());
        (self.lives[life].parent, self.lives[life].after_exec) = (Some(from), true);
        self.tell_of_fork(pid, from, text);
        self.tell_of_exec(pid, text);
        let process = spawned.inferior.process().clone();
        (self.run_child)(spawned, life, None, self.sender());
        self.comes(process);
    }

    /// Adds a process to the check.
    fn comes(&mut self, process: Process) {
        if let Some(found) = &mut self.found {
            found.comes(process);
        }
    }

    fn entered(&mut self, entered: Entered) {
        let life = &mut self.lives[entered.life];
        life.program = Program::of_process(life.pid).unwrap_or_default();
        let at = self
            .plan
            .at
            .as_ref()
            .filter(|_| self.plan.chosen.wants(life.pid));
        let at = at.and_then(|name| life.program.code(name).ok());
        let _ = entered.reply.send(at.unwrap_or_default());
    }

    fn tell_of_fork(&self, pid: i32, parent: i32, text: &mut String) {
        if self.output.look == Look::Json {
            let fork = Remark {
                pid: Some(pid),
                parent: Some(parent),
                ..Remark::of("fork")
            };
            json::append(text, &fork);
        }
    }

    fn tell_of_exec(&self, pid: i32, text: &mut String) {
        if self.output.look == Look::Json {
            let exec = Remark {
                pid: Some(pid),
                ..Remark::of("exec")
            };
            json::append(text, &exec);
        }
    }

    /// The process has executed the same program again.
    fn again(&mut self, again: Reexecuted, text: &mut String) {
        let before = &self.lives[again.before];
        let (pid, parent) = (before.pid, before.parent);
        let program = Program::of_process(pid).unwrap_or_default();
        let at = self
            .plan
            .at
            .as_ref()
            .filter(|_| self.plan.chosen.wants(pid))
            .and_then(|name| program.code(name).ok());
        self.finish(again.before, text);
        let life = self.begin(pid, again.shared, program, Vec::new());
        (self.lives[life].parent, self.lives[life].after_exec) = (parent, true);
        self.tell_of_exec(pid, text);
        let _ = again.reply.send((life, at.unwrap_or_default()));
    }

    fn ready(&mut self, ready: Ready) {
        let life = &mut self.lives[ready.life];
        life.refresh();
        life.wanted = self.plan.chosen.wants(life.pid);
        let specs = match life.wanted {
            true => self.plan.specs.clone(),
            false => Vec::new(),
        };
        let (watches, mut changes) =
            watches::resolve_all(specs, &life.program, &ready.memory, self.plan.how);
        // In a program that was killed meanwhile, no name can be found, and none is needed.
        let alive = process::is_alive(life.pid);
        let is_new = |w: &&Watch| alive && w.spec.problem().is_none();
        for watch in watches.iter().filter(is_new) {
            if let Armed::No(problem) = &watch.armed
                && !changes
                    .arm
                    .iter()
                    .any(|(n, _)| watches[*n].spec.text == watch.spec.text)
            {
                say!("after exec: {problem}");
            }
        }
        life.watches = watches;
        if let (Some(check), Some(found)) = (&self.plan.check, &mut self.found) {
            changes.functions = Some(check::functions(life, check));
            let more = changes.functions.as_ref().is_some_and(|f| !f.is_empty());
            found.begin(life, more);
        }
        let _ = ready.reply.send(changes);
    }

    fn hit(&mut self, life: usize, hit: &Hit, text: &mut String) {
        if self.output.quiet || self.output.changes_only && hit.flags & hit_flags::SILENT != 0 {
            return;
        }
        let life = &mut self.lives[life];
        // Watches of another client (a debugger) share the ring.
        let Some(&(number, place)) = life.by_id.get(&hit.watch) else {
            return;
        };
        if life.program.module_at(hit.pc).is_none()
            && life
                .last_refresh
                .is_none_or(|t| t.elapsed() > Duration::from_millis(200))
        {
            life.refresh();
        }
        let when = When::Since(self.clock.nanos(hit.time));
        if let Some(watched) = life.watches[number].watched.get(place) {
            let record = Record {
                hit,
                pid: life.pid,
                several: self.plan.follow,
                when,
                number,
                watch: watched,
            };
            life.formatter.hit(text, &record, &life.program);
        }
    }

    fn notice(&mut self, lines: &str, text: &mut String) {
        for line in lines.lines() {
            if self.output.look == Look::Json {
                let notice = Remark {
                    text: Some(line),
                    ..Remark::of("notice")
                };
                json::append(text, &notice);
            } else if self.output.look == Look::Csv {
                // A table has no room for it.
                say!("{line}");
            } else {
                let _ = writeln!(text, "            ({})", Text(line));
            }
        }
    }

    /// Reported once: there may be any number of damaged hits.
    fn damaged(&mut self, life: usize, n: u64, text: &mut String) {
        let life = &mut self.lives[life];
        if n == 0 || std::mem::replace(&mut life.damaged, true) || self.output.quiet {
            return;
        }
        let said = format!(
            "process {} has written over the memory in which its hits are kept: here is one from the future, and none of its hits from now on can be relied on",
            life.pid
        );
        self.notice(&said, text);
    }

    fn lose(&mut self, life: usize, n: u64, text: &mut String) {
        let lost = &mut self.lives[life].lost;
        *lost = lost.saturating_add(n);
        if n == 0 || self.output.quiet {
            return;
        }
        if self.output.look == Look::Json {
            let lost = Remark {
                count: Some(n),
                ..Remark::of("lost")
            };
            json::append(text, &lost);
        } else if self.output.look != Look::Csv {
            // (The summary gives the number.)
            let _ = writeln!(
                text,
                "            ({} lost here: they came faster than this log is written)",
                count(n, "hit")
            );
        }
    }
}

/// Remark between hits in a log of JSON (docs/json.md).
#[derive(Serialize)]
struct Remark<'a> {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
}

impl Remark<'_> {
    fn of(what: &'static str) -> Self {
        Remark {
            r#type: what,
            pid: None,
            parent: None,
            text: None,
            count: None,
        }
    }
}
