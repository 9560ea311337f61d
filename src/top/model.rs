//! What the screen shows, as plain data: made by `look` out of a running session, or by a test.

use crate::foreign::text::Text;
use std::collections::VecDeque;
use std::rc::Rc;
use ulpf_lib::ring::Hit;

/// Lines of the feed that are kept.
pub const FEED: usize = 4096;
/// Looks that the small chart remembers.
pub const HISTORY: usize = 240;

#[derive(Clone, Debug, Default)]
pub struct Session {
    pub pid: i32,
    /// The ulpf that watches it, and what that was started as: `run`, `server`.
    pub by: i32,
    pub how: String,
    pub program: String,
    /// Why nothing more will happen.
    pub ended: Option<String>,
    pub seconds: f64,
    pub totals: Totals,
    /// The same, each second.
    pub rates: Rates,
    /// Hits each second, one number a look.
    pub history: VecDeque<u64>,
    pub watches: Vec<Watch>,
    /// Watches that are not shown, because there are too many.
    pub more_watches: usize,
    pub sites: Vec<Site>,
    pub pages: Vec<Page>,
    pub threads: Vec<Thread>,
    /// The youngest last.
    pub feed: VecDeque<Line>,
    /// Hits that the feed has left out: they came faster than anybody reads.
    pub unseen: u64,
    /// Why watches cannot be changed from here; `None`: they can.
    pub closed: Option<String>,
}

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

#[derive(Clone, Copy, Debug, Default)]
pub struct Rates {
    pub hits: f64,
    pub false_positives: f64,
    pub faults: f64,
}

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

#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// The stub's number.
    pub id: Option<u32>,
    /// The number that whoever serves changes knows it by.
    pub number: Option<usize>,
    pub name: Rc<str>,
    pub addr: u64,
    pub len: u64,
    /// `w`, `r`, `rw`.
    pub kind: &'static str,
    pub state: State,
    pub hits: u64,
    pub rate: f64,
    pub silent: u64,
    pub filtered: u64,
    pub false_positives: u64,
    pub false_rate: f64,
    pub register: bool,
    /// In the debugger's own table.
    pub debuggers: bool,
    /// Its hits are counted only.
    pub counts_only: bool,
    /// The value after the last hit that was seen.
    pub last: String,
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
    pub fn word(self) -> &'static str {
        match self {
            Served::Trap => "trap",
            Served::Patched => "patched",
            Served::Syscall => "syscall",
            Served::Register => "register",
        }
    }
}

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
    pub rate: f64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Page {
    pub addr: u64,
    pub watches: u32,
    /// Watched bytes in it.
    pub bytes: u64,
    pub hits: f64,
    pub false_positives: f64,
}

#[derive(Clone, Debug, Default)]
pub struct Thread {
    pub tid: i32,
    pub name: String,
    /// R, S, D, T, …
    pub state: char,
    /// Records in its ring.
    pub logged: u64,
    pub rate: f64,
    pub last: Rc<str>,
}

/// A hit.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Counts lines, from the first.
    pub number: u64,
    /// Since the session began.
    pub nanos: u64,
    pub tid: u32,
    pub verb: &'static str,
    pub name: Rc<str>,
    pub change: String,
    pub place: Rc<str>,
    pub hit: Hit,
}

impl Session {
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

/// `1234567` as `1,234,567`; from ten millions on as `12.3M`.
pub fn figure(n: u64) -> String {
    if n >= 10_000_000 {
        return short(n as f64);
    }
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Four places at most, before the unit: `999`, `12.3k`, `1.20M`.
pub fn short(n: f64) -> String {
    let n = n.max(0.0);
    let (value, unit) = match n {
        n if n >= 999.5e9 => (n / 1e12, "T"),
        n if n >= 999.5e6 => (n / 1e9, "G"),
        n if n >= 999.5e3 => (n / 1e6, "M"),
        n if n >= 999.5 => (n / 1e3, "k"),
        n if n >= 10.0 || n == 0.0 => return format!("{n:.0}"),
        n => return format!("{n:.1}"),
    };
    match value {
        v if v >= 99.95 => format!("{v:.0}{unit}"),
        v if v >= 9.995 => format!("{v:.1}{unit}"),
        v => format!("{v:.2}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        assert_eq!(figure(0), "0");
        assert_eq!(figure(1234567), "1,234,567");
        assert_eq!(figure(123), "123");
        assert_eq!(figure(12_345_678), "12.3M");
        assert_eq!(short(0.0), "0");
        assert_eq!(short(0.25), "0.2");
        assert_eq!(short(999.0), "999");
        assert_eq!(short(999.9), "1.00k");
        assert_eq!(short(12_345.0), "12.3k");
        assert_eq!(short(1_234_567.0), "1.23M");
        assert_eq!(short(999_600.0), "1.00M");
        assert_eq!(short(5e12), "5.00T");
    }

    #[test]
    fn the_feed_is_bounded() {
        let mut session = Session::default();
        for number in 0..FEED as u64 + 10 {
            session.push(Line {
                number,
                ..Line::default()
            });
        }
        assert_eq!((session.feed.len(), session.feed[0].number), (FEED, 10));
    }
}
