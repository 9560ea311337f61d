//! All watches of a program on another machine, whichever client has set them, by the numbers that users and the plugin
//! see. No I/O.
//!
//! The back end's role decides which side evaluates a filter:
//! ```text
//!     it numbers watches  ▶ the filter travels with the watch; its counts come back (`qUlpf.Counts`)
//!     it has `Z` packets  ▶ every hit of a watch stops the program; the front end looks whether it passes, counts, and
//!                           resumes the program unless the debugger wants the stop (`front/sort.rs`)
//! ```
#![forbid(unsafe_code)]

use super::packets::{Spec, WatchStop};
use std::collections::{BTreeMap, HashMap};
use ulpf_lib::command::{Arm, How, What};
use ulpf_lib::filter::Filter;
use ulpf_lib::{TargetAddr, WatchRange, ring};
use ulpf_rsp::reports::{Listed, WatchCounts};

/// GDB watches a byte here for the plugin (the same address as in `stub/task/src/control/out_of_band.rs`).
pub const PLACE: u64 = 0x756c_7066_0000_0000;

#[derive(Clone, Debug)]
pub struct Watch {
    pub spec: Spec,
    /// `stop`: a hit that passes the filter stops the program. `log`: it is written to the log.
    pub stop: bool,
    pub log: bool,
    pub filter: Option<Filter>,
    /// The watch is in the debugger's own table.
    pub debuggers: bool,
    /// The back end's number; `None` if the watch is off.
    pub there: Option<u64>,
    /// Hits that have passed all of the filter except `skip` and `count`.
    pub passed: u64,
    /// The user has been informed that its condition cannot be evaluated.
    pub reported: bool,
    pub counts: WatchCounts,
    /// The part of `counts` from before the watch was last set in the back end.
    pub before: WatchCounts,
    /// TSC when it was set.
    pub since: u64,
}

impl Watch {
    pub fn new(spec: Spec) -> Watch {
        Watch {
            spec,
            stop: false,
            log: false,
            filter: None,
            debuggers: false,
            there: None,
            passed: 0,
            reported: false,
            counts: WatchCounts::default(),
            before: WatchCounts::default(),
            since: ulpf_host::sys::tsc(),
        }
    }

    /// A watch of the debugger's own table.
    pub fn debuggers(spec: Spec) -> Watch {
        Watch {
            stop: true,
            log: true,
            debuggers: true,
            ..Watch::new(spec)
        }
    }

    /// Its entry in a list, under its number in this table.
    pub fn listed(&self, number: u32) -> Listed {
        Listed {
            id: number.into(),
            addr: self.spec.addr,
            len: self.spec.len,
            kind: self.spec.kind,
            counts: self.counts,
            log: self.log || self.stop,
            debuggers: self.debuggers,
        }
    }

    /// The command that sets it in a back end that numbers watches, or `None` if it has no bytes.
    pub fn arm(&self) -> Option<Arm> {
        Some(Arm {
            what: What::Range(WatchRange::new(TargetAddr(self.spec.addr), self.spec.len)?),
            kind: self.spec.kind,
            how: How {
                stop: self.stop,
                log: self.log,
                ..How::default()
            },
            filter: self.filter.clone().unwrap_or_default(),
        })
    }
}

#[derive(Default)]
pub struct WatchTable {
    pub watches: BTreeMap<u32, Watch>,
    by_there: HashMap<u64, u32>,
    /// Watches of the debugger's own table, by range and kind.
    theirs: HashMap<Spec, Vec<u32>>,
    last: u32,
    /// `seen`: number of the last hit that was read. `lost`: hits that were overwritten before they were read.
    pub seen: u64,
    pub lost: u64,
    /// The debugger watches [`PLACE`]: it asks which watch has caused a stop.
    pub understood: bool,
    /// The hit of the last stop by a watch outside the debugger's table.
    pub stop: Option<ring::Hit>,
    /// The reason of the last refusal.
    pub why: Option<String>,
}

impl WatchTable {
    pub fn add(&mut self, watch: Watch) -> u32 {
        self.last += 1;
        if let Some(there) = watch.there {
            self.by_there.insert(there, self.last);
        }
        if watch.debuggers {
            let same = self.theirs.entry(watch.spec);
            same.or_default().push(self.last);
        }
        self.watches.insert(self.last, watch);
        self.last
    }

