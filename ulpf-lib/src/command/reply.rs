//! What is answered to a command: lines of JSON, printed here for the stub and the bridge's front end, and read
//! here by whoever has asked (feature `serde`). A command that changes something is answered with one line
//! ([`Reply`]); `ulpf watches` with one for each stretch of numbers.

use alloc::vec::Vec;
use core::fmt::{self, Write};

use crate::refusal::Refusal;
use crate::watch::WatchKind;

#[cfg(feature = "serde")]
mod read;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// `{"watch":7}`
    Watch(u32),
    /// `{"watch":7,"heap":BYTES}`: so many are watched now.
    Heap { watch: u32, bytes: u64 },
    /// `{"watches":[FIRST,COUNT]}`: consecutive numbers.
    Watches { first: u32, count: u32 },
    /// `{"watch":7,"on":true}`
    Switched { watch: u32, on: bool },
    /// `{"filtered":[7]}`
    Filtered(Vec<u32>),
    /// `{"unwatched":{"start":16448,"len":8}}`, `{"unwatched":{"heap":true}}`
    Unwatched(Option<(u64, u64)>),
    /// `{"session":"0x51","pid":42,"stops_at":"0x756c706600000000"}`. The session differs when the stub does:
    /// another program, or the same after exec.
    About {
        session: u64,
        pid: i32,
        stops_at: u64,
    },
    /// `{"refused":{"what":"…","why":"…","what_to_do":"…"}}`
    Refused(Refusal),
}

/// A string of JSON.
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_char('"')?;
        for ch in self.0.chars() {
            match ch {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                c if (c as u32) < 32 => write!(f, "\\u{:04x}", c as u32)?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

/// Without the end of the line.
impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Reply::Watch(id) => write!(f, "{{\"watch\":{id}}}"),
            Reply::Heap { watch, bytes } => write!(f, "{{\"watch\":{watch},\"heap\":{bytes}}}"),
            Reply::Watches { first, count } => write!(f, "{{\"watches\":[{first},{count}]}}"),
            Reply::Switched { watch, on } => write!(f, "{{\"watch\":{watch},\"on\":{on}}}"),
            Reply::Filtered(ids) => {
                f.write_str("{\"filtered\":[")?;
                for (n, id) in ids.iter().enumerate() {
                    write!(f, "{}{id}", if n > 0 { "," } else { "" })?;
                }
                f.write_str("]}")
            }
            Reply::Unwatched(Some((start, len))) => {
                write!(f, "{{\"unwatched\":{{\"start\":{start},\"len\":{len}}}}}")
            }
            Reply::Unwatched(None) => f.write_str("{\"unwatched\":{\"heap\":true}}"),
            Reply::About {
                session,
                pid,
                stops_at,
            } => write!(
                f,
                "{{\"session\":\"{session:#x}\",\"pid\":{pid},\"stops_at\":\"{stops_at:#x}\"}}"
            ),
            Reply::Refused(r) => write!(
                f,
                "{{\"refused\":{{\"what\":{},\"why\":{},\"what_to_do\":{}}}}}",
                Quoted(&r.what),
                Quoted(&r.why),
                Quoted(&r.what_to_do)
            ),
        }
    }
}

/// The beginning of what `ulpf stats` answers: all watches together. Lines of watches follow, with commas
/// between them, and `]}`.
#[derive(Clone, Copy, Default, Debug)]
pub struct Totals {
    pub faults: u64,
    pub false_positives: u64,
    pub slow: u64,
    pub syscalls: u64,
    /// System-call instructions that are patched, and that cannot be.
    pub sites: u64,
    pub sites_refused: u64,
    pub moved_pages: u64,
    /// Memory of the watchlist.
    pub watch_bytes: u64,
    /// The number that the next watch gets.
    pub next: u32,
    /// Hits that nobody can tell any more; only the bridge's front end says so.
    pub lost: Option<u64>,
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "{{\"faults\":{},\"false_positives\":{},\"slow\":{},\"syscalls\":{},\"sites\":{},\"sites_refused\":{},\"moved_pages\":{},\"watch_bytes\":{},\"next\":{}",
            self.faults,
            self.false_positives,
            self.slow,
            self.syscalls,
            self.sites,
            self.sites_refused,
            self.moved_pages,
            self.watch_bytes,
            self.next,
        )?;
        if let Some(lost) = self.lost {
            write!(f, ",\"lost\":{lost}")?;
        }
        f.write_str(",\"watches\":[")
    }
}

/// One watch in what `ulpf stats` answers.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    pub id: u32,
    pub of: CountedBytes,
    pub kind: WatchKind,
    pub hits: u64,
    pub silent: u64,
    pub filtered: u64,
    pub false_positives: u64,
    pub stops: u64,
    /// It lives in a debug register.
    pub register: bool,
    pub traps: u64,
    pub state: WatchState,
}

#[derive(Clone, Copy, Debug)]
pub enum CountedBytes {
    Range {
        start: u64,
        len: u64,
    },
    /// All of the heap: so many bytes.
    Heap(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchState {
    On,
    Off,
    /// Its memory is.
    Gone,
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{{\"id\":{},", self.id)?;
        match self.of {
            CountedBytes::Range { start, len } => write!(f, "\"start\":{start},\"len\":{len}")?,
            CountedBytes::Heap(bytes) => write!(f, "\"heap\":{bytes}")?,
        }
        write!(
            f,
            ",\"kind\":\"{}\",\"hits\":{},\"silent\":{},\"filtered\":{},\"false_positives\":{},\"stops\":{},\"placement\":\"{}\",\"traps\":{}{}}}",
            self.kind.word(),
            self.hits,
            self.silent,
            self.filtered,
            self.false_positives,
            self.stops,
            match self.register {
                true => "debug-register",
                false => "guard",
            },
            self.traps,
            match self.state {
                WatchState::On => "",
                WatchState::Off => ",\"off\":true",
                WatchState::Gone => ",\"gone\":true",
            },
        )
    }
}
