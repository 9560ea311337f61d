//! Writes the log.
//!
//! ```text
//!   ring::read (thread) ──Hits──┐
//!   Control::run (task) ──Event─┴──▶ Log::follow (the main thread) ──▶ stderr, FILE
//! ```
//!
//! With `--follow` there are several processes, and exec begins a new life of one: each life has a
//! ring, symbols and watches of its own.
//!
//! Hits that the ring lost are counted, shown where they happened, and repeated in the summary. The
//! main thread owns the symbols, which is why libraries that appear later are resolved here. What
//! the control task sends before it resumes the program arrives before the hits that follow.

use super::clock::Clock;
use super::control::Control;
use super::follow::{Again, Entered, Forked, Ready, Spawned};
use super::format::{Formatter, Look, Quoted, When};
use super::output::Output;
use super::requests::{self, Planned};
use super::ring::{self, Batch, Flow};
use super::summary::count;
use super::watches::{self, Armed, Changes, Watch};
use crate::door::Ask;
use crate::foreign::text::Text;
use crate::inject::{SharedArea, process};
use crate::symbols::{Program, Spec};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};
use ulpf_lib::command::How;
use ulpf_lib::ring::{Hit, hit_flags};

/// What reaches the log. Numbers are those of lives.
pub enum Event {
    Hits(usize, Batch),
    /// The ring has been read to its end.
    NoMoreHits,
    /// The process is stopped after its list of libraries has changed. Answer what to arm.
    Libraries(usize, tokio::sync::oneshot::Sender<Changes>),
    /// Lines of the stub's for the user.
    Notice(String),
    /// Somebody wants to know which watches there are.
    List(usize, tokio::sync::oneshot::Sender<String>),
    /// Somebody wants other watches, and the process rests.
    Change(usize, Ask, tokio::sync::oneshot::Sender<Planned>),
    /// Outcome of arming the watch of that number.
    Armed(usize, usize, Armed),
    Forked(Box<Forked>),
    Spawned(Box<Spawned>),
    Entered(Entered),
    Again(Again),
    Ready(Ready),
    /// The process has ended, or was detached from; or has executed itself again.
    Ended(usize),
}

/// What the log needs to begin with a process, and to know about the others.
pub struct Plan {
    pub specs: Vec<Spec>,
    /// `watches::how`.
    pub how: How,
    /// `--at`
    pub at: Option<String>,
    /// Children are watched as well: lines name the process.
    pub follow: bool,
}

/// A process from its start, its fork or its last exec to its end.
pub struct Life {
    pub pid: i32,
    /// The process that it was forked from.
    pub parent: Option<i32>,
    /// It has executed itself.
    pub after_exec: bool,
    pub shared: SharedArea,
    program: Program,
    /// All watches, in the order given.
    pub watches: Vec<Watch>,
    formatter: Formatter,
    by_id: HashMap<u32, usize>,
    pub lost: u64,
    /// The user knows that its rings hold what no writer of ours has written.
    damaged: bool,
    last_refresh: Option<Instant>,
    flow: Flow,
}

pub struct Log {
    clock: Clock,
    plan: Plan,
    pub lives: Vec<Life>,
    pub output: Output,
    runtime: tokio::runtime::Handle,
    sender: Sender<Event>,
    events: Receiver<Event>,
    readers: Vec<std::thread::JoinHandle<()>>,
}

/// Lines are handed to the system in pieces of about this size.
const CHUNK: usize = 64 << 10;

impl Life {
    fn new(
        pid: i32,
        shared: SharedArea,
        program: Program,
        watches: Vec<Watch>,
        look: Look,
    ) -> Life {
        let mut life = Life {
            pid,
            parent: None,
            after_exec: false,
            shared,
            program,
            watches,
            formatter: Formatter::new(look),
            by_id: HashMap::new(),
            lost: 0,
            damaged: false,
            last_refresh: None,
            flow: Flow::default(),
        };
        for number in 0..life.watches.len() {
            life.know(number);
        }
        life
    }

    pub fn program(&self) -> &Program {
        &self.program
    }

    fn know(&mut self, number: usize) {
        if let Armed::Yes(id) = self.watches[number].armed {
            self.by_id.entry(id).or_insert(number);
        }
    }

    /// Its ring is read to the end.
    fn finish(&self) {
        self.flow.finish.store(true, Ordering::Release);
        self.shared.wake();
    }

