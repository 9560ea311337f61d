//! The packets of ulpf's own: what a back end reports beside the remote protocol (docs/bridge.md). No I/O.
//!
//! ```text
//!     qUlpf.About               aROLE;KIND;NAME                              NAME in hex digits
//!     qUlpf.Counts:FROM         cFROM,FAULTS,FALSE,SLOW,CALLS;WATCH;WATCH…   watches from number FROM on
//!     qUlpf.Hits:SINCE,MOST     hSINCE,LAST,LOST,STOP;HIT;HIT…               hits with higher numbers than SINCE
//!     WATCH := ID,ADDR,LEN,KIND,HITS,SILENT,FILTERED,STOPS,FALSE[,FLAGS]     KIND: w, r, rw; FLAGS: l, d, g
//!     HIT   := NUMBER,WATCH,PC,THREAD,ACCESS,ADDR,LEN,OLD,NEW[,c]            ACCESS: w, r, rw
//! ```
//! Numbers are hexadecimal. A reply repeats its request's first number and begins with a letter that no stop reply has,
//! so that it is recognised while the program runs. It has as many whole entries as fit into [`MOST_BYTES`].

use crate::{from_hex, hex_number, to_hex};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use ulpf_lib::filter::{Candidate, Filter};
use ulpf_lib::{AccessKind, WatchKind};

/// Prefix of all of these packets.
pub const PREFIX: &[u8] = b"qUlpf.";
/// The packet that asks whether a stub has these packets. Other stubs answer it with an empty packet.
pub const ABOUT: &[u8] = b"qUlpf.About";

/// Limit of a reply in bytes.
pub const MOST_BYTES: usize = 1 << 18;

/// How far a stub serves ulpf's watches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It has all monitor commands of ulpf's stub.
    Commands,
    /// It has `monitor ulpf watch`, `unwatch`, `filter` and `stats`, and numbers its watches.
    Watches,
    /// It has none of these.
    Plain,
}

/// A stub's description of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct About {
    pub role: Role,
    /// Its kind, a word: `unicorn`, `stub`.
    pub kind: String,
    /// Its name, for people.
    pub name: String,
}

/// A hit: the effect of one instruction, or one system call, on one watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hit {
    /// Hits are numbered from 1.
    pub sequence: u64,
    pub watch: u64,
    /// The instruction that made the access (not the next one).
    pub pc: u64,
    pub thread: u64,
    pub access: AccessKind,
    /// First accessed byte of the watch. For a long access `old` and `new` have the beginning.
    pub addr: u64,
    pub len: u64,
    /// Empty if not known.
    pub old: Vec<u8>,
    pub new: Vec<u8>,
    /// The kernel made the access, in a system call.
    pub system_call: bool,
}

impl Hit {
    /// A write that left the value as it was, as far as that is known.
    pub fn is_silent(&self) -> bool {
        self.access.writes() && !self.old.is_empty() && self.old == self.new
    }

    /// The `number`th hit of a watch on `len` bytes at `addr`, for its filter.
    pub fn candidate(&self, filter: &Filter, addr: u64, len: u64, number: u64) -> Candidate<'_> {
        Candidate {
            pc: self.pc,
            thread: self.thread,
            kind: self.access,
            start: self.addr,
            len: self.len,
            watch: addr..addr.saturating_add(len),
            old: Some(&self.old),
            silent: self.is_silent(),
            number,
            unit: filter.unit_of(Some(len)),
        }
    }
}

/// Counters of a watch.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct WatchCounts {
    pub hits: u64,
    /// Hits that left the value as it was.
    pub silent: u64,
    /// Hits that the filter has rejected.
    pub filtered: u64,
    pub stops: u64,
    /// Accesses to its pages that met no watch.
    pub false_positives: u64,
    /// It lives in a debug register (flag `g`).
    pub register: bool,
}

impl WatchCounts {
    /// The sum; the placement is that of `more`.
    pub fn and(self, more: WatchCounts) -> WatchCounts {
        WatchCounts {
            hits: self.hits + more.hits,
            silent: self.silent + more.silent,
            filtered: self.filtered + more.filtered,
            stops: self.stops + more.stops,
            false_positives: self.false_positives + more.false_positives,
            register: more.register,
        }
    }
}

