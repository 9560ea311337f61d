//! The commands of `monitor ulpf …`, as types: whoever sends one prints it, whoever gets one (our stub, and the
//! bridge's front end in a stub's place) parses it, and users type the same words. `reply` is what is answered.
//!
//! ```text
//! TEXT    := LINE ((';' | '\n') LINE)*
//! LINE    := 'ulpf' COMMAND                        see [`Command`]
//! WATCH   := r|w|rw HOW FILTER
//! HOW     := ['stop'] ['log'] ['freeze'] ['bt' N] ['auto' | 'guard' | 'debug-register']
//! FILTER  := see `filter/words.rs`
//! PATH    := see `command/path.rs`
//! PLACE   := ADDR:LEN['*'COUNT'+'STRIDE]           0x4040:8*1000+64: a thousand of them, 64 bytes apart
//! ```

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::addr::TargetAddr;
use crate::filter::Filter;
use crate::refusal::Refusal;
use crate::ring::MAX_FRAMES;
use crate::watch::{WatchKind, WatchRange};

mod functions;
pub mod looks;
mod parse;
mod path;
mod placement;
pub mod reply;
mod trace;

pub use functions::{Does, HeapFunction};
pub use path::{MOST_FOLLOWED, MOST_PATHS, MOST_POINTERS, Path, Step, Until};
pub use placement::Placement;
pub use reply::Reply;
pub use trace::{GIVEN_BACK, Run, State, Trace, Word};

/// Watches in one place: an answer has a line for each that is refused.
pub const MOST_IN_PLACE: u64 = 1 << 20;

/// A monitor command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// `help`
    Help,
    /// `watch ADDR LEN WATCH`, `watch PATH LEN WATCH`, `watch heap WATCH`
    Watch(Arm),
    /// `watches KIND HOW at PLACE…`: many of which the same is wanted.
    Watches {
        /// Which accesses.
        kind: WatchKind,
        /// The same for all of them.
        how: How,
        /// Or a word that is no place.
        places: Vec<Result<Place, String>>,
    },
    /// `unwatch ID`
    Unwatch(u32),
    /// `check ADDR LEN r|w|rw`: could a debugger's watch be armed there? Nothing is.
    Check {
        /// The first byte.
        addr: u64,
        /// Bytes.
        len: u64,
        /// Which accesses.
        kind: WatchKind,
    },
    /// `on ID`, `off ID`
    Switch {
        /// The number of the watch.
        id: u32,
        /// `on`
        on: bool,
    },
    /// `frame ID begins ADDR`, `frame ID ends ADDR`: the function has been entered whose locals a watch follows
    /// ([`Path::function`]), or has returned.
    Frame {
        /// The number of the watch.
        id: u32,
        /// Its canonical frame address.
        at: u64,
        /// `begins`
        begins: bool,
    },
    /// `filter ID FILTER`, `filter at ADDR LEN FILTER`
    Filter {
        /// Whose it is.
        of: FilterOf,
        /// The new one.
        filter: Filter,
        /// `keep`: go on counting where the filter before it was.
        keep: bool,
    },
    /// `condition ADDR LEN KIND FILTER`: what decides about the hits of the debugger's own watches on exactly
    /// these bytes, beside the debugger (GDB's plugin).
    Condition {
        /// The bytes.
        range: WatchRange,
        /// Of watches of this kind.
        kind: WatchKind,
        /// The default: nothing.
        filter: Filter,
    },
    /// `locals ADDR`: the stack pointer of the innermost function with a local that the debugger watches itself; 0:
    /// there is none.
    Locals(u64),
    /// `settle`: what the debugger has to make up for, since hits were decided without it ([`reply::Settle`]).
    Settle,
    /// `placement [WHERE]`
    Placement(Option<Placement>),
    /// `backend`: what guards are made of, and why.
    Backend,
    /// `stats`: the counters ([`reply::Totals`], [`reply::Counted`]).
    Stats,
    /// `about`: the process, and where stops are told ([`Reply::About`]).
    About,
    /// `why`: why the last watch was refused; which system call made the last hit.
    Why,
    /// `sites`: the system-call instructions met so far.
    Sites,
    /// `stop`: which watch made the last stop, and the access.
    Stop,
    /// `stop rest`: the other watches that the same instruction has hit, a line each. No stop tells of them any more.
    StopRest,
    /// `patch-syscalls on|off [after N]`
    PatchSyscalls {
        /// `on`
        on: bool,
        /// How many signals a site costs before it is patched.
        after: Option<u32>,
    },
    /// `patch [on|off] [after N] [patience N]`
    Patch {
        /// `None`: as it is.
        on: Option<bool>,
        /// How many false positives a site has before it is patched.
        after: Option<u32>,
        /// After how many accesses to pages without a guard a patch goes.
        patience: Option<u32>,
    },
    /// `patch sites [N]`
    PatchSites(u64),
    /// `last ADDR [LEN] [N]`
    Last {
        /// The first byte.
        addr: u64,
        /// Bytes.
        len: u64,
        /// How many accesses, from the last one back.
        most: u64,
    },
    /// `log [N]`
    Log(u64),
    /// `heap-check frames N quarantine BYTES gap BYTES [gap-most BYTES] [leaks] [stop] [running] [base] [of ADDR]`
    HeapCheck(HeapCheck),
    /// `heap-error`, `heap-block ADDR`, `heap-leaks`, `heap-pointers ADDR`
    HeapAsk(HeapAsk),
    /// `heap-functions FUNCTION ADDR LEN…`, behind `heap-check`
    HeapFunctions(Vec<HeapFunction>),
}

