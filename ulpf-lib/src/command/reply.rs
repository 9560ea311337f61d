//! The answers to commands: lines of JSON. The stub and the bridge's front end print them here, and the asking side reads
//! them here (feature `serde`). The answer to a command that changes something is one line ([`Reply`]); `ulpf watches` is
//! answered with one line for each range of consecutive numbers. Queries have answers of their own: counters
//! ([`Statistics`]), hits ([`Last`], [`LogHead`], [`Stop`]), and how watches are served ([`Patching`], [`PatchSite`],
//! [`PlacementState`], [`Backend`]).
//!
//! GDB's plugin reads the same lines in `gdb-plugin/ulpf/replies.py`; tests/replies.json holds both to one table.

use alloc::vec::Vec;
use core::fmt;

use crate::refusal::Refusal;

mod counts;
mod hits;
mod json;
#[cfg(feature = "serde")]
mod read;
mod serving;
mod settle;

pub use counts::{Counted, CountedBytes, Statistics, Totals, WatchState};
pub use hits::{Access, Last, LogHead, Micros, Record, Stop, Values, Which};
pub use json::Quoted;
pub use serving::{Backend, PatchCounts, PatchSite, Patching, PlacementState, RegisterCounts};
pub use settle::{Settle, Settled};

/// One line of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// `{"watch":7}`
    Watch(u32),
    /// `{"watch":7,"heap":BYTES}`: the number of bytes watched now.
    Heap {
        /// The number of the watch.
        watch: u32,
        /// Watched bytes of the heap.
        bytes: u64,
    },
    /// `{"watches":[FIRST,COUNT]}`: consecutive numbers.
    Watches {
        /// The number of the first one.
        first: u32,
        /// Number of watches.
        count: u32,
    },
    /// `{"watch":7,"on":true}`
    Switched {
        /// The number of the watch.
        watch: u32,
        /// It is on now.
        on: bool,
    },
    /// `{"filtered":[7]}`
    Filtered(Vec<u32>),
    /// `{"unwatched":{"start":16448,"len":8}}`, `{"unwatched":{"heap":true}}`
    Unwatched(Option<(u64, u64)>),
    /// `{"watchable":true,"mapped":false}`: a watch could be armed there, and all of it has memory now.
    Watchable {
        /// False if the watch would wait for memory.
        mapped: bool,
    },
    /// `{"session":"0x51","pid":42,"stops_at":"0x756c706600000000"}`. The session changes with the stub: another program,
    /// or the same after exec.
    About {
        /// The number of the session.
        session: u64,
        /// The process.
        pid: i32,
        /// The address at which stops of these watches are reported.
        stops_at: u64,
    },
    /// `{"patch_syscalls":true}`
    PatchSyscalls(bool),
    /// `{"heap_checked":true}`
    HeapChecked,
    /// `{"last_writers":true}`
    LastWriters,
    /// `{"heap_asked":3}`: the number of reports in the answer, in [`crate::ring::findings::Findings::asked`].
    HeapAsked(u32),
    /// `{"refused":{"what":"…","why":"…","what_to_do":"…"}}`
    Refused(Refusal),
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
            Reply::Watchable { mapped } => {
                write!(f, "{{\"watchable\":true,\"mapped\":{mapped}}}")
            }
            Reply::About {
                session,
                pid,
                stops_at,
            } => write!(
                f,
                "{{\"session\":\"{session:#x}\",\"pid\":{pid},\"stops_at\":\"{stops_at:#x}\"}}"
            ),
            Reply::PatchSyscalls(on) => write!(f, "{{\"patch_syscalls\":{on}}}"),
            Reply::HeapChecked => f.write_str("{\"heap_checked\":true}"),
            Reply::LastWriters => f.write_str("{\"last_writers\":true}"),
            Reply::HeapAsked(reports) => write!(f, "{{\"heap_asked\":{reports}}}"),
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
