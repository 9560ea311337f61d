//! Explains the end of a program by a signal that it caused itself: the place, the callers, and the writers of the
//! values that led there. The stub records the place before the program dies (`stub/handlers/src/crash.rs`). The
//! program can write to that memory, so the record is not trusted.

use super::clock::Clock;
use super::life::Life;
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::HashSet;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use ulpf_host::foreign::text::Text;
use ulpf_host::say::json::{self, Address};
use ulpf_host::signals;
use ulpf_lib::last_writer::Site;
use ulpf_lib::ring::last::{Asked, last};
use ulpf_lib::ring::{self, Hit, MAX_FRAMES};
use ulpf_session::hit::entry::When;
use ulpf_session::hit::log::{Formatter, Look, Record};
use ulpf_session::hit::place::{Caller, Place, own_caller};
use ulpf_session::words::Seconds;
use ulpf_symbols::Program;

/// Limit of the records that are searched for such writers, youngest first.
const MOST: usize = 1 << 16;
/// Limit of the pointers that are reported.
const MOST_POINTERS: usize = 3;
/// An access this far after a pointer's target may belong to the target.
const NEAR: u64 = 4096;

/// How a process has ended.
pub struct Crash<'a> {
    life: &'a Life,
    several: bool,
    tid: u32,
    signal: i32,
    nanos: u64,
    clock: &'a Clock,
    address: Option<u64>,
    place: Rc<Place>,
    by: Option<Caller>,
    callers: Vec<Rc<Place>>,
    writers: Vec<Writer>,
    origin: Option<Origin>,
}

/// The place from which the program had the pointer that led to the signal.
struct Origin {
    pointer: u64,
    place: u64,
    /// The variable there.
    name: Option<String>,
    writer: Option<LastWriter>,
}

/// The last writer of a place.
struct LastWriter {
    by: Rc<Place>,
    call: Option<&'static str>,
    tid: u32,
    /// The beginning of the interval in which it was.
    nanos: u64,
}

impl Origin {
    fn of(noted: &ring::Crash, program: &Program, clock: &Clock) -> Option<Origin> {
        let place = noted.source.load(Relaxed);
        let site = Site::of(noted.writer.load(Relaxed));
        let tid = noted.writer_tid.load(Relaxed);
        (place != 0).then(|| Origin {
            pointer: noted.pointer.load(Relaxed),
            place,
            name: program.variable_at(place),
            writer: site.map(|site| LastWriter {
                by: Rc::new(Place::at(program, site.pc, site.called)),
                call: site.call.and_then(ulpf_lib::syscalls::name),
                tid,
                nanos: clock.nanos(noted.writer_since.load(Relaxed)),
            }),
        })
    }

    fn text(&self, out: &mut String, signal: i32) {
        let (pointer, place) = (self.pointer, self.place);
        let _ = match signal {
            libc::SIGABRT => write!(
                out,
                "ulpf: the size of the heap's chunk at {:#x} has been overwritten with {pointer:#x}",
                place.wrapping_sub(8)
            ),
            _ => write!(out, "ulpf: {pointer:#x} lies at {place:#x}"),
        };
        if let Some(name) = &self.name {
            let _ = write!(out, ", `{}`", Text(name));
        }
        let _ = match &self.writer {
            None => writeln!(out, ", which has not been written since records began"),
            Some(w) => writeln!(
                out,
                ", which was written by:\n{:>11} s [{}] {}{}",
                Seconds(w.nanos),
                w.tid,
                w.call.map(|call| format!("{call} in ")).unwrap_or_default(),
                w.by.text
            ),
        };
    }
}

/// Last writer of a value that the address comes from.
struct Writer {
    hit: Hit,
    /// The watch's number in the log, and the index of its place.
    number: usize,
    place: usize,
    /// Distance from the written pointer's target to the address; `None` if the write was at the address itself.
    before: Option<u64>,
}

impl<'a> Crash<'a> {
    /// `signal`: the signal that ended it, if known.
    pub fn of(
        life: &'a Life,
        clock: &'a Clock,
        signal: Option<i32>,
        several: bool,
    ) -> Option<Self> {
        let noted = &life.shared.header().crash;
        let number = noted.signal.load(Acquire) as i32;
        if !(1..=64).contains(&number) || signal.is_some_and(|s| s != number) {
            return None;
        }
        let frames = noted.frames.load(Relaxed) as usize;
        let frames = noted.callers.iter().take(frames.min(MAX_FRAMES));
        let program = &life.program;
        let caller = |at: u64| Rc::new(Place::at(program, at, true));
        let mut callers: Vec<Rc<Place>> = frames.map(|at| caller(at.load(Relaxed))).collect();
        let place = Rc::new(Place::at(program, noted.pc.load(Relaxed), false));
        let by = own_caller(&place, &callers);
        // The callers of main are omitted.
        let before_main = |c: &Rc<Place>| c.is_runtime() || c.function.as_deref() == Some("_start");
        while callers.last().is_some_and(before_main) {
            callers.pop();
        }
        let address = noted.address.load(Relaxed);
        let address = (noted.has_address.load(Relaxed) != 0).then_some(address);
        Some(Crash {
            life,
            several,
            tid: noted.tid.load(Relaxed),
            signal: number,
            nanos: clock.nanos(noted.time.load(Relaxed)),
            clock,
            address,
            place,
            by,
            callers,
            writers: address.map(|a| writers(life, a)).unwrap_or_default(),
            origin: Origin::of(noted, program, clock),
        })
    }