/// What can be asked of a checked heap. The stub finds it, and the server has the words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeapAsk {
    /// The error that the program has stopped for last. (The server's to answer.)
    Error,
    /// The block that has this byte, or is nearest.
    Block(u64),
    /// Blocks that nothing leads to.
    Leaks,
    /// Who points into the block that has this byte.
    Pointers(u64),
}

/// Bytes between blocks: multiples of 16, from 16 to 4096. (Large blocks have more behind them.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// At least.
    pub least: u64,
    /// If that is more, each block has a random number from `least` to it.
    pub most: u64,
}

impl Gap {
    /// What is allowed for both.
    pub const BYTES: core::ops::RangeInclusive<u64> = 16..=4096;
}

/// How the program's heap is to be checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeapCheck {
    /// Callers that are noted for each block, at most 16.
    pub frames: u8,
    /// Bytes that freed blocks may take, with what is known of them, before the oldest are used again.
    pub quarantine: u64,
    /// Bytes between blocks.
    pub gap: Gap,
    /// Blocks that are left at the end are looked for.
    pub leaks: bool,
    /// The program stops at its errors, for a debugger.
    pub stop: bool,
    /// The program has run already: it has blocks of its own.
    pub running: bool,
    /// Accesses are compared with the pointer in their operand also where that is a guess, and always.
    pub base: bool,
    /// Of a forked child: the boot block of its parent's stub, whose heap it has.
    pub of: Option<u64>,
}

impl Default for HeapCheck {
    fn default() -> HeapCheck {
        HeapCheck {
            frames: 8,
            quarantine: 64 << 20,
            gap: Gap {
                least: 16,
                most: 16,
            },
            leaks: true,
            stop: false,
            running: false,
            base: false,
            of: None,
        }
    }
}

/// A watch that is wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arm {
    /// What is watched.
    pub what: What,
    /// Which accesses.
    pub kind: WatchKind,
    /// What is done at a hit.
    pub how: How,
    /// Which hits matter.
    pub filter: Filter,
}

/// Which bytes a watch is to have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// These.
    Range(WatchRange),
    /// So many at the end of a path, wherever that leads.
    Along(Path, u64),
    /// All that the program allocates.
    Heap,
}

impl What {
    /// The bytes, if they stay the same.
    pub fn range(&self) -> Option<WatchRange> {
        match self {
            What::Range(range) => Some(*range),
            What::Along(..) | What::Heap => None,
        }
    }

    /// How many bytes there are, if that stays the same.
    pub fn bytes(&self) -> Option<u64> {
        match self {
            What::Range(range) => Some(range.len),
            What::Along(_, len) => Some(*len),
            What::Heap => None,
        }
    }
}

/// What is to be done at a hit, and where the watch is to live.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct How {
    /// The program stops.
    pub stop: bool,
    /// The hit goes into the log.
    pub log: bool,
    /// The bytes stay what they are when the watch is set: a store that changes them is undone before its thread goes on.
    pub freeze: bool,
    /// Frames of a backtrace in the log.
    pub backtrace: u8,
    /// `None`: as `placement` says.
    pub placement: Option<Placement>,
}

/// Whose filter it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilterOf {
    /// Of the watch with this number.
    Watch(u32),
    /// Of the debugger's own watches on exactly these bytes, now and later.
    Range(WatchRange),
}

/// So many watches of `len` bytes from `start` on, `stride` bytes apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The first byte of the first one.
    pub start: u64,
    /// Bytes of each.
    pub len: u64,
    /// How many.
    pub count: u64,
    /// From the start of one to the start of the next, in bytes.
    pub stride: u64,
}

impl Place {
    /// The ranges; `None` for those that no watch can have.
    pub fn ranges(self) -> impl Iterator<Item = Option<WatchRange>> {
        (0..self.count).map(move |n| {
            let start = self.start.checked_add(self.stride.checked_mul(n)?)?;
            WatchRange::new(TargetAddr(start), self.len)
        })
    }
}

/// Why a line is no command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// It does not begin with `ulpf`.
    Foreign,
    /// No command has this name.
    Unknown(String),
    /// A command, but it cannot be carried out as it is written.
    Refused(Refusal),
}

/// The lines of a monitor command.
pub fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split([';', '\n'])
        .map(str::trim)
        .filter(|line| !line.is_empty())
}