    /// The number of the next watch.
    pub fn next(&self) -> u32 {
        self.last + 1
    }

    pub fn remove(&mut self, number: u32) -> Option<Watch> {
        let watch = self.watches.remove(&number)?;
        if let Some(there) = watch.there {
            self.by_there.remove(&there);
        }
        if let Some(same) = self.theirs.get_mut(&watch.spec) {
            same.retain(|n| *n != number);
            if same.is_empty() {
                self.theirs.remove(&watch.spec);
            }
        }
        Some(watch)
    }

    /// The back end now has this watch under another number, or not at all.
    pub fn is_now(&mut self, number: u32, there: Option<u64>) {
        if let Some(watch) = self.watches.get_mut(&number) {
            watch.before = watch.counts;
            if let Some(old) = std::mem::replace(&mut watch.there, there) {
                self.by_there.remove(&old);
            }
            if let Some(new) = there {
                self.by_there.insert(new, number);
            }
        }
    }

    pub fn number(&self, there: u64) -> Option<u32> {
        self.by_there.get(&there).copied()
    }

    /// The debugger removes one of its own watches on exactly these bytes. Returns its number; equal watches have
    /// others.
    pub fn taken(&mut self, spec: &Spec) -> Option<u32> {
        self.theirs.get_mut(spec)?.pop()
    }

    /// Whether a watch on exactly these bytes is set. A stub has one watch for equal `Z` packets.
    pub fn has(&self, spec: &Spec) -> bool {
        let mut all = self.watches.values();
        all.any(|w| w.spec == *spec && w.there.is_some())
    }

    /// The watches that are set and that this stop may be of.
    pub fn hit_by(&self, stop: &WatchStop) -> Vec<u32> {
        let of = |w: &Watch| {
            let Spec { addr, len, kind } = w.spec;
            w.there.is_some() && kind == stop.kind && stop.addr.wrapping_sub(addr) < len
        };
        let all = self.watches.iter().filter(|(_, w)| of(w));
        all.map(|(n, _)| *n).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ulpf_lib::WatchKind;

    const SPEC: Spec = Spec {
        addr: 0x1000,
        len: 4,
        kind: WatchKind::Write,
    };

    #[test]
    fn commands() {
        let logged = Watch {
            log: true,
            ..Watch::new(SPEC)
        };
        assert_eq!(logged.arm().unwrap().to_string(), "0x1000 4 w log");
        let own = Watch::debuggers(SPEC);
        assert_eq!(own.arm().unwrap().to_string(), "0x1000 4 w stop log");
        let none = Watch::new(Spec { len: 0, ..SPEC });
        assert!(none.arm().is_none());
    }

    #[test]
    fn which_watches_a_stop_is_of() {
        let mut table = WatchTable::default();
        let there = |spec| Watch {
            there: Some(7),
            ..Watch::new(spec)
        };
        table.add(there(SPEC));
        table.add(there(Spec { len: 1, ..SPEC }));
        table.add(Watch::new(SPEC));
        let stop = |addr| WatchStop {
            kind: WatchKind::Write,
            addr,
            access: None,
        };
        assert_eq!(table.hit_by(&stop(0x1000)), [1, 2]);
        assert_eq!(table.hit_by(&stop(0x1003)), [1]);
        assert!(table.hit_by(&stop(0x1004)).is_empty());
    }

    #[test]
    fn numbers() {
        let mut table = WatchTable::default();
        let watch = |there| Watch {
            there: Some(there),
            ..Watch::new(SPEC)
        };
        assert_eq!((table.add(watch(7)), table.add(watch(9))), (1, 2));
        assert_eq!(
            (table.number(7), table.number(9), table.number(1)),
            (Some(1), Some(2), None)
        );
        let own = Watch {
            debuggers: true,
            ..watch(4)
        };
        assert_eq!((table.add(own.clone()), table.add(own)), (3, 4));
        let mut taken = [table.taken(&SPEC), table.taken(&SPEC)];
        taken.sort();
        assert_eq!((taken, table.taken(&SPEC)), ([Some(3), Some(4)], None));
        table.is_now(2, None);
        assert_eq!(table.number(9), None);
        table.is_now(2, Some(7));
        assert_eq!(table.number(7), Some(2));
        assert!(table.remove(2).is_some() && table.number(7).is_none() && table.next() == 5);
    }
}
