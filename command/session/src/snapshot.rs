//! What is known of a session at one moment, as plain data: made by [`super::observer`] out of a running session,
//! or by a test. `ulpf top` draws it, `ulpf export` writes it.

use super::hit::Line;
use std::collections::VecDeque;
use std::rc::Rc;
use ulpf_host::foreign::text::Text;

/// Lines of the feed that are kept.
pub(crate) const FEED: usize = 4096;
/// Looks that the small chart remembers.
pub(crate) const HISTORY: usize = 240;

/// A session at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub pid: i32,
    /// The ulpf that watches it, and what that was started as: `run`, `server`.
    pub by: i32,
    pub how: String,
    /// The name of its file.
    pub program: String,
    /// Why nothing more will happen.
    pub ended: Option<String>,
    /// Since it has been watched.
    pub seconds: f64,
    /// Counted since then.
    pub totals: Totals,
    /// The same, each second.
    pub rates: Rates,
    /// Hits each second, one number a look.
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
    /// The youngest last.
    pub feed: VecDeque<Line>,
    /// Hits that the feed has left out: they came faster than anybody reads.
    pub unseen: u64,
    /// Why watches cannot be changed from here; `None`: they can.
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

/// Some of the counters, each second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    pub hits: f64,
    pub false_positives: f64,
    pub faults: f64,
}

/// Whether a watch is in force, and why not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    Armed,
    /// Taken away for a while; can come back.
    Off,
    /// Its memory is gone for now.
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
    /// The number that whoever serves changes knows it by.
    pub number: Option<usize>,
    /// By the user's words; else the variable, or the address.
    pub name: Rc<str>,
    pub addr: u64,
    pub len: u64,
    /// `w`, `r`, `rw`.
    pub kind: &'static str,
    pub state: State,
    pub hits: u64,
    /// Hits each second.
    pub rate: f64,
    pub silent: u64,
    pub filtered: u64,
    pub false_positives: u64,
    /// False positives each second.
    pub false_rate: f64,
    /// It has a debug register.
    pub register: bool,
    /// In the debugger's own table.
    pub debuggers: bool,
    /// Its hits are counted only.
    pub counts_only: bool,
    /// The value after the last hit that was seen.
    pub last: String,
    /// It follows pointers, and has moved so often; `addr` is 0 while it is nowhere.
    pub moved: Option<u64>,
    /// Why it is not watched.
    pub note: String,
}

/// How accesses of an instruction reach us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Served {
    #[default]
    Trap,
    Patched,
    Syscall,
    Register,
}

impl Served {
    /// In one word.
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
    /// Its share of all hits, of late.
    pub share: f64,
    /// Why it is not patched, if that is known.
    pub why: String,
    /// Accesses that trapped, and how many of them met no watch; `None`: nobody counts them here.
    pub traps: Option<(u64, u64)>,
    /// Hits each second, by the sample.
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
    /// Hits each second.
    pub rate: f64,
    /// Where its last hit that was seen was made.
    pub last: Rc<str>,
}

impl Snapshot {
    /// The program and its number, to show.
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
