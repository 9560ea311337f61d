//! Reads replies for the asking side. Any other line is an error that says so, because the line may come from a program
//! that has taken a stub's place.

use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Deserializer, de};

use super::hits::ACCESSES;
use super::*;
use crate::addr::TargetAddr;
use crate::command::placement::Placement;
use crate::number::number;
use crate::watch::{WatchKind, WatchRange};

/// Reads a type through a struct of its fields, all of which are optional if the type has several forms.
macro_rules! by_way_of {
    ($($fields:ident => $type:ty),* $(,)?) => { $(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<$type, D::Error> {
                let read = $fields::deserialize(d)?.read();
                read.ok_or(de::Error::custom("this is no answer to a command"))
            }
        }
    )* };
}

by_way_of! {
    Fields => Reply,
    StatisticsFields => Statistics,
    CountedFields => Counted,
    LastFields => Last,
    LogHeadFields => LogHead,
    StopFields => Stop,
    SettleFields => Settle,
    RecordFields => Record,
    PatchingFields => Patching,
    SiteFields => PatchSite,
    PlacementFields => PlacementState,
}

/// All fields of all replies.
#[derive(Deserialize)]
struct Fields {
    watch: Option<u32>,
    heap: Option<u64>,
    on: Option<bool>,
    watches: Option<(u32, u32)>,
    filtered: Option<Vec<u32>>,
    unwatched: Option<Unwatched>,
    watchable: Option<bool>,
    mapped: Option<bool>,
    session: Option<String>,
    pid: Option<i32>,
    stops_at: Option<String>,
    patch_syscalls: Option<bool>,
    heap_checked: Option<bool>,
    last_writers: Option<bool>,
    heap_asked: Option<u32>,
    refused: Option<Refusal>,
}

#[derive(Deserialize)]
struct Unwatched {
    start: Option<u64>,
    len: Option<u64>,
}

impl Fields {
    fn read(self) -> Option<Reply> {
        if let Some(refusal) = self.refused {
            return Some(Reply::Refused(refusal));
        }
        if let Some(watch) = self.watch {
            return Some(match (self.heap, self.on) {
                (Some(bytes), _) => Reply::Heap { watch, bytes },
                (None, Some(on)) => Reply::Switched { watch, on },
                (None, None) => Reply::Watch(watch),
            });
        }
        if let Some((first, count)) = self.watches {
            return Some(Reply::Watches { first, count });
        }
        if let Some(ids) = self.filtered {
            return Some(Reply::Filtered(ids));
        }
        if let Some(u) = self.unwatched {
            return Some(Reply::Unwatched(u.start.zip(u.len)));
        }
        if let Some(true) = self.watchable {
            let mapped = self.mapped?;
            return Some(Reply::Watchable { mapped });
        }
        if let Some(on) = self.patch_syscalls {
            return Some(Reply::PatchSyscalls(on));
        }
        if let Some(true) = self.heap_checked {
            return Some(Reply::HeapChecked);
        }
        if let Some(true) = self.last_writers {
            return Some(Reply::LastWriters);
        }
        if let Some(reports) = self.heap_asked {
            return Some(Reply::HeapAsked(reports));
        }
        Some(Reply::About {
            session: number(self.session.as_deref())?,
            pid: self.pid?,
            stops_at: number(self.stops_at.as_deref())?,
        })
    }
}

/// `0x4040`, or decimal.
fn address(text: &str) -> Option<u64> {
    number(Some(text))
}

/// Two digits for each byte.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let digit = |d: &u8| (*d as char).to_digit(16).map(|n| n as u8);
    text.as_bytes()
        .chunks(2)
        .map(|pair| match pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        })
        .collect()
}

/// Reads seconds, a JSON number. Up to 2^51 microseconds (71 years) survive writing and reading unchanged.
fn micros(seconds: f64) -> Option<Micros> {
    const MOST: f64 = (1u64 << 51) as f64;
    let micros = seconds * 1e6 + 0.5;
    (0.5..MOST)
        .contains(&micros)
        .then_some(Micros(micros as u64))
}

