//! Writes the log.
//!
//! ```text
//!   ring::read (thread) ──Hits──┐
//!   Control::run (task) ──Event─┴──▶ Log::follow (the main thread) ──▶ stderr, FILE
//! ```
//!
//! Hits that the ring lost are counted, shown where they happened, and repeated in the summary. The
//! main thread owns the symbols, which is why libraries that appear later are resolved here. What
//! the control task sends before it resumes the program arrives before the hits that follow.

use super::clock::Clock;
use super::format::{Formatter, Look, Quoted};
use super::output::Output;
use super::ring::{self, Batch, Flow};
use super::summary::count;
use super::watches::{Armed, Changes, Watch};
use crate::inject::SharedArea;
use crate::session::Ending;
use crate::symbols::Program;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};
use ulpf_lib::ring::{HitRecord, hit_flags};

/// What reaches the log.
pub enum Event {
    Hits(Batch),
    /// The ring has been read to its end.
    NoMoreHits,
    /// The program is stopped after its list of libraries has changed. Answer what to arm.
    Libraries(tokio::sync::oneshot::Sender<Changes>),
    /// Lines of the stub's for the user.
    Notice(String),
    /// Outcome of arming the watch of that number.
    Armed(usize, Armed),
    /// The program has ended (or was detached from).
    Ended(Ending),
}

/// Resolves what waits for a library, among all watches.
pub type Pending = Box<dyn FnMut(&Program, &mut Vec<Watch>) -> Changes>;

pub struct Log {
    shared: SharedArea,
    clock: Clock,
    pid: i32,
    program: Program,
    /// All watches, in the order given.
    pub watches: Vec<Watch>,
    formatter: Formatter,
    pub output: Output,
    pending: Pending,
    by_id: HashMap<u32, usize>,
    pub lost: u64,
    last_refresh: Option<Instant>,
}

/// Lines are handed to the system in pieces of about this size.
const CHUNK: usize = 64 << 10;

impl Log {
    pub fn new(
        shared: SharedArea,
        pid: i32,
        program: Program,
        watches: Vec<Watch>,
        clock: Clock,
        output: Output,
        pending: Pending,
    ) -> Log {
        let mut by_id = HashMap::new();
        for (number, watch) in watches.iter().enumerate() {
            if let Armed::Yes(id) = watch.armed {
                by_id.entry(id).or_insert(number);
            }
        }
        let formatter = Formatter::new(output.look);
        Log {
            shared,
            clock,
            pid,
            program,
            watches,
            formatter,
            output,
            pending,
            by_id,
            lost: 0,
            last_refresh: None,
        }
    }

    /// Writes hits until the program has ended and the ring is empty. `sender` is a sender of
    /// `events`, for the reader of the ring.
    pub fn follow(&mut self, sender: Sender<Event>, events: &Receiver<Event>) -> Ending {
        let flow = Flow::default();
        let (source, reader_flow) = (self.shared.clone(), flow.clone());
        let reader = std::thread::spawn(move || {
            ring::read(&source, &reader_flow, |batch| {
                sender.send(Event::Hits(batch)).is_ok()
            });
            let _ = sender.send(Event::NoMoreHits);
        });
        let mut text = String::with_capacity(2 * CHUNK);
        let mut ending = Ending::Unknown;
        loop {
            let event = match events.try_recv() {
                Ok(event) => event,
                Err(TryRecvError::Empty) => {
                    // Nothing to do: let people see what there is.
                    self.output.write(&mut text);
                    match events.recv() {
                        Ok(event) => event,
                        Err(_) => break,
                    }
                }
                Err(TryRecvError::Disconnected) => break,
            };
            match event {
                Event::Hits(batch) => {
                    self.lose(batch.lost, &mut text);
                    for hit in &batch.hits {
                        self.hit(hit, &mut text);
                        if text.len() >= CHUNK {
                            self.output.write(&mut text);
                        }
                    }
                }
                Event::NoMoreHits => break,
                Event::Libraries(reply) => {
                    self.refresh();
                    let _ = reply.send((self.pending)(&self.program, &mut self.watches));
                }
                Event::Notice(lines) => self.notice(&lines, &mut text),
                Event::Armed(number, armed) => {
                    if let Armed::Yes(id) = armed {
                        self.by_id.entry(id).or_insert(number);
                    }
                    self.watches[number].armed = armed;
                }
                Event::Ended(how) => {
                    ending = how;
                    flow.finish.store(true, Ordering::Release);
                }
            }
        }
        self.output.write(&mut text);
        let _ = reader.join();
        ending
    }

    fn refresh(&mut self) {
        if matches!(self.program.refresh_from_process(self.pid), Ok(true)) {
            self.formatter.forget_places();
        }
        self.last_refresh = Some(Instant::now());
    }

    fn hit(&mut self, hit: &HitRecord, text: &mut String) {
        if self.output.quiet || self.output.changes_only && hit.flags & hit_flags::SILENT != 0 {
            return;
        }
        // Watches of somebody else (a debugger) share the ring.
        let Some(&number) = self.by_id.get(&hit.watch) else {
            return;
        };
        if self.program.module_at(hit.pc).is_none()
            && self
                .last_refresh
                .is_none_or(|t| t.elapsed() > Duration::from_millis(200))
        {
            self.refresh();
        }
        let nanos = self.clock.nanos(hit.time);
        if let Some(watched) = &self.watches[number].watched {
            self.formatter
                .hit(text, hit, nanos, number, watched, &self.program);
        }
    }

    fn notice(&mut self, lines: &str, text: &mut String) {
        for line in lines.lines() {
            let _ = match self.output.look {
                Look::Json => writeln!(text, "{{\"type\":\"notice\",\"text\":{}}}", Quoted(line)),
                _ => writeln!(text, "            ({line})"),
            };
        }
    }

    fn lose(&mut self, n: u64, text: &mut String) {
        self.lost += n;
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