    fn records(&self) -> impl Iterator<Item = (Record<'_>, Option<u64>)> {
        self.writers.iter().filter_map(|w| {
            let record = Record {
                hit: &w.hit,
                pid: self.life.pid,
                several: self.several,
                when: When::Since(self.clock.nanos(w.hit.time)),
                number: w.number,
                watch: self.life.watches.get(w.number)?.watched.get(w.place)?,
            };
            Some((record, w.before))
        })
    }

    /// Text for people.
    pub fn text(&self, look: Look) -> String {
        let mut out = String::new();
        let name = signals::name(self.signal);
        let what = signals::description(self.signal).to_lowercase();
        let place = match &self.by {
            Some(by) => &by.text,
            None => &self.place.text,
        };
        let _ = write!(out, "ulpf: ");
        if self.several {
            let _ = write!(out, "process {}: ", self.life.pid);
        }
        let _ = write!(out, "killed by {name} ({what}) in {place}");
        if let Some(address) = self.address {
            let _ = write!(out, ", by an access to {address:#x}");
        }
        let _ = writeln!(out, " (thread {}, at {} s)", self.tid, Seconds(self.nanos));
        if self.by.is_some() {
            let _ = writeln!(out, "                #0 {}", self.place.text);
        }
        for (n, caller) in self.callers.iter().enumerate() {
            let _ = writeln!(out, "                #{} {}", n + 1, caller.text);
        }
        if let Some(origin) = &self.origin {
            origin.text(&mut out, self.signal);
        }
        let mut formatter = Formatter::new(look);
        let address = self.address.unwrap_or_default();
        for (record, before) in self.records() {
            let spec = Text(&record.watch.spec);
            let _ = match before {
                None => writeln!(out, "ulpf: `{spec}` is there; the last to write it:"),
                Some(0) => writeln!(out, "ulpf: {address:#x} was stored in `{spec}` by:"),
                Some(n) => writeln!(
                    out,
                    "ulpf: {address:#x} is {n} bytes behind {:#x}, which was stored in `{spec}` by:",
                    address - n
                ),
            };
            formatter.hit(&mut out, &record, &self.life.program);
        }
        out
    }

    /// One JSON line (docs/json.md).
    pub fn json(&self) -> String {
        let mut formatter = Formatter::new(Look::Json);
        let writers = self.records().filter_map(|(record, _)| {
            let mut line = String::new();
            formatter.hit(&mut line, &record, &self.life.program);
            RawValue::from_string(line.trim_end().into()).ok()
        });
        json::line(&Line {
            r#type: "crash",
            time: Seconds(self.nanos),
            pid: self.life.pid,
            tid: self.tid,
            signal: signals::name(self.signal),
            addr: self.address.map(Address),
            place: &self.place,
            by: self.by.as_ref().map(|by| &*by.place),
            callers: &self.callers,
            writers: writers.collect(),
            origin: self.origin.as_ref().map(|origin| OriginLine {
                pointer: Address(origin.pointer),
                addr: Address(origin.place),
                name: origin.name.as_deref(),
                writer: origin.writer.as_ref().map(|w| WriterLine {
                    time: Seconds(w.nanos),
                    tid: w.tid,
                    call: w.call,
                    place: &w.by,
                }),
            }),
        })
    }
}

#[derive(Serialize)]
struct Line<'a> {
    r#type: &'static str,
    time: Seconds,
    pid: i32,
    tid: u32,
    signal: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    addr: Option<Address>,
    #[serde(flatten)]
    place: &'a Place,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a Place>,
    callers: &'a [Rc<Place>],
    writers: Vec<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<OriginLine<'a>>,
}

#[derive(Serialize)]
struct OriginLine<'a> {
    pointer: Address,
    addr: Address,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    writer: Option<WriterLine<'a>>,
}

#[derive(Serialize)]
struct WriterLine<'a> {
    time: Seconds,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<&'static str>,
    #[serde(flatten)]
    place: &'a Place,
}

/// The last writers of the bytes at the address, and of watched pointers that lead to it or a little before it.
fn writers(life: &Life, address: u64) -> Vec<Writer> {
    let all = Asked {
        addr: 0,
        len: u64::MAX >> 1,
        reads: false,
        most: MOST,
    };
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    for hit in last(&life.shared, &all).hits {
        let Some(&(number, place)) = life.by_id.get(&hit.watch) else {
            continue;
        };
        // Only the last write of a place matters.
        if !seen.insert(hit.addr) {
            continue;
        }
        let before = match pointer(life, (number, place), &hit) {
            Some(value) => address.checked_sub(value).filter(|n| *n < NEAR),
            None => None,
        };
        let there = address.wrapping_sub(hit.addr) < hit.len.into();
        if there || before.is_some() {
            found.push(Writer {
                hit,
                number,
                place,
                before: before.filter(|_| !there),
            });
        }
        if found.len() >= MOST_POINTERS {
            break;
        }
    }
    found
}

/// The pointer that the hit has stored, if any. Without type information any word but 0 may be one.
fn pointer(life: &Life, (number, place): (usize, usize), hit: &Hit) -> Option<u64> {
    let value = hit.new.first_chunk::<8>().filter(|_| hit.len == 8)?;
    let value = u64::from_le_bytes(*value);
    let watched = life.watches.get(number)?.watched.get(place)?;
    let (_, part) = watched.part(watched.offset(hit), hit.len.into());
    match part.is_pointer() {
        Some(is) => is.then_some(value),
        None => Some(value).filter(|v| *v != 0),
    }
}