/// Each part has a blank before it.
impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (said, word) in [
            (self.stop, " stop"),
            (self.log, " log"),
            (self.freeze, " freeze"),
        ] {
            if said {
                f.write_str(word)?;
            }
        }
        if self.backtrace > 0 {
            write!(f, " bt {}", self.backtrace)?;
        }
        self.placement.map_or(Ok(()), |p| write!(f, " {p}"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:#x}:{}", self.start, self.len)?;
        match (self.count, self.stride) {
            (1, 0) => Ok(()),
            (count, stride) => write!(f, "*{count}+{stride}"),
        }
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.what {
            What::Heap => f.write_str("heap ")?,
            What::Range(r) => write!(f, "{:#x} {} ", r.start.0, r.len)?,
            What::Along(path, len) => write!(f, "{path} {len} ")?,
        }
        write!(f, "{}{}{}", self.kind.word(), self.how, self.filter)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let on = |on: bool| if on { "on" } else { "off" };
        f.write_str("ulpf ")?;
        match self {
            Command::Help => f.write_str("help"),
            Command::Watch(arm) => write!(f, "watch {arm}"),
            Command::Watches { kind, how, places } => {
                write!(f, "watches {}{how} at", kind.word())?;
                places.iter().try_for_each(|place| match place {
                    Ok(place) => write!(f, " {place}"),
                    Err(word) => write!(f, " {word}"),
                })
            }
            Command::Unwatch(id) => write!(f, "unwatch {id}"),
            Command::Check { addr, len, kind } => {
                write!(f, "check {addr:#x} {len} {}", kind.word())
            }
            Command::Switch { id, on: to } => write!(f, "{} {id}", on(*to)),
            Command::Frame { id, at, begins } => {
                let begins = if *begins { "begins" } else { "ends" };
                write!(f, "frame {id} {begins} {at:#x}")
            }
            Command::Filter { of, filter, keep } => {
                match of {
                    FilterOf::Watch(id) => write!(f, "filter {id}")?,
                    FilterOf::Range(r) => write!(f, "filter at {:#x} {}", r.start.0, r.len)?,
                }
                f.write_str(if *keep { " keep" } else { "" })?;
                write!(f, "{filter}")
            }
            Command::Condition {
                range: r,
                kind,
                filter,
            } => write!(
                f,
                "condition {:#x} {} {}{filter}",
                r.start.0,
                r.len,
                kind.word()
            ),
            Command::Locals(at) => write!(f, "locals {at:#x}"),
            Command::Settle => f.write_str("settle"),
            Command::Placement(None) => f.write_str("placement"),
            Command::Placement(Some(to)) => write!(f, "placement {to}"),
            Command::Backend => f.write_str("backend"),
            Command::Stats => f.write_str("stats"),
            Command::About => f.write_str("about"),
            Command::Why => f.write_str("why"),
            Command::Sites => f.write_str("sites"),
            Command::Stop => f.write_str("stop"),
            Command::StopRest => f.write_str("stop rest"),
            Command::PatchSyscalls { on: to, after } => {
                write!(f, "patch-syscalls {}", on(*to))?;
                after.map_or(Ok(()), |n| write!(f, " after {n}"))
            }
            Command::Patch {
                on: to,
                after,
                patience,
            } => {
                f.write_str("patch")?;
                to.map_or(Ok(()), |to| write!(f, " {}", on(to)))?;
                after.map_or(Ok(()), |n| write!(f, " after {n}"))?;
                patience.map_or(Ok(()), |n| write!(f, " patience {n}"))
            }
            Command::PatchSites(n) => write!(f, "patch sites {n}"),
            Command::Last { addr, len, most } => write!(f, "last {addr:#x} {len} {most}"),
            Command::Log(n) => write!(f, "log {n}"),
            Command::HeapAsk(HeapAsk::Error) => f.write_str("heap-error"),
            Command::HeapAsk(HeapAsk::Leaks) => f.write_str("heap-leaks"),
            Command::HeapAsk(HeapAsk::Block(at)) => write!(f, "heap-block {at:#x}"),
            Command::HeapAsk(HeapAsk::Pointers(at)) => write!(f, "heap-pointers {at:#x}"),
            Command::HeapCheck(how) => {
                let leaks = if how.leaks { " leaks" } else { "" };
                let stop = if how.stop { " stop" } else { "" };
                let running = if how.running { " running" } else { "" };
                let base = if how.base { " base" } else { "" };
                let HeapCheck {
                    frames,
                    quarantine,
                    gap,
                    ..
                } = how;
                write!(
                    f,
                    "heap-check frames {frames} quarantine {quarantine} gap {}",
                    gap.least
                )?;
                if gap.most > gap.least {
                    write!(f, " gap-most {}", gap.most)?;
                }
                write!(f, "{leaks}{stop}{running}{base}")?;
                how.of.map_or(Ok(()), |at| write!(f, " of {at:#x}"))
            }
            Command::HeapFunctions(all) => {
                f.write_str("heap-functions")?;
                all.iter().try_for_each(|one| write!(f, " {one}"))
            }
        }
    }
}

#[cfg(test)]
mod tests;
