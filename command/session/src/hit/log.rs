//! Hits as lines of a log, for people or for programs: what `ulpf run` and `ulpf last` write.

use super::entry::{Call, Entry, Named, When};
use super::place::{Caller, Place, Places, asked_for, own_caller};
use crate::words::verb;
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::rc::Rc;
use ulpf_host::foreign::text::shown;
use ulpf_host::say::json;
use ulpf_lib::ring::{self, hit_flags};
use ulpf_symbols::Watched;

/// Form of the lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    Plain,
    Coloured,
    Json,
    Csv,
    /// Events of Chrome's trace format, each with a comma after it.
    Trace,
}

impl Look {
    /// The form for a terminal, or for another output.
    pub fn of(json: bool, is_terminal: bool) -> Look {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty())
            || std::env::var_os("TERM").is_none_or(|t| t == "dumb");
        match () {
            _ if json => Look::Json,
            _ if is_terminal && !plain => Look::Coloured,
            _ => Look::Plain,
        }
    }
}

/// A hit, with the properties that its thread has not written.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// The record itself.
    pub hit: &'a ring::Hit,
    pub pid: i32,
    /// Lines name the process, because there are several.
    pub several: bool,
    /// Time of the hit.
    pub when: When,
    /// The user's number of the watch, from 0.
    pub number: usize,
    /// The watch that it hit.
    pub watch: &'a Watched,
}

/// The cache is emptied when it has this many entries.
const CACHE_LIMIT: usize = 1 << 16;

/// Writes records as lines. Allocates only for names and places not seen before; a busy program hits some
/// hundred thousand times a second.
pub struct Formatter {
    look: Look,
    /// By watch, start of the place (one watch of the stub may be many places of the user's), offset in it, length.
    names: HashMap<(u32, u64, u64, u32), Rc<Named>>,
    places: HashMap<u64, Rc<Place>>,
    old: String,
    new: String,
}

impl Formatter {
    /// Writes hits in this form.
    pub fn new(look: Look) -> Formatter {
        Formatter {
            look,
            names: HashMap::new(),
            places: HashMap::new(),
            old: String::new(),
            new: String::new(),
        }
    }

    /// Forgets the places: libraries came or went, so they may be wrong.
    pub fn forget_places(&mut self) {
        self.places.clear();
    }

    /// Appends the line (and the lines of the backtrace).
    pub fn hit(&mut self, out: &mut String, record: &Record, places: &impl Places) {
        let hit = record.hit;
        let named = self.named(record);
        let place = self.place(places, hit.pc, false);
        let callers = hit.frames.iter();
        let callers: Vec<Rc<Place>> = callers.map(|f| self.place(places, *f, true)).collect();
        let by = own_caller(&place, &callers);
        let entry = Entry {
            hit,
            pid: record.pid,
            when: record.when,
            watch: Some(record.number + 1),
            spec: &record.watch.spec,
            named: &named,
            place: &place,
            by: by.as_ref(),
            callers: asked_for(hit, &callers),
        };
        match self.look {
            Look::Json => json::append(out, &entry.json()),
            Look::Csv => entry.csv(out),
            Look::Trace => entry.trace(out),
            Look::Plain | Look::Coloured => self.text(out, &entry, record.several),
        }
    }

    fn text(&mut self, out: &mut String, entry: &Entry, several: bool) {
        let (hit, when, part) = (entry.hit, entry.when, &entry.named.part);
        let used = hit.used();
        self.old.clear();
        self.new.clear();
        part.render(&hit.old[..used], hit.len.into(), &mut self.old);
        part.render(&hit.new[..used], hit.len.into(), &mut self.new);
        if hit.flags & hit_flags::UNKNOWN != 0 {
            self.old.replace_range(.., "?");
            self.new.replace_range(.., "?");
        }
        let name = shown(&entry.named.name);
        let silent = hit.flags & hit_flags::SILENT != 0;
        let verb = verb(hit.kind);
        let paint = |code: &'static str| match self.look {
            Look::Coloured => code,
            _ => "",
        };
        let colour = match verb {
            "read" => paint("\x1b[32m"),
            _ => paint("\x1b[33m"),
        };
        let (bold, dim, end) = (paint("\x1b[1m"), paint("\x1b[2m"), paint("\x1b[0m"));
        let _ = write!(
            out,
            "{dim}{when} [{}]{end} {colour}{verb:<6}{end} {bold}{name}{end}: ",
            Who(several.then_some(entry.pid), hit.tid),
        );
        let _ = match () {
            _ if verb == "read" => out.write_str(&self.new),
            _ if silent => write!(out, "{} (unchanged)", self.new),
            _ => write!(out, "{} → {}", self.old, self.new),
        };
        let bytes = if hit.len == 1 { "byte" } else { "bytes" };
        let _ = write!(out, "  {dim}{} {bytes}{end}  ", hit.len);
        if let Some(call) = &hit.call {
            let _ = write!(out, "by {}, called from ", Call(call));
        }
        let _ = match entry.by {
            Some(Caller { text, .. }) => writeln!(out, "{text}"),
            None => writeln!(out, "{}", entry.place.text),
        };
        if !entry.callers.is_empty() && entry.by.is_some() {
            // With callers, the whole stack is shown.
            let _ = writeln!(out, "                #0 {}", entry.place.text);
        }
        for (i, caller) in entry.callers.iter().enumerate() {
            let _ = writeln!(out, "                #{} {}", i + 1, caller.text);
        }
    }

    fn named(&mut self, record: &Record) -> Rc<Named> {
        if self.names.len() >= CACHE_LIMIT {
            self.names.clear();
        }
        let (watch, len) = (record.watch, record.hit.len);
        let offset = watch.offset(record.hit);
        let new = || Rc::new(Named::new(watch.part(offset, len.into()), len));
        self.names
            .entry((record.hit.watch, watch.addr, offset, len))
            .or_insert_with(new)
            .clone()
    }

    /// `caller`: `pc` is a return address.
    fn place(&mut self, places: &impl Places, pc: u64, caller: bool) -> Rc<Place> {
        // The top bit, which no user address has, distinguishes return addresses from hits.
        let key = pc | u64::from(caller) << 63;
        if let Some(known) = self.places.get(&key) {
            return known.clone();
        }
        if self.places.len() >= CACHE_LIMIT {
            self.places.clear();
        }
        let place = Rc::new(Place::at(places, pc, caller));
        self.places.insert(key, place.clone());
        place
    }
}