/// A watch, and what it has counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    pub id: u64,
    pub addr: u64,
    pub len: u64,
    pub kind: WatchKind,
    pub counts: WatchCounts,
    /// Its hits are reported (flag `l`).
    pub log: bool,
    /// The debugger has set it, not a command of ulpf (flag `d`).
    pub debuggers: bool,
}

/// Counters of all watches together.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Totals {
    pub faults: u64,
    pub false_positives: u64,
    /// Accesses for which all threads were stopped.
    pub slow: u64,
    pub syscalls: u64,
}

/// Reply to `qUlpf.Counts`.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    pub from: u64,
    pub totals: Totals,
    /// By ascending number. The last reply of a list has none.
    pub watches: Vec<Listed>,
}

/// Reply to `qUlpf.Hits`.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Hits {
    pub since: u64,
    /// Number of the last hit so far.
    pub last: u64,
    /// Number of requested hits that are no longer kept.
    pub lost: u64,
    /// Number of the first hit of the instruction at which the program has stopped, or 0.
    pub stop: u64,
    pub hits: Vec<Hit>,
}

/// A request for one of these reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    About,
    /// Watches from this number on.
    Counts(u64),
    Hits {
        since: u64,
        most: u64,
    },
}

impl Ask {
    /// Returns `None` if the packet is not one of these requests.
    pub fn parse(packet: &[u8]) -> Option<Ask> {
        if packet == ABOUT {
            return Some(Ask::About);
        }
        if let Some(from) = packet.strip_prefix(b"qUlpf.Counts:") {
            return Some(Ask::Counts(hex_number(from)?));
        }
        let [since, most] = numbers(packet.strip_prefix(b"qUlpf.Hits:")?)?;
        Some(Ask::Hits { since, most })
    }

    pub fn packet(self) -> String {
        match self {
            Ask::About => "qUlpf.About".into(),
            Ask::Counts(from) => format!("qUlpf.Counts:{from:x}"),
            Ask::Hits { since, most } => format!("qUlpf.Hits:{since:x},{most:x}"),
        }
    }

    /// Whether a packet is the reply to this request, rather than a stop or a late reply to another one.
    pub fn is_answered_by(self, reply: &[u8]) -> bool {
        let (letter, number) = match self {
            Ask::About => return reply.first() == Some(&b'a') || reply.is_empty(),
            Ask::Counts(from) => (b'c', from),
            Ask::Hits { since, .. } => (b'h', since),
        };
        let Some((&first, rest)) = reply.split_first() else {
            return true;
        };
        let end = rest.iter().position(|&b| b == b',').unwrap_or(rest.len());
        first == letter && hex_number(&rest[..end]) == Some(number)
    }
}

/// Exactly `N` hexadecimal numbers with commas between them.
fn numbers<const N: usize>(text: &[u8]) -> Option<[u64; N]> {
    let all: Option<Vec<u64>> = text.split(|&b| b == b',').map(hex_number).collect();
    all?.try_into().ok()
}

/// Appends entries while they fit.
fn append<T>(out: &mut String, all: impl IntoIterator<Item = T>, text: impl Fn(T) -> String) {
    for one in all {
        let one = text(one);
        if out.len() + 1 + one.len() > MOST_BYTES {
            return;
        }
        out.push(';');
        out.push_str(&one);
    }
}

impl About {
    pub fn reply(&self) -> String {
        let role = match self.role {
            Role::Commands => "commands",
            Role::Watches => "watches",
            Role::Plain => "",
        };
        format!("a{role};{};{}", self.kind, to_hex(self.name.as_bytes()))
    }

    /// A role that this version does not know is [`Role::Plain`]. `None`: this is not the reply.
    pub fn parse(reply: &[u8]) -> Option<About> {
        let mut parts = reply.strip_prefix(b"a")?.split(|&b| b == b';');
        let role = match parts.next()? {
            b"commands" => Role::Commands,
            b"watches" => Role::Watches,
            _ => Role::Plain,
        };
        let kind = String::from_utf8(parts.next()?.to_vec()).ok()?;
        let name = String::from_utf8_lossy(&from_hex(parts.next()?)?).into_owned();
        let is_word = !kind.is_empty() && kind.bytes().all(|b| b.is_ascii_alphanumeric());
        is_word.then_some(About { role, kind, name })
    }
}

