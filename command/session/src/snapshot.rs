//! State of a session at one moment, as plain data. [`super::observer`] makes it from a running session, or a test
//! makes it. `ulpf top` draws it, `ulpf export` writes it.

use super::hit::Line;
use std::collections::VecDeque;
use std::rc::Rc;
use ulpf_host::foreign::text::Text;

/// Limit of the lines in the feed.
pub(crate) const FEED: usize = 4096;
/// Length of the small chart in looks.
pub(crate) const HISTORY: usize = 240;

/// A session at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub pid: i32,
    /// The ulpf that watches it, and its subcommand: `run`, `server`.
    pub by: i32,
    pub how: String,
    /// The name of its file.
    pub program: String,
    /// Reason why the session has ended.
    pub ended: Option<String>,
    /// Seconds since the session began.
    pub seconds: f64,
    /// Totals since then.
    pub totals: Totals,
    /// Rates of the same counters, per second.
    pub rates: Rates,
    /// Hits per second, one number a look.
    pub history: VecDeque<u64>,
    /// The watches, at most 20,000.
    pub watches: Vec<Watch>,
    /// Watches that are not shown, because there are too many.
    pub more_watches: usize,
    /// Instructions that have hit, or trapped.
    pub sites: Vec<Site>,
    /// Pages with watches, at most 4,096.
    pub pages: Vec<Page>,
    /// Its threads.
    pub threads: Vec<Thread>,
    /// The latest hits, youngest last.
    pub feed: VecDeque<Line>,
    /// Hits that the feed has left out because they came too fast.
    pub unseen: u64,
    /// Reason why watches cannot be changed from here; `None` if they can.
    pub closed: Option<String>,
}

/// The counters of a whole session.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub hits: u64,
    pub silent: u64,
    pub filtered: u64,
    pub false_positives: u64,
    pub faults: u64,
    pub slow: u64,
    pub syscalls: u64,
}

/// Rates of some of the counters, per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    pub hits: f64,
    pub false_positives: f64,
    pub faults: f64,
}

/// Whether a watch is armed, and if not, why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Armed,
    /// Switched off; can be armed again.
    Off,
    /// Its memory is unmapped at present.
    Gone,
    /// Waits for a library.
    Waiting,
    Refused,
}

/// A watch and its counters.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// The stub's number.
    pub id: Option<u32>,
    /// The number by which the session's owner changes it.
    pub number: Option<usize>,
    /// The user's words, or else the variable or the address.
    pub name: Rc<str>,
    pub addr: u64,
    pub len: u64,
    /// `w`, `r`, `rw`.
    pub kind: &'static str,
    pub state: State,
    pub hits: u64,
    /// Hits per second.
    pub rate: f64,
    pub silent: u64,
    pub filtered: u64,
    pub false_positives: u64,
    /// False positives per second.
    pub false_rate: f64,
    /// It has a debug register.
    pub register: bool,
    /// It is in the debugger's own table.
    pub debuggers: bool,
    /// Its hits are only counted.
    pub counts_only: bool,
    /// The value after the last hit that was seen.
    pub last: String,
    /// Number of moves, if it follows pointers; `addr` is 0 while a pointer leads nowhere.
    pub moved: Option<u64>,
    /// Reason why it is not watched.
    pub note: String,
}

/// How accesses of an instruction reach the handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Served {
    #[default]
    Trap,
    Patched,
    Syscall,
    Register,
}

impl Served {
    /// The state in one word.
    pub fn word(self) -> &'static str {
        match self {
            Served::Trap => "trap",
            Served::Patched => "patched",
            Served::Syscall => "syscall",
            Served::Register => "register",
        }
    }
}

/// An instruction, and what its accesses cost.
#[derive(Clone, Debug, Default)]
pub struct Site {
    pub pc: u64,
    pub function: Rc<str>,
    /// `file.c:12`, or the object.
    pub line: Rc<str>,
    pub served: Served,
    /// Hits of this instruction in the sample.
    pub sampled: u64,
    /// Its share of all recent hits.
    pub share: f64,
    /// Reason why it is not patched, if known.
    pub why: String,
    /// Accesses that trapped, and how many of them met no watch; `None` if they are not counted.
    pub traps: Option<(u64, u64)>,
    /// Hits per second, from the sample.
    pub rate: f64,
}

/// A page with watches on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Page {
    pub addr: u64,
    pub watches: u32,
    /// Watched bytes in it.
    pub bytes: u64,
    pub hits: f64,
    pub false_positives: f64,
}

/// A thread of the program, and its hits.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    pub tid: i32,
    pub name: String,
    /// R, S, D, T, …
    pub state: char,
    /// Records in its ring.
    pub logged: u64,
    /// Hits per second.
    pub rate: f64,
    /// Place of its last hit that was seen.
    pub last: Rc<str>,
}

impl Snapshot {
    /// The program and its number, for display.
    pub fn title(&self) -> String {
        format!("{} ({})", Text(&self.program), self.pid)
    }

    /// Keeps the feed bounded.
    pub fn push(&mut self, line: Line) {
        if self.feed.len() >= FEED {
            self.feed.pop_front();
        }
        self.feed.push_back(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_feed_is_bounded() {
        let mut session = Snapshot::default();
        for number in 0..FEED as u64 + 10 {
            session.push(Line {
                number,
                ..Line::default()
            });
        }
        assert_eq!((session.feed.len(), session.feed[0].number), (FEED, 10));
    }
}
