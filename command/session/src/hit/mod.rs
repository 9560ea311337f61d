//! The text forms of a hit. Programs read an object of JSON or a row of CSV ([`entry`]), people read lines ([`log`]),
//! and trace viewers read events ([`Line::trace`]). The plugin reads the stub's own form ([`as_the_stub`]).

pub mod completed;
pub mod entry;
pub mod log;
pub mod place;
pub mod trace;

pub use entry::Call;
use entry::{Entry, Named, When};
use place::{Caller, Place};
use serde::Serialize;
use std::rc::Rc;
use trace::Event;
use ulpf_area::SharedArea;
use ulpf_lib::command::reply::{Micros, Record, Which};
use ulpf_lib::ring;
use ulpf_symbols::{Part, Watched};

/// A hit as an outside observer of a session knows it.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Number of the line, from the first.
    pub number: u64,
    /// Time since the session began.
    pub nanos: u64,
    /// The thread that made it.
    pub tid: u32,
    /// `read`, `write`, `update`.
    pub verb: &'static str,
    /// The part of the watch that was touched.
    pub name: Rc<str>,
    /// Its value before and after.
    pub change: String,
    /// Place of the instruction; in a runtime library, the program's own caller.
    pub place: Rc<str>,
    /// The other properties.
    pub known: Rc<Known>,
    /// The record itself.
    pub hit: ring::Hit,
}

/// Properties that are looked up for a hit.
#[derive(Debug)]
pub struct Known {
    /// The number of the watch that the session's owner uses.
    pub watch: Option<usize>,
    pub watched: Option<Rc<Watched>>,
    pub named: Rc<Named>,
    pub place: Rc<Place>,
    pub by: Option<Caller>,
    pub callers: Vec<Rc<Place>>,
}

impl Default for Known {
    fn default() -> Known {
        Known {
            watch: None,
            watched: None,
            named: Rc::new(Named::new((String::new(), Part::untyped(0)), 0)),
            place: Rc::default(),
            by: None,
            callers: Vec::new(),
        }
    }
}

impl Line {
    /// The form for programs, of process `pid`.
    pub fn entry(&self, pid: i32) -> Entry<'_> {
        let known = &*self.known;
        Entry {
            hit: &self.hit,
            pid,
            when: When::Since(self.nanos),
            watch: known.watch,
            spec: known.watched.as_ref().map_or("", |w| &w.spec),
            named: &known.named,
            place: &known.place,
            by: known.by.as_ref(),
            callers: place::asked_for(&self.hit, &known.callers),
        }
    }

    /// An event in Chrome's trace format.
    pub fn trace(&self, pid: i32) -> impl Serialize + '_ {
        Event {
            name: &self.name,
            verb: self.verb,
            nanos: self.nanos,
            pid,
            tid: self.tid,
            value: &self.change,
            place: &self.place,
            addr: self.hit.addr,
        }
        .json()
    }
}

/// The hit in the stub's form (`monitor ulpf log`, stub/task/src/control/last.rs), which the plugin reads.
pub fn as_the_stub(area: &SharedArea, hit: &ring::Hit) -> Record {
    let clock = area.clock();
    let since = clock.nanos(hit.time).saturating_sub(clock.base_ns);
    let (time, watch) = (Micros::of_nanos(since), hit.watch);
    Record::of(Which::Logged { time, watch }, hit)
}