impl Listed {
    fn text(&self) -> String {
        let c = &self.counts;
        let mut out = format!(
            "{:x},{:x},{:x},{},{:x},{:x},{:x},{:x},{:x},",
            self.id,
            self.addr,
            self.len,
            self.kind.word(),
            c.hits,
            c.silent,
            c.filtered,
            c.stops,
            c.false_positives,
        );
        for (set, flag) in [(self.log, 'l'), (self.debuggers, 'd'), (c.register, 'g')] {
            if set {
                out.push(flag);
            }
        }
        out
    }

    fn parse(text: &[u8]) -> Option<Listed> {
        let mut fields = text.split(|&b| b == b',');
        let mut number = || hex_number(fields.next()?);
        let (id, addr, len) = (number()?, number()?, number()?);
        let kind = WatchKind::parse(core::str::from_utf8(fields.next()?).ok()?)?;
        let mut number = || hex_number(fields.next()?);
        let (hits, silent, filtered) = (number()?, number()?, number()?);
        let (stops, false_positives) = (number()?, number()?);
        let flags = fields.next().unwrap_or_default();
        Some(Listed {
            id,
            addr,
            len,
            kind,
            counts: WatchCounts {
                hits,
                silent,
                filtered,
                stops,
                false_positives,
                register: flags.contains(&b'g'),
            },
            log: flags.contains(&b'l'),
            debuggers: flags.contains(&b'd'),
        })
    }
}

impl Counts {
    pub fn reply<'a>(
        from: u64,
        totals: &Totals,
        watches: impl IntoIterator<Item = &'a Listed>,
    ) -> String {
        let mut out = format!(
            "c{from:x},{:x},{:x},{:x},{:x}",
            totals.faults, totals.false_positives, totals.slow, totals.syscalls
        );
        append(&mut out, watches, Listed::text);
        out
    }

    pub fn parse(reply: &[u8]) -> Option<Counts> {
        let mut parts = reply.strip_prefix(b"c")?.split(|&b| b == b';');
        let [from, faults, false_positives, slow, syscalls] = numbers(parts.next()?)?;
        Some(Counts {
            from,
            totals: Totals {
                faults,
                false_positives,
                slow,
                syscalls,
            },
            watches: parts.map(Listed::parse).collect::<Option<_>>()?,
        })
    }
}

impl Hit {
    fn text(&self) -> String {
        let access = match self.access {
            AccessKind::Write => "w",
            AccessKind::Read => "r",
            AccessKind::ReadWrite => "rw",
        };
        let mut out = format!(
            "{:x},{:x},{:x},{:x},{access},{:x},{:x},{},{}",
            self.sequence,
            self.watch,
            self.pc,
            self.thread,
            self.addr,
            self.len,
            to_hex(&self.old),
            to_hex(&self.new),
        );
        if self.system_call {
            let _ = write!(out, ",c");
        }
        out
    }

    fn parse(text: &[u8]) -> Option<Hit> {
        let mut fields = text.split(|&b| b == b',');
        let mut number = || hex_number(fields.next()?);
        let (sequence, watch, pc, thread) = (number()?, number()?, number()?, number()?);
        let access = match fields.next()? {
            b"w" => AccessKind::Write,
            b"r" => AccessKind::Read,
            b"rw" => AccessKind::ReadWrite,
            _ => return None,
        };
        let mut number = || hex_number(fields.next()?);
        let (addr, len) = (number()?, number()?);
        let (old, new) = (from_hex(fields.next()?)?, from_hex(fields.next()?)?);
        Some(Hit {
            sequence,
            watch,
            pc,
            thread,
            access,
            addr,
            len,
            old,
            new,
            system_call: fields.next() == Some(b"c"),
        })
    }
}