    fn refresh(&mut self) {
        if matches!(self.program.refresh_from_process(self.pid), Ok(true)) {
            self.formatter.forget_places();
        }
        self.last_refresh = Some(Instant::now());
    }
}

impl Log {
    pub fn new(clock: Clock, plan: Plan, output: Output, runtime: tokio::runtime::Handle) -> Log {
        let (sender, events) = std::sync::mpsc::channel();
        Log {
            clock,
            plan,
            lives: Vec::new(),
            output,
            runtime,
            sender,
            events,
            readers: Vec::new(),
        }
    }

    /// For whoever has something to tell.
    pub fn sender(&self) -> Sender<Event> {
        self.sender.clone()
    }

    /// Begins with a process; its number.
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
        self.lives.push(life);
        self.readers.push(std::thread::spawn(move || {
            ring::read(&source, &flow, |batch| {
                sender.send(Event::Hits(number, batch)).is_ok()
            });
            let _ = sender.send(Event::NoMoreHits);
        }));
        number
    }

    /// Writes hits until all processes have ended and their rings are empty.
    pub fn follow(&mut self) {
        let mut text = String::with_capacity(2 * CHUNK);
        let mut done = 0;
        while done < self.lives.len() {
            let event = match self.events.try_recv() {
                Ok(event) => event,
                Err(TryRecvError::Empty) => {
                    // Nothing to do: let people see what there is.
                    self.output.write(&mut text);
                    match self.events.recv() {
                        Ok(event) => event,
                        Err(_) => break,
                    }
                }
                Err(TryRecvError::Disconnected) => break,
            };
            match event {
                Event::Hits(life, batch) => {
                    for hit in &batch.hits {
                        self.lose(life, hit.lost, &mut text);
                        self.hit(life, hit, &mut text);
                        if text.len() >= CHUNK {
                            self.output.write(&mut text);
                        }
                    }
                    self.lose(life, batch.lost, &mut text);
                    self.damaged(life, batch.damaged, &mut text);
                }
                Event::NoMoreHits => done += 1,
                Event::Libraries(life, reply) => {
                    let how = self.plan.how;
                    let life = &mut self.lives[life];
                    life.refresh();
                    let (program, watches) = (&life.program, &mut life.watches);
                    let changes = watches::follow_libraries(watches, program, life.pid, how);
                    let _ = reply.send(changes);
                }
                Event::Notice(lines) => self.notice(&lines, &mut text),
                Event::List(life, reply) => drop(reply.send(requests::list(&self.lives[life]))),
                Event::Change(life, ask, reply) => {
                    let life = &mut self.lives[life];
                    life.refresh();
                    let _ = reply.send(requests::plan(life, &ask, self.plan.how));
                }
                Event::Armed(life, number, armed) => {
                    let life = &mut self.lives[life];
                    life.watches[number].armed = armed;
                    life.know(number);
                }
                Event::Forked(forked) => self.forked(*forked, &mut text),
                Event::Spawned(spawned) => self.spawned(*spawned, &mut text),
                Event::Entered(entered) => self.entered(entered),
                Event::Again(again) => self.again(again, &mut text),
                Event::Ready(ready) => self.ready(ready),
                Event::Ended(life) => {
                    self.lives[life].finish();
                }
            }
        }
        self.output.write(&mut text);
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }

    /// A child begins with its parent's watches.
    fn forked(&mut self, forked: Forked, text: &mut String) {
        let parent = &self.lives[forked.parent];
        let (program, from) = (parent.program.forked(), parent.pid);
        let (watches, changes) = watches::inherit(&parent.watches, self.plan.how);
        let (pid, shared) = (forked.session.pid, forked.session.shared.clone());
        let life = self.begin(pid, shared, program, watches);
        self.lives[life].parent = Some(from);
        // Numbers are the parent's until its own stub has given others.
        self.lives[life].by_id.clear();
        self.tell_of_fork(pid, from, text);
        let events = self.sender();
        self.run_child(forked, life, move |control| {
            control.run_child(changes, events)
        });
    }

    /// A child that begins with a program of its own, the same as its parent's.
    fn spawned(&mut self, spawned: Spawned, text: &mut String) {
        let from = self.lives[spawned.parent].pid;
        let (pid, shared) = (spawned.session.pid, spawned.session.shared.clone());
        let life = self.begin(pid, shared, Program::default(), Vec::new());
        (self.lives[life].parent, self.lives[life].after_exec) = (Some(from), true);
        self.tell_of_fork(pid, from, text);
        self.tell_of_exec(pid, text);
        let events = self.sender();
        self.run_child(spawned, life, move |control| control.run_spawned(events));
    }

    fn entered(&mut self, entered: Entered) {
        let life = &mut self.lives[entered.life];
        life.program = Program::of_process(life.pid).unwrap_or_default();
        let at = self.plan.at.as_ref();
        let _ = entered
            .reply
            .send(at.and_then(|name| life.program.function(name)));
    }

    fn run_child<F>(
        &self,
        child: Forked,
        life: usize,
        run: impl FnOnce(Control) -> F + Send + 'static,
    ) where
        F: Future<Output = anyhow::Result<()>> + Send,
    {
        let (pid, events) = (child.session.pid, self.sender());
        let _entered = self.runtime.enter();
        match Control::of_child(child, life) {
            Ok(control) => drop(self.runtime.spawn(async move {
                if let Err(error) = run(control).await {
                    say!("child {pid}: {error:#}");
                    let _ = events.send(Event::Ended(life));
                }
            })),
            Err(error) => {
                say!("child {pid}: {error:#}");
                let _ = events.send(Event::Ended(life));
            }
        }
    }

    fn tell_of_fork(&self, pid: i32, parent: i32, text: &mut String) {
        if self.output.look == Look::Json {
            let _ = writeln!(
                text,
                "{{\"type\":\"fork\",\"pid\":{pid},\"parent\":{parent}}}"
            );
        }
    }

    fn tell_of_exec(&self, pid: i32, text: &mut String) {
        if self.output.look == Look::Json {
            let _ = writeln!(text, "{{\"type\":\"exec\",\"pid\":{pid}}}");
        }
    }

    /// The same program from its beginning.
    fn again(&mut self, again: Again, text: &mut String) {
        let before = &self.lives[again.before];
        let (pid, parent) = (before.pid, before.parent);
        let program = Program::of_process(pid).unwrap_or_default();
        let at = self
            .plan
            .at
            .as_ref()
            .and_then(|name| program.function(name));
        let life = self.begin(pid, again.shared, program, Vec::new());
        (self.lives[life].parent, self.lives[life].after_exec) = (parent, true);
        self.tell_of_exec(pid, text);
        self.lives[again.before].finish();
        let _ = again.reply.send((life, at));
    }

    fn ready(&mut self, ready: Ready) {
        let life = &mut self.lives[ready.life];
        life.refresh();
        let specs = self.plan.specs.clone();
        let (watches, changes) =
            watches::resolve_all(specs, &life.program, &ready.memory, self.plan.how);
        // In one that was killed meanwhile nothing can be found, and nothing needs to.
        let alive = process::is_alive(life.pid);
        let news = |w: &&Watch| alive && w.spec.problem().is_none();
        for watch in watches.iter().filter(news) {
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
        let _ = ready.reply.send(changes);
    }

    fn hit(&mut self, life: usize, hit: &Hit, text: &mut String) {
        if self.output.quiet || self.output.changes_only && hit.flags & hit_flags::SILENT != 0 {
            return;
        }
        let life = &mut self.lives[life];
        // Watches of somebody else (a debugger) share the ring.
        let Some(&number) = life.by_id.get(&hit.watch) else {
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
        let pid = self.plan.follow.then_some(life.pid);
        if let Some(watched) = &life.watches[number].watched {
            life.formatter
                .hit(text, hit, pid, when, number, watched, &life.program);
        }
    }

    fn notice(&mut self, lines: &str, text: &mut String) {
        for line in lines.lines() {
            let _ = match self.output.look {
                Look::Json => writeln!(text, "{{\"type\":\"notice\",\"text\":{}}}", Quoted(line)),
                _ => writeln!(text, "            ({})", Text(line)),
            };
        }
    }

    /// Said once: there may be any number of them.
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
        let _ = match self.output.look {
            Look::Json => writeln!(text, "{{\"type\":\"lost\",\"count\":{n}}}"),
            _ => writeln!(
                text,
                "            ({} lost here: they came faster than this log is written)",
                count(n, "hit")
            ),
        };
    }
}