/// The same, or `null`.
fn known(seconds: Option<f64>) -> Option<Option<Micros>> {
    seconds.map_or(Some(None), |s| micros(s).map(Some))
}

// ---- counters ----

#[derive(Deserialize)]
struct StatisticsFields {
    faults: u64,
    false_positives: u64,
    slow: u64,
    syscalls: u64,
    sites: u64,
    sites_refused: u64,
    moved_pages: u64,
    watch_bytes: u64,
    next: u32,
    lost: Option<u64>,
    watches: Vec<Counted>,
}

impl StatisticsFields {
    fn read(self) -> Option<Statistics> {
        let totals = Totals {
            faults: self.faults,
            false_positives: self.false_positives,
            slow: self.slow,
            syscalls: self.syscalls,
            sites: self.sites,
            sites_refused: self.sites_refused,
            moved_pages: self.moved_pages,
            watch_bytes: self.watch_bytes,
            next: self.next,
            lost: self.lost,
        };
        let watches = self.watches;
        Some(Statistics { totals, watches })
    }
}

#[derive(Deserialize)]
struct CountedFields {
    id: u32,
    start: Option<u64>,
    len: Option<u64>,
    moved: Option<u64>,
    heap: Option<u64>,
    kind: String,
    hits: u64,
    silent: u64,
    filtered: u64,
    false_positives: u64,
    stops: u64,
    placement: String,
    traps: u64,
    #[serde(default)]
    off: bool,
    #[serde(default)]
    gone: bool,
}

impl CountedFields {
    fn read(self) -> Option<Counted> {
        Some(Counted {
            id: self.id,
            of: match (self.heap, self.moved) {
                (Some(bytes), _) => CountedBytes::Heap(bytes),
                (None, Some(moved)) => CountedBytes::Along {
                    start: self.start?,
                    len: self.len?,
                    moved,
                },
                (None, None) => CountedBytes::Range {
                    start: self.start?,
                    len: self.len?,
                },
            },
            kind: WatchKind::parse(&self.kind)?,
            hits: self.hits,
            silent: self.silent,
            filtered: self.filtered,
            false_positives: self.false_positives,
            stops: self.stops,
            register: match self.placement.as_str() {
                "guard" => false,
                "debug-register" => true,
                _ => return None,
            },
            traps: self.traps,
            state: match (self.off, self.gone) {
                (true, _) => WatchState::Off,
                (false, true) => WatchState::Gone,
                (false, false) => WatchState::On,
            },
        })
    }
}

// ---- hits ----

#[derive(Deserialize)]
struct LastFields {
    addr: String,
    len: u64,
    watched_since: Option<f64>,
    reaches_back: Option<f64>,
    #[serde(default)]
    stretches: bool,
    last: Vec<Record>,
}

impl LastFields {
    fn read(self) -> Option<Last> {
        Some(Last {
            addr: address(&self.addr)?,
            len: self.len,
            watched_since: known(self.watched_since)?,
            reaches_back: known(self.reaches_back)?,
            stretches: self.stretches,
            last: self.last,
        })
    }
}

#[derive(Deserialize)]
struct LogHeadFields {
    /// (A record has no such field.)
    #[serde(deserialize_with = "Option::deserialize")]
    reaches_back: Option<f64>,
}

impl LogHeadFields {
    fn read(self) -> Option<LogHead> {
        let reaches_back = known(self.reaches_back)?;
        Some(LogHead { reaches_back })
    }
}

#[derive(Deserialize)]
struct StopFields {
    #[serde(deserialize_with = "Option::deserialize")]
    stop: Option<Record>,
}

impl StopFields {
    fn read(self) -> Option<Stop> {
        Some(Stop(self.stop))
    }
}

#[derive(Deserialize)]
struct RecordFields {
    ago: Option<f64>,
    time: Option<f64>,
    watch: Option<u32>,
    tid: u32,
    addr: String,
    access: Option<String>,
    len: Option<u32>,
    old_bytes: Option<String>,
    new_bytes: Option<String>,
    #[serde(default)]
    silent: bool,
    call: Option<String>,
    pc: Option<String>,
    #[serde(default)]
    callers: Vec<String>,
    #[serde(default)]
    inside: u64,
    #[serde(default)]
    unchained: bool,
    #[serde(default)]
    through: Vec<String>,
}