impl Hits {
    /// `head` has the numbers; its `hits` are not used.
    pub fn reply<'a>(head: &Hits, hits: impl IntoIterator<Item = &'a Hit>) -> String {
        let Hits {
            since,
            last,
            lost,
            stop,
            ..
        } = head;
        let mut out = format!("h{since:x},{last:x},{lost:x},{stop:x}");
        append(&mut out, hits, Hit::text);
        out
    }

    pub fn parse(reply: &[u8]) -> Option<Hits> {
        let mut parts = reply.strip_prefix(b"h")?.split(|&b| b == b';');
        let [since, last, lost, stop] = numbers(parts.next()?)?;
        Some(Hits {
            since,
            last,
            lost,
            stop,
            hits: parts.map(Hit::parse).collect::<Option<_>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    fn hit(sequence: u64) -> Hit {
        Hit {
            sequence,
            watch: 3,
            pc: 0x401000,
            thread: 1,
            access: AccessKind::ReadWrite,
            addr: 0x4a0000,
            len: 4,
            old: vec![1, 0, 0, 0],
            new: vec![2, 0, 0, 0],
            system_call: false,
        }
    }

    #[test]
    fn as_the_book_writes_them() {
        let said = b"aunknown;unicorn;756c70662d73696d";
        let about = About::parse(said).unwrap();
        assert_eq!((about.role, &about.name[..]), (Role::Plain, "ulpf-sim"));
        let about = About {
            role: Role::Watches,
            ..about
        };
        assert_eq!(about.reply(), "awatches;unicorn;756c70662d73696d");
        let head = Hits {
            since: 6,
            last: 7,
            stop: 7,
            ..Hits::default()
        };
        let reply = Hits::reply(&head, &[hit(7)]);
        assert_eq!(reply, "h6,7,0,7;7,3,401000,1,rw,4a0000,4,01000000,02000000");
        let listed = Listed {
            id: 3,
            addr: 0x4a0000,
            len: 4,
            kind: WatchKind::Access,
            counts: WatchCounts {
                hits: 7,
                silent: 1,
                filtered: 0,
                stops: 2,
                false_positives: 16,
                register: true,
            },
            log: true,
            debuggers: false,
        };
        let reply = Counts::reply(1, &Totals::default(), [&listed]);
        assert_eq!(reply, "c1,0,0,0,0;3,4a0000,4,rw,7,1,0,2,10,lg");
        assert_eq!(Counts::parse(reply.as_bytes()).unwrap().watches, [listed]);
        for ask in [Ask::About, Ask::Counts(9), Ask::Hits { since: 16, most: 1 }] {
            assert_eq!(Ask::parse(ask.packet().as_bytes()), Some(ask));
        }
    }

    #[test]
    fn other_replies_are_not_taken() {
        let ask = Ask::Hits { since: 6, most: 1 };
        for (reply, is) in [
            (&b"h6,7,0,0"[..], true),
            (b"h5,7,0,0", false),
            (b"c6,0,0,0,0", false),
            (b"T05thread:1;", false),
            (b"", true),
        ] {
            assert_eq!(ask.is_answered_by(reply), is, "{reply:?}");
        }
        for bad in [
            "h",
            "h1",
            "h1,2,3,4;",
            "h1,2,3,4;1",
            "h1,2,3,g",
            "c1,2,3,4",
            "a;;",
            "awatches;a b;",
        ] {
            let bad = bad.as_bytes();
            assert!(Hits::parse(bad).is_none() && Counts::parse(bad).is_none());
            assert!(About::parse(bad).is_none());
        }
    }

    #[test]
    fn a_reply_has_an_end() {
        let hits: Vec<Hit> = (1..=20_000).map(hit).collect();
        let reply = Hits::reply(&Hits::default(), &hits);
        let parsed = Hits::parse(reply.as_bytes()).unwrap();
        assert!(reply.len() <= MOST_BYTES && parsed.hits.len() > 4000);
        assert_eq!(parsed.hits, hits[..parsed.hits.len()]);
    }

    #[test]
    fn what_is_not_known_is_not_silent() {
        let mut hit = hit(1);
        hit.new = hit.old.clone();
        assert!(hit.is_silent());
        (hit.old, hit.new) = (vec![], vec![]);
        assert!(!hit.is_silent());
    }

    proptest! {
        #[test]
        fn hits_come_back(n: [u64; 6], old: Vec<u8>, new: Vec<u8>, call: bool) {
            let [sequence, watch, pc, thread, addr, len] = n;
            let hit = Hit { sequence, watch, pc, thread, addr, len, old, new, system_call: call, access: AccessKind::Read };
            prop_assert_eq!(Hit::parse(hit.text().as_bytes()), Some(hit));
        }

        #[test]
        fn anything_is_parsed_or_refused(bytes: Vec<u8>, words in "[ach0-9a-f,;:rwl]{0,40}") {
            for text in [&bytes[..], words.as_bytes()] {
                let _ = (Hits::parse(text), Counts::parse(text), About::parse(text), Ask::parse(text));
            }
        }
    }
}