/// The thread, with its process if there are several.
struct Who(Option<i32>, u32);

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "{pid}/{}", self.1),
            None => write!(f, "{}", self.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hit::entry::CSV_HEAD;
    use ulpf_lib::WatchKind;
    use ulpf_lib::ring::MAX_VALUE;
    use ulpf_lib::ring::SystemCall;
    use ulpf_symbols::Program;

    fn record(addr: u64, old: u32, new: u32) -> ring::Hit {
        let value = |n: u32| {
            let mut bytes = [0; MAX_VALUE];
            bytes[..4].copy_from_slice(&n.to_le_bytes());
            bytes
        };
        ring::Hit {
            tid: 4711,
            pc: 0x401234,
            addr,
            len: 4,
            kind: 2,
            old: value(old),
            new: value(new),
            frames: vec![0x401300],
            ..ring::Hit::default()
        }
    }

    fn by_kernel(hit: &mut ring::Hit) {
        hit.flags = hit_flags::KERNEL;
        hit.call = Some(Box::new(SystemCall {
            nr: 0,
            args: [3, 0x5008, 4, 0, 0, 0],
            result: 4,
        }));
    }

    fn watch() -> Watched {
        Watched {
            freeze: false,
            spec: "0x5000:64".into(),
            name: "0x5000".into(),
            addr: 0x5000,
            len: 64,
            heap: false,
            kind: WatchKind::Write,
            ty: None,
            slice: None,
            each: None,
            bits: None,
            path: None,
            note: None,
            filter: Default::default(),
        }
    }

    fn show(look: Look, hit: &ring::Hit) -> String {
        let mut out = String::new();
        let record = Record {
            hit,
            pid: 4710,
            several: false,
            when: When::Since(1_002_003_004),
            number: 0,
            watch: &watch(),
        };
        Formatter::new(look).hit(&mut out, &record, &Program::default());
        out
    }

    #[test]
    fn lines_for_people() {
        let mut hit = record(0x5008, 41, 42);
        assert_eq!(
            show(Look::Plain, &hit),
            "   1.002003 [4711] write  0x5000+8: 0x29 → 0x2a  4 bytes  0x401234\n                #1 0x401300\n"
        );
        hit.frames.clear();
        hit.flags = hit_flags::SILENT;
        assert!(show(Look::Plain, &hit).contains("0x5000+8: 0x2a (unchanged)  4 bytes"));
        hit.kind = 1;
        assert!(show(Look::Plain, &hit).contains("read   0x5000+8: 0x2a  4 bytes"));
        by_kernel(&mut hit);
        assert!(
            show(Look::Plain, &hit)
                .contains("4 bytes  by read(3, 0x5008, 4) = 4, called from 0x401234")
        );
        assert!(show(Look::Coloured, &hit).contains("\x1b[32mread  \x1b[0m"));
    }

    #[test]
    fn lines_for_programs() {
        let mut hit = record(0x5008, 41, 42);
        by_kernel(&mut hit);
        let line: serde_json::Value = serde_json::from_str(&show(Look::Json, &hit)).unwrap();
        assert_eq!(line["time"], 1.002003);
        assert_eq!(line["watch"], 1);
        assert_eq!(line["name"], "0x5000+8");
        assert_eq!(line["new_bytes"], "2a000000");
        assert_eq!(line["syscall"], "read");
        assert_eq!(line["call"], "read(3, 0x5008, 4) = 4");
        assert_eq!(line["callers"][0]["pc"], "0x401300");
        assert_eq!(
            (&line["pid"], &line["value_type"]),
            (&4710.into(), &().into())
        );
        let row = show(Look::Csv, &hit);
        let (names, cells) = (CSV_HEAD.trim_end(), row.trim_end());
        let cells: Vec<_> = names.split(',').zip(cells.split(',')).collect();
        assert_eq!(cells[0], ("time", "1.002003"));
        assert_eq!(cells[12], ("new", "0x2a"));
        hit.flags = hit_flags::UNKNOWN;
        let row = show(Look::Csv, &hit);
        let unknown: Vec<_> = names.split(',').zip(row.trim_end().split(',')).collect();
        assert_eq!((unknown[0], unknown[12]), (cells[0], ("new", "")));
    }
}