impl RecordFields {
    fn read(self) -> Option<Record> {
        let which = match (self.ago, self.time, self.watch) {
            (Some(ago), None, None) => Which::Ago(micros(ago)?),
            (None, Some(time), Some(watch)) => Which::Logged {
                time: micros(time)?,
                watch,
            },
            (None, None, Some(watch)) => Which::Stop { watch },
            _ => return None,
        };
        let (tid, addr) = (self.tid, address(&self.addr)?);
        let access = match &self.access {
            Some(word) => Some(self.access(word)?),
            None => None,
        };
        Some(Record {
            which,
            tid,
            addr,
            access,
        })
    }

    fn access(&self, word: &str) -> Option<Access> {
        let values = match (&self.old_bytes, &self.new_bytes) {
            (Some(old), Some(new)) => Some(Values {
                old: bytes(old)?,
                new: bytes(new)?,
                silent: self.silent,
            }),
            (None, None) => None,
            _ => return None,
        };
        let callers = self.callers.iter().map(|c| address(c));
        let through = self.through.iter().map(|c| address(c));
        Some(Access {
            kind: ACCESSES.iter().find(|(known, _)| *known == word)?.1,
            len: self.len?,
            inside: self.inside,
            unchained: self.unchained,
            values,
            call: self.call.clone(),
            pc: address(self.pc.as_deref()?)?,
            callers: callers.collect::<Option<_>>()?,
            through: through.collect::<Option<_>>()?,
        })
    }
}

// ---- how watches are served ----

#[derive(Deserialize)]
#[serde(untagged)]
enum PatchingFields {
    Counts(PatchCounts),
    Nowhere { why: String },
}

impl PatchingFields {
    fn read(self) -> Option<Patching> {
        Some(match self {
            PatchingFields::Counts(counts) => Patching::Counts(counts),
            PatchingFields::Nowhere { why } => Patching::Nowhere(why),
        })
    }
}

#[derive(Deserialize)]
struct SiteFields {
    pc: String,
    faults: u64,
    beside: u64,
    why: String,
    bytes: String,
}

impl SiteFields {
    fn read(self) -> Option<PatchSite> {
        Some(PatchSite {
            pc: address(&self.pc)?,
            faults: self.faults,
            beside: self.beside,
            why: self.why.into(),
            bytes: bytes(&self.bytes)?,
        })
    }
}

#[derive(Deserialize)]
struct PlacementFields {
    placement: String,
    registers: u64,
    used: u64,
    threads: Option<u64>,
    moves: Option<u64>,
    looks: Option<u64>,
    unavailable: Option<String>,
}

impl PlacementFields {
    fn read(self) -> Option<PlacementState> {
        let counts = match (self.threads, self.moves, self.looks) {
            (Some(threads), Some(moves), Some(looks)) => Some(RegisterCounts {
                threads,
                moves,
                looks,
            }),
            (None, None, None) => None,
            _ => return None,
        };
        Some(PlacementState {
            placement: Placement::parse(&self.placement)?,
            registers: self.registers,
            used: self.used,
            counts,
            unavailable: self.unavailable,
        })
    }
}

#[derive(Deserialize)]
struct SettleFields {
    settle: Vec<SettledFields>,
    look: bool,
}

#[derive(Deserialize)]
struct SettledFields {
    start: u64,
    len: u64,
    kind: String,
    skipped: u64,
}

impl SettleFields {
    fn read(self) -> Option<Settle> {
        let of = self.settle.into_iter().map(SettledFields::read);
        Some(Settle {
            of: of.collect::<Option<_>>()?,
            look: self.look,
        })
    }
}

impl SettledFields {
    fn read(self) -> Option<Settled> {
        Some(Settled {
            range: WatchRange::new(TargetAddr(self.start), self.len)?,
            kind: WatchKind::parse(&self.kind)?,
            skipped: self.skipped,
        })
    }
}
