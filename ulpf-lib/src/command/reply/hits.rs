//! Hits in answers: a ring's record ([`Hit`]) in a form that does not need its writer's clock and tables.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::json::{Bytes, Quoted, or_null};
use crate::ring::{Hit, hit_flags};
use crate::syscalls;
use crate::watch::AccessKind;

/// Microseconds, written as seconds: `12.000345`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Micros(pub u64);

impl Micros {
    /// Rounds down.
    pub const fn of_nanos(nanos: u64) -> Micros {
        Micros(nanos / 1000)
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// The answer to `ulpf last`: the last accesses to some bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Last {
    /// The first byte.
    pub addr: u64,
    /// Number of bytes.
    pub len: u64,
    /// Age of the youngest logging watch there, or `None` without one.
    pub watched_since: Option<Micros>,
    /// Age beyond which accesses may have been overwritten, or `None` if all are there.
    pub reaches_back: Option<Micros>,
    /// The answer comes from records of last writers ([`crate::last_writer`]): `last` has each stretch of bytes with one
    /// last writer, ascending. Bytes that are in none of them have not been written since `watched_since`.
    pub stretches: bool,
    /// The youngest first, each as [`Which::Ago`].
    pub last: Vec<Record>,
}

/// The first line of the answer to `ulpf log`; records follow, a line each, the oldest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogHead {
    /// Session time before which hits may have been overwritten, or `None` if all are there.
    pub reaches_back: Option<Micros>,
}

/// The answer to `ulpf stop`: the hit behind the last stop, if a hit caused it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stop(pub Option<Record>);

/// A hit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Identity of the hit.
    pub which: Which,
    /// The Linux thread.
    pub tid: u32,
    /// The first watched byte that was accessed.
    pub addr: u64,
    /// `None`: the watch keeps no records.
    pub access: Option<Access>,
}

/// Identity of a hit in an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// Time before the query (`ulpf last`).
    Ago(Micros),
    /// Time after the beginning of the session (`ulpf log`).
    Logged {
        /// Since the beginning.
        time: Micros,
        /// The number of its watch.
        watch: u32,
    },
    /// The hit behind the last stop (`ulpf stop`).
    Stop {
        /// The number of its watch.
        watch: u32,
    },
}

/// The access.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// `read`, `write`, `update`.
    pub kind: AccessKind,
    /// Watched bytes that were accessed.
    pub len: u32,
    /// For a watch that moves: number of its bytes before the accessed ones.
    pub inside: u64,
    /// The old value may differ from the new value of the hit before.
    pub unchained: bool,
    /// `None` if not known.
    pub values: Option<Values>,
    /// The system call that made it: `read(3, 0x4010, 512) = 512`.
    pub call: Option<String>,
    /// The instruction's address.
    pub pc: u64,
    /// Return addresses, the innermost first.
    pub callers: Vec<u64>,
    /// Return addresses within a runtime library, out to the program's own call, if no callers were requested.
    pub through: Vec<u64>,
}

/// The watched bytes; for a long access its beginning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Values {
    /// Before it.
    pub old: Vec<u8>,
    /// After it.
    pub new: Vec<u8>,
    /// The write has left them unchanged.
    pub silent: bool,
}

impl Record {
    /// Converts a ring's record.
    pub fn of(which: Which, hit: &Hit) -> Record {
        let bytes = |all: &[u8]| Vec::from(all.get(..hit.used()).unwrap_or(all));
        let known = hit.flags & hit_flags::UNKNOWN == 0;
        let values = known.then(|| Values {
            old: bytes(&hit.old),
            new: bytes(&hit.new),
            silent: hit.flags & hit_flags::SILENT != 0,
        });
        let call = hit.call.as_ref().map(|c| {
            let mut text = String::new();
            // A string takes everything.
            let _ = syscalls::write_call(&mut text, c.nr, &c.args, c.result);
            text
        });
        let frames = |noted: bool| match noted {
            true => hit.frames.clone(),
            false => Vec::new(),
        };
        let through = hit.flags & hit_flags::CALLER != 0;
        Record {
            which,
            tid: hit.tid,
            addr: hit.addr,
            access: Some(Access {
                kind: match hit.kind {
                    1 => AccessKind::Read,
                    2 => AccessKind::Write,
                    _ => AccessKind::ReadWrite,
                },
                len: hit.len,
                inside: hit.inside,
                unchained: hit.flags & hit_flags::UNCHAINED != 0,
                values,
                call,
                pc: hit.pc,
                callers: frames(!through),
                through: frames(through),
            }),
        }
    }
}

/// The words for [`Access::kind`].
pub(super) const ACCESSES: [(&str, AccessKind); 3] = [
    ("read", AccessKind::Read),
    ("write", AccessKind::Write),
    ("update", AccessKind::ReadWrite),
];

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.which {
            Which::Ago(ago) => write!(f, "{{\"ago\":{ago}")?,
            Which::Logged { time, watch } => write!(f, "{{\"time\":{time},\"watch\":{watch}")?,
            Which::Stop { watch } => write!(f, "{{\"watch\":{watch}")?,
        }
        write!(f, ",\"tid\":{}", self.tid)?;
        let Some(a) = &self.access else {
            return write!(f, ",\"addr\":\"{:#x}\"}}", self.addr);
        };
        let known = ACCESSES.iter().find(|(_, kind)| *kind == a.kind);
        let word = known.map_or("update", |(word, _)| word);
        write!(
            f,
            ",\"access\":\"{word}\",\"addr\":\"{:#x}\",\"len\":{}",
            self.addr, a.len
        )?;
        if let Some(Values { old, new, silent }) = &a.values {
            let (old, new) = (Bytes(old), Bytes(new));
            write!(
                f,
                ",\"old_bytes\":{old},\"new_bytes\":{new},\"silent\":{silent}"
            )?;
        }
        if let Some(call) = &a.call {
            write!(f, ",\"call\":{}", Quoted(call))?;
        }
        write!(f, ",\"pc\":\"{:#x}\",\"callers\":", a.pc)?;
        addresses(&a.callers, f)?;
        if !a.through.is_empty() {
            f.write_str(",\"through\":")?;
            addresses(&a.through, f)?;
        }
        if a.inside != 0 {
            write!(f, ",\"inside\":{}", a.inside)?;
        }
        if a.unchained {
            f.write_str(",\"unchained\":true")?;
        }
        f.write_str("}")
    }
}

fn addresses(all: &[u64], f: &mut fmt::Formatter) -> fmt::Result {
    f.write_str("[")?;
    for (n, at) in all.iter().enumerate() {
        let comma = if n > 0 { "," } else { "" };
        write!(f, "{comma}\"{at:#x}\"")?;
    }
    f.write_str("]")
}

impl fmt::Display for Last {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{{\"addr\":\"{:#x}\",\"len\":{}", self.addr, self.len)?;
        f.write_str(",\"watched_since\":")?;
        or_null(self.watched_since, f)?;
        f.write_str(",\"reaches_back\":")?;
        or_null(self.reaches_back, f)?;
        if self.stretches {
            f.write_str(",\"stretches\":true")?;
        }
        f.write_str(",\"last\":[")?;
        for (n, record) in self.last.iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            write!(f, "{comma}{record}")?;
        }
        f.write_str("]}")
    }
}

impl fmt::Display for LogHead {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("{\"reaches_back\":")?;
        or_null(self.reaches_back, f)?;
        f.write_str("}")
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("{\"stop\":")?;
        or_null(self.0.as_ref(), f)?;
        f.write_str("}")
    }
}
