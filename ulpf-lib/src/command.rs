//! The commands of `monitor ulpf …`, as types. The sender prints one; the receiver (our stub, or the bridge's front end
//! in place of a stub) parses it. Users type the same words. `reply` has the answers.
//!
//! ```text
//!     TEXT    := LINE ((';' | '\n') LINE)*
//!     LINE    := 'ulpf' COMMAND                        see [`Command`]
//!     WATCH   := r|w|rw HOW FILTER
//!     HOW     := ['stop'] ['log'] ['freeze'] ['bt' N] ['auto' | 'guard' | 'debug-register']
//!     FILTER  := see `filter/words.rs`
//!     PATH    := see `command/path.rs`
//!     PLACE   := ADDR:LEN['*'COUNT'+'STRIDE]           0x4040:8*1000+64: a thousand ranges, 64 bytes apart
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

/// Maximum number of watches of one `PLACE`: the answer has a line for each refused one.
pub const MOST_IN_PLACE: u64 = 1 << 20;

/// A monitor command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// `help`
    Help,
    /// `watch ADDR LEN WATCH`, `watch PATH LEN WATCH`, `watch heap WATCH`
    Watch(Arm),
    /// `watches KIND HOW at PLACE…`: many watches of the same kind.
    Watches {
        /// Which accesses.
        kind: WatchKind,
        /// The same for all of them.
        how: How,
        /// Each place, or a word that does not parse as one.
        places: Vec<Result<Place, String>>,
    },
    /// `unwatch ID`
    Unwatch(u32),
    /// `check ADDR LEN r|w|rw`: whether a debugger's watch could be armed there. Arms nothing.
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
    /// `frame ID begins ADDR`, `frame ID ends ADDR`: the function whose locals a watch follows ([`Path::function`]) has
    /// been entered, or has returned.
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
        /// The watch whose filter is set.
        of: FilterOf,
        /// The new one.
        filter: Filter,
        /// `keep`: continue counting at the former filter's counts.
        keep: bool,
    },
    /// `condition ADDR LEN KIND FILTER`: the condition on the debugger's own watches on exactly these bytes, which the
    /// stub evaluates beside the debugger (GDB's plugin).
    Condition {
        /// The bytes.
        range: WatchRange,
        /// Of watches of this kind.
        kind: WatchKind,
        /// The default filter removes the condition.
        filter: Filter,
    },
    /// `locals ADDR`: the stack pointer of the innermost function with a local that the debugger watches itself, or 0
    /// without such a function.
    Locals(u64),
    /// `settle`: the state that the debugger has to update, because hits were decided without it ([`reply::Settle`]).
    Settle,
    /// `placement [WHERE]`
    Placement(Option<Placement>),
    /// `backend`: the mechanism of the guards, with the reason.
    Backend,
    /// `stats`: the counters ([`reply::Totals`], [`reply::Counted`]).
    Stats,
    /// `about`: the process, and the address at which stops are reported ([`Reply::About`]).
    About,
    /// `why`: the reason why the last watch was refused, or the system call that made the last hit.
    Why,
    /// `sites`: the system-call instructions met so far.
    Sites,
    /// `stop`: the watch behind the last stop, and the access.
    Stop,
    /// `stop rest`: the other watches that the same instruction has hit, a line each. No further stop reports them.
    StopRest,
    /// `patch-syscalls on|off [after N]`
    PatchSyscalls {
        /// `on`
        on: bool,
        /// Number of signals after which a site is patched.
        after: Option<u32>,
    },
    /// `patch [on|off] [after N] [patience N]`
    Patch {
        /// `None`: as it is.
        on: Option<bool>,
        /// Number of false positives after which a site is patched.
        after: Option<u32>,
        /// Number of accesses to pages without a guard after which a patch is removed.
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
        /// Maximum number of accesses, the youngest first.
        most: u64,
    },
    /// `log [N]`
    Log(u64),
    /// `last-writers`: from now on, each byte of heap and data has its last writer ([`crate::last_writer`]).
    LastWriters,
    /// `heap-check frames N quarantine BYTES redzone BYTES [redzone-most BYTES] [leaks] [stop] [running] [base] [of ADDR]`
    HeapCheck(HeapCheck),
    /// `heap-error`, `heap-block ADDR`, `heap-leaks`, `heap-pointers ADDR`
    HeapAsk(HeapAsk),
    /// `heap-functions FUNCTION ADDR LEN…`, behind `heap-check`
    HeapFunctions(Vec<HeapFunction>),
}

