//! All watches of a program on another machine, whichever client has set them, by the numbers that users and the plugin
//! see. No I/O.
//!
//! The back end's abilities decide which side evaluates a filter:
//! ```text
//!   it has filters   ▶ the filter travels with the watch; its counts come back (`list`)
//!   it has not       ▶ every hit of a watch with a filter stops the machine; the front end looks whether it
//!                      passes, counts, and goes on if nobody wants the stop (`front/sort.rs`)
//! ```
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use ulpf_bridge::{Capabilities, Feature, Filter, Kind, WatchSpec};
use ulpf_lib::ring;

/// GDB watches a byte here for the plugin (the same address as in `stub/task/src/control/out_of_band.rs`).
pub const PLACE: u64 = 0x756c_7066_0000_0000;

#[derive(Clone, Debug)]
pub struct Watch {
    pub addr: u64,
    pub len: u64,
    pub kind: Kind,
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
    pub told: bool,
    pub counts: Counts,
    /// The part of `counts` from before the watch was last set in the back end.
    pub before: Counts,
    /// TSC when it was set.
    pub since: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    pub hits: u64,
    pub silent: u64,
    pub filtered: u64,
    pub stops: u64,
    pub false_positives: u64,
    pub register: bool,
}

impl Counts {
    pub fn and(self, more: Counts) -> Counts {
        Counts {
            hits: self.hits + more.hits,
            silent: self.silent + more.silent,
            filtered: self.filtered + more.filtered,
            stops: self.stops + more.stops,
            false_positives: self.false_positives + more.false_positives,
            register: more.register,
        }
    }
}

impl Watch {
    pub fn new(addr: u64, len: u64, kind: Kind) -> Watch {
        Watch {
            addr,
            len,
            kind,
            stop: false,
            log: false,
            filter: None,
            debuggers: false,
            there: None,
            passed: 0,
            told: false,
            counts: Counts::default(),
            before: Counts::default(),
            since: ulpf_host::sys::tsc(),
        }
    }

    /// A watch of the debugger's own table.
    pub fn debuggers(spec: &WatchSpec) -> Watch {
        Watch {
            stop: true,
            log: true,
            debuggers: true,
            ..Watch::new(spec.addr, spec.len, spec.kind)
        }
    }

    /// The watch as sent to a back end with these abilities.
    pub fn spec(&self, can: &Capabilities) -> WatchSpec {
        let filters = can.has(Feature::Filters);
        let sorted_here = self.filter.is_some() && !filters;
        WatchSpec {
            addr: self.addr,
            len: self.len,
            kind: self.kind,
            stop: self.stop || sorted_here || !can.has(Feature::Log),
            filter: self.filter.clone().filter(|_| filters),
        }
    }
}

#[derive(Default)]
pub struct WatchTable {
    pub watches: BTreeMap<u32, Watch>,
    by_there: HashMap<u64, u32>,
    /// Watches of the debugger's own table, by range and kind.
    theirs: HashMap<(u64, u64, Kind), Vec<u32>>,
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
            let same = self.theirs.entry((watch.addr, watch.len, watch.kind));
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
        let key = (watch.addr, watch.len, watch.kind);
        if let Some(same) = self.theirs.get_mut(&key) {
            same.retain(|n| *n != number);
            if same.is_empty() {
                self.theirs.remove(&key);
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
    pub fn taken(&mut self, spec: &WatchSpec) -> Option<u32> {
        self.theirs
            .get_mut(&(spec.addr, spec.len, spec.kind))?
            .pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn can(features: &[Feature]) -> Capabilities {
        Capabilities {
            features: features.into(),
            ..Capabilities::default()
        }
    }

    #[test]
    fn who_sorts() {
        let logged = Watch {
            log: true,
            ..Watch::new(0x1000, 4, Kind::Write)
        };
        assert!(!logged.spec(&can(&[Feature::Log])).stop);
        // If every hit stops, the front end resumes.
        assert!(logged.spec(&can(&[])).stop);
        let filtered = Watch {
            filter: Some(Filter::default()),
            ..logged
        };
        let there = filtered.spec(&can(&[Feature::Log, Feature::Filters]));
        assert!(!there.stop && there.filter.is_some());
        let here = filtered.spec(&can(&[Feature::Log]));
        assert!(here.stop && here.filter.is_none());
    }

    #[test]
    fn numbers() {
        let mut table = WatchTable::default();
        let watch = |there| Watch {
            there: Some(there),
            ..Watch::new(0x1000, 4, Kind::Write)
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
        let spec = WatchSpec::plain(0x1000, 4, Kind::Write);
        assert_eq!((table.add(own.clone()), table.add(own)), (3, 4));
        let mut taken = [table.taken(&spec), table.taken(&spec)];
        taken.sort();
        assert_eq!((taken, table.taken(&spec)), ([Some(3), Some(4)], None));
        table.is_now(2, None);
        assert_eq!(table.number(9), None);
        table.is_now(2, Some(7));
        assert_eq!(table.number(7), Some(2));
        assert!(table.remove(2).is_some() && table.number(7).is_none() && table.next() == 5);
    }
}
