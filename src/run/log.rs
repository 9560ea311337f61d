//! Follows the hit ring and writes the log.
//!
//! ```text
//!   program threads ──tickets──▶ ring (65,536 records) ──▶ Log::follow ──▶ stderr, FILE
//!   control task ────Event─────────────────────────────────────┘
//! ```
//!
//! The writers never wait, so a reader that is slower loses hits; the losses are counted, shown
//! where they happened, and repeated in the summary. One thread does all of this; it also owns the
//! symbols, which is why libraries that appear later are resolved here.

use super::format::{Formatter, Look};
use super::summary::count;
use super::{Armed, Watch};
use crate::inject::{HitRead, SharedArea};
use crate::session::Ending;
use crate::symbols::Program;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};
use ulpf_lib::ring::{HitRecord, RING_RECORDS, hit_flags};

/// What the control task tells the log.
pub enum Event {
    /// The program is stopped after its list of libraries has changed. Answer what to arm.
    Libraries(tokio::sync::oneshot::Sender<Found>),
    /// Outcome of arming the watch of that number.
    Armed(usize, Armed),
    /// Nothing more will come.
    Ended(Ending),
}

/// Watches that were resolved: their numbers and the commands that arm them.
pub type Found = Vec<(usize, String)>;
/// Resolves what waits for a library, among all watches.
pub type Pending = Box<dyn FnMut(&Program, &mut Vec<Watch>) -> Found>;

pub struct Log {
    pub shared: SharedArea,
    pub pid: i32,
    pub program: Program,
    /// All watches, in the order given.
    pub watches: Vec<Watch>,
    pub formatter: Formatter,
    pub output: Box<dyn Write>,
    pub quiet: bool,
    pub changes_only: bool,
    /// Finds what could not be resolved before; called when libraries were loaded.
    pub pending: Pending,
    by_id: HashMap<u32, usize>,
    next: u64,
    pub lost: u64,
    /// Lost, and not yet said.
    losing: u64,
    broken: Option<io::Error>,
    last_refresh: Option<Instant>,
}

/// Lines are handed to the system in pieces of about this size.
const CHUNK: usize = 64 << 10;
/// How far a reader that was lapped stays ahead of the writers.
const HEADROOM: u64 = RING_RECORDS / 16;
/// A record that is not there after this long never will be: its writer has died.
const UNFINISHED: Duration = Duration::from_millis(50);

impl Log {
    pub fn new(
        shared: SharedArea,
        pid: i32,
        program: Program,
        watches: Vec<Watch>,
        look: Look,
        output: Box<dyn Write>,
        pending: Pending,
    ) -> Log {
        let mut by_id = HashMap::new();
        for (number, watch) in watches.iter().enumerate() {
            if let Armed::Yes(id) = watch.armed {
                by_id.entry(id).or_insert(number);
            }
        }
        Log {
            shared,
            pid,
            program,
            watches,
            formatter: Formatter::new(look),
            output,
            quiet: false,
            changes_only: false,
            pending,
            by_id,
            next: 0,
            lost: 0,
            losing: 0,
            broken: None,
            last_refresh: None,
        }
    }

    /// Writes hits until the control task reports the end.
    pub fn follow(&mut self, events: &Receiver<Event>) -> Ending {
        let mut text = String::with_capacity(2 * CHUNK);
        let mut unfinished: Option<(u64, Instant)> = None;
        loop {
            let ended = self.serve(events);
            let head = self.shared.header().tickets();
            while self.next < head {
                match self.shared.hit(self.next) {
                    HitRead::Hit(hit) => {
                        self.next += 1;
                        self.tell_losses(&mut text);
                        self.hit(&hit, events, &mut text);
                    }
                    HitRead::Lost => {
                        // Lapped: go to where there is some room before the writers again.
                        let oldest = (self.shared.header().tickets() + HEADROOM)
                            .saturating_sub(RING_RECORDS);
                        self.lose(oldest.min(head).saturating_sub(self.next).max(1));
                    }
                    HitRead::NotYet => {
                        let since = match unfinished {
                            Some((ticket, since)) if ticket == self.next => since,
                            _ => Instant::now(),
                        };
                        unfinished = Some((self.next, since));
                        if ended.is_some() || since.elapsed() > UNFINISHED && self.next + 1 < head {
                            self.lose(1);
                        } else {
                            break;
                        }
                    }
                }
                if text.len() >= CHUNK {
                    self.write(&mut text);
                }
            }
            if ended.is_some() {
                self.tell_losses(&mut text);
            }
            self.write(&mut text);
            if let Some(ending) = ended.filter(|_| self.next >= self.shared.header().tickets()) {
                let _ = self.output.flush();
                return ending;
            }
            self.shared
                .wait_for_hit(self.next, Duration::from_millis(20));
        }
    }

    /// Handles what the control task has sent.
    fn serve(&mut self, events: &Receiver<Event>) -> Option<Ending> {
        loop {
            match events.try_recv() {
                Ok(Event::Libraries(reply)) => {
                    self.refresh();
                    let _ = reply.send((self.pending)(&self.program, &mut self.watches));
                }
                Ok(Event::Armed(number, armed)) => {
                    if let Armed::Yes(id) = armed {
                        self.by_id.entry(id).or_insert(number);
                    }
                    self.watches[number].armed = armed;
                }
                Ok(Event::Ended(ending)) => return Some(ending),
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => return Some(Ending::Unknown),
            }
        }
    }

    fn refresh(&mut self) {
        if matches!(self.program.refresh_from_process(self.pid), Ok(true)) {
            self.formatter.forget_places();
        }
        self.last_refresh = Some(Instant::now());
    }

    fn hit(&mut self, hit: &HitRecord, events: &Receiver<Event>, text: &mut String) {
        if self.quiet || self.changes_only && hit.flags & hit_flags::SILENT != 0 {
            return;
        }
        if !self.by_id.contains_key(&hit.watch) {
            // Armed a moment ago; its event precedes the hit.
            let _ = self.serve(events);
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
        let header = self.shared.header();
        let nanos = header.nanos(hit.time).saturating_sub(header.base_ns);
        if let Some(watched) = &self.watches[number].watched {
            self.formatter
                .hit(text, hit, nanos, number, watched, &self.program);
        }
    }

    /// Skips hits that were overwritten before they could be read.
    fn lose(&mut self, count: u64) {
        self.next += count;
        self.lost += count;
        self.losing += count;
    }

    /// Says so, once for all that were lost in a row.
    fn tell_losses(&mut self, text: &mut String) {
        let n = std::mem::take(&mut self.losing);
        if n == 0 || self.quiet {
            return;
        }
        let _ = match self.formatter.look() {
            Look::Json => writeln!(text, "{{\"type\":\"lost\",\"count\":{n}}}"),
            _ => writeln!(
                text,
                "            ({} lost here: they came faster than this log is written)",
                count(n, "hit")
            ),
        };
    }

    fn write(&mut self, text: &mut String) {
        if !text.is_empty() && self.broken.is_none() {
            let written = self
                .output
                .write_all(text.as_bytes())
                .and_then(|()| self.output.flush());
            self.broken = written.err();
        }
        text.clear();
    }

    /// Why the log is incomplete, if it could not be written.
    pub fn broken(&self) -> Option<&io::Error> {
        self.broken.as_ref()
    }
}
