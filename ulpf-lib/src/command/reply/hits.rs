//! Hits as answers tell of them: a ring's record ([`Hit`]) without what only its writer's clock and tables explain.

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
    /// The rest is left out.
    pub const fn of_nanos(nanos: u64) -> Micros {
        Micros(nanos / 1000)
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// What `ulpf last` answers: who has written some bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Last {
    /// The first byte.
    pub addr: u64,
    /// How many.
    pub len: u64,
    /// So long a watch has logged there; `None`: none does.
    pub watched_since: Option<Micros>,
    /// What is longer ago may have been overwritten; `None`: nothing has been.
    pub reaches_back: Option<Micros>,
    /// The youngest first, each [`Which::Ago`].
    pub last: Vec<Record>,
}

/// The first line of what `ulpf log` answers; records follow, a line each, the oldest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogHead {
    /// What was before may have been overwritten, in time since the session began; `None`: nothing has been.
    pub reaches_back: Option<Micros>,
}

/// What `ulpf stop` answers: the hit behind the last stop, if it was one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stop(pub Option<Record>);

/// A hit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Which one it is.
    pub which: Which,
    /// The Linux thread.
    pub tid: u32,
    /// The first watched byte that was accessed.
    pub addr: u64,
    /// `None`: the watch keeps no records.
    pub access: Option<Access>,
}

/// What an answer says of a hit to tell it from others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// So long before the question (`ulpf last`).
    Ago(Micros),
    /// So long after the session began (`ulpf log`).
    Logged {
        /// Since the beginning.
        time: Micros,
        /// The number of its watch.
        watch: u32,
    },
    /// The one behind the last stop (`ulpf stop`).
    Stop {
        /// The number of its watch.
        watch: u32,
    },
}

/// What has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// `read`, `write`, `update`.
    pub kind: AccessKind,
    /// Watched bytes that were accessed.
    pub len: u32,
    /// Of a watch that moves: how many of its bytes are before them.
    pub inside: u64,
    /// The old value is not known to be what the hit before has left.
    pub unchained: bool,
    /// `None`: not known.
    pub values: Option<Values>,
    /// The system call that made it: `read(3, 0x4010, 512) = 512`.
    pub call: Option<String>,
    /// The instruction's address.
    pub pc: u64,
    /// Return addresses, the innermost first.
    pub callers: Vec<u64>,
    /// The way out of a library that every program has, to the program's own call, where no callers were asked for.
    pub through: Vec<u64>,
}

/// The watched bytes; of a long access the beginning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Values {
    /// Before it.
    pub old: Vec<u8>,
    /// After it.
    pub new: Vec<u8>,
    /// A write that has left them as they were.
    pub silent: bool,
}

impl Record {
    /// What a ring has of it.
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

/// As [`Access::kind`] is written.
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