/// Questions about a checked heap. The stub finds the answer, and the server puts it into words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeapAsk {
    /// The error at which the program has stopped last. (The server answers this one.)
    Error,
    /// The block that contains this byte, or the nearest one.
    Block(u64),
    /// Blocks that no pointer leads to.
    Leaks,
    /// Pointers into the block that contains this byte.
    Pointers(u64),
}

/// Size of the redzone between blocks, in bytes: multiples of 16, from 16 to 4096. (Large blocks have a larger one behind
/// them.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Redzone {
    /// Minimum.
    pub least: u64,
    /// Maximum. If it exceeds `least`, each block gets a random size between the two.
    pub most: u64,
}

impl Redzone {
    /// Allowed range of both.
    pub const BYTES: core::ops::RangeInclusive<u64> = 16..=4096;
}

/// How the program's heap is to be checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeapCheck {
    /// Callers that are noted for each block, at most 16.
    pub frames: u8,
    /// Bytes that freed blocks may take, with their records, before the oldest are used again.
    pub quarantine: u64,
    /// Redzone between blocks.
    pub redzone: Redzone,
    /// Reports the blocks that are left at the end.
    pub leaks: bool,
    /// The program stops at its errors, for a debugger.
    pub stop: bool,
    /// The program has run before the check, so it has blocks of its own.
    pub running: bool,
    /// Compares every access with the pointer in its operand, also where the pointer is a guess.
    pub base: bool,
    /// For a forked child: the boot block of its parent's stub, whose heap it has inherited.
    pub of: Option<u64>,
}

impl Default for HeapCheck {
    fn default() -> HeapCheck {
        HeapCheck {
            frames: 8,
            quarantine: 64 << 20,
            redzone: Redzone {
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
    /// The actions at a hit.
    pub how: How,
    /// Which hits matter.
    pub filter: Filter,
}

/// The bytes of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// These.
    Range(WatchRange),
    /// This number of bytes at the end of a path, wherever that leads.
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

    /// Number of bytes, if it stays the same.
    pub fn bytes(&self) -> Option<u64> {
        match self {
            What::Range(range) => Some(range.len),
            What::Along(_, len) => Some(*len),
            What::Heap => None,
        }
    }
}

/// The actions at a hit, and the placement of the watch.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct How {
    /// The program stops.
    pub stop: bool,
    /// The hit goes into the log.
    pub log: bool,
    /// The bytes keep the value that they have when the watch is set: a store that changes them is undone before its
    /// thread continues.
    pub freeze: bool,
    /// Frames of a backtrace in the log.
    pub backtrace: u8,
    /// `None`: as `placement` says.
    pub placement: Option<Placement>,
}

/// The owner of a filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FilterOf {
    /// The watch with this number.
    Watch(u32),
    /// The debugger's own watches on exactly these bytes, now and later.
    Range(WatchRange),
}

/// `count` watches of `len` bytes each, the first at `start`, `stride` bytes apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// First byte of the first watch.
    pub start: u64,
    /// Bytes of each watch.
    pub len: u64,
    /// Number of watches.
    pub count: u64,
    /// From the start of one to the start of the next, in bytes.
    pub stride: u64,
}

impl Place {
    /// The ranges; `None` for a range that no watch can have.
    pub fn ranges(self) -> impl Iterator<Item = Option<WatchRange>> {
        (0..self.count).map(move |n| {
            let start = self.start.checked_add(self.stride.checked_mul(n)?)?;
            WatchRange::new(TargetAddr(start), self.len)
        })
    }
}

/// Reason why a line is not a command.
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
            Command::LastWriters => f.write_str("last-writers"),
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
                    redzone,
                    ..
                } = how;
                write!(
                    f,
                    "heap-check frames {frames} quarantine {quarantine} redzone {}",
                    redzone.least
                )?;
                if redzone.most > redzone.least {
                    write!(f, " redzone-most {}", redzone.most)?;
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
