//! Hits as lines of a log, for people or as JSON: what `ulpf run` and `ulpf last` write.

use super::Call;
use crate::words::{Seconds, verb};
use serde::{Serialize, Serializer};
use std::collections::HashMap;
use std::fmt::{self, Write};
use std::rc::Rc;
use ulpf_host::foreign::text::shown;
use ulpf_lib::ring::{self, hit_flags};
use ulpf_lib::syscalls;
use ulpf_say::json::{self, Address, Hex};
use ulpf_symbols::{Location, Part, Program, Watched};

/// How lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    Plain,
    Coloured,
    Json,
}

impl Look {
    /// How lines look on a terminal, or elsewhere.
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

/// In nanoseconds.
#[derive(Clone, Copy)]
pub enum When {
    /// Since the start.
    Since(u64),
    /// Before now.
    Ago(u64),
}

impl When {
    fn since(self) -> Option<Seconds> {
        match self {
            When::Since(nanos) => Some(Seconds(nanos)),
            When::Ago(_) => None,
        }
    }

    fn ago(self) -> Option<Seconds> {
        match self {
            When::Since(_) => None,
            When::Ago(nanos) => Some(Seconds(nanos)),
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            When::Since(nanos) => write!(f, "{:>11}", Seconds(nanos)),
            When::Ago(nanos) => write!(f, "{:>11} s ago", Seconds(nanos)),
        }
    }
}

/// A hit, and what is known of it beside what its thread has written.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// The record itself.
    pub hit: &'a ring::Hit,
    /// If it is to be named.
    pub pid: Option<i32>,
    /// When it was made.
    pub when: When,
    /// Of the watch, in the order given by the user, from 0.
    pub number: usize,
    /// The watch that it hit.
    pub watch: &'a Watched,
}

/// A hit of a log, as JSON.
#[derive(Serialize)]
struct Logged<'a> {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<Seconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ago: Option<Seconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    tid: u32,
    watch: usize,
    spec: &'a str,
    name: &'a str,
    access: &'static str,
    addr: Address,
    len: u32,
    #[serde(flatten)]
    values: Option<Values<'a>>,
    silent: bool,
    truncated: bool,
    #[serde(flatten)]
    call: Option<Called<'a>>,
    #[serde(flatten)]
    place: &'a Place,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    callers: Vec<&'a Place>,
}

#[derive(Serialize)]
struct Values<'a> {
    old: &'a str,
    new: &'a str,
    old_bytes: Hex<'a>,
    new_bytes: Hex<'a>,
}

#[derive(Serialize)]
struct Called<'a> {
    #[serde(serialize_with = "name_of_call")]
    syscall: u64,
    call: Call<'a>,
}

fn name_of_call<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
    match syscalls::name(*number) {
        Some(name) => to.serialize_str(name),
        None => to.collect_str(&format_args!("syscall {number}")),
    }
}

/// Where an instruction is.
#[derive(Serialize)]
struct Place {
    #[serde(skip)]
    text: String,
    pc: Address,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inlined: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

impl Place {
    fn of(location: &Location) -> Place {
        Place {
            text: location.to_string(),
            pc: Address(location.pc),
            offset: location.function.is_some().then_some(location.offset),
            function: location.function.clone(),
            inlined: location.inlined.clone(),
            file: location.file.clone(),
            object: location.object.clone(),
            line: location.line,
        }
    }
}

/// Forgets everything when it has grown to this many entries.
const CACHE_LIMIT: usize = 1 << 16;

/// Writes records as lines. Allocates only for names and places not seen before; a busy program hits some
/// hundred thousand times a second.
pub struct Formatter {
    look: Look,
    /// By watch, offset in it, length.
    names: HashMap<(u32, u64, u32), Rc<Named>>,
    places: HashMap<u64, Rc<Place>>,
    old: String,
    new: String,
}

struct Named {
    text: String,
    /// The same for people.
    shown: String,
    part: Part,
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

    /// Libraries came or went: what was looked up may be wrong.
    pub fn forget_places(&mut self) {
        self.places.clear();
    }

    /// Appends the line (and the lines of the backtrace).
    pub fn hit(&mut self, out: &mut String, record: &Record, program: &Program) {
        let hit = record.hit;
        let named = self.named(record);
        let used = hit.used();
        self.old.clear();
        self.new.clear();
        named
            .part
            .render(&hit.old[..used], hit.len.into(), &mut self.old);
        named
            .part
            .render(&hit.new[..used], hit.len.into(), &mut self.new);
        if hit.flags & hit_flags::UNKNOWN != 0 {
            self.old.replace_range(.., "?");
            self.new.replace_range(.., "?");
        }
        let place = self.place(program, hit.pc, false);
        let callers = hit.frames.iter();
        let callers: Vec<Rc<Place>> = callers.map(|f| self.place(program, *f, true)).collect();
        match self.look {
            Look::Json => self.json(out, record, &named.text, &place, &callers),
            Look::Plain | Look::Coloured => {
                self.text(out, record, &named.shown, &place, &callers);
            }
        }
    }

    fn text(
        &self,
        out: &mut String,
        record: &Record,
        name: &str,
        place: &Place,
        callers: &[Rc<Place>],
    ) {
        let (hit, when) = (record.hit, record.when);
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
            Who(record.pid, hit.tid),
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
        let _ = writeln!(out, "{}", place.text);
        for (i, caller) in callers.iter().enumerate() {
            let _ = writeln!(out, "                #{} {}", i + 1, caller.text);
        }
    }

    fn json(
        &self,
        out: &mut String,
        record: &Record,
        name: &str,
        place: &Place,
        callers: &[Rc<Place>],
    ) {
        let hit = record.hit;
        let used = hit.used();
        let flag = |bit| hit.flags & bit != 0;
        let values = Values {
            old: &self.old,
            new: &self.new,
            old_bytes: Hex(&hit.old[..used]),
            new_bytes: Hex(&hit.new[..used]),
        };
        let logged = Logged {
            r#type: "hit",
            time: record.when.since(),
            ago: record.when.ago(),
            pid: record.pid,
            tid: hit.tid,
            watch: record.number + 1,
            spec: &record.watch.spec,
            name,
            access: verb(hit.kind),
            addr: Address(hit.addr),
            len: hit.len,
            values: (!flag(hit_flags::UNKNOWN)).then_some(values),
            silent: flag(hit_flags::SILENT),
            truncated: flag(hit_flags::TRUNCATED),
            call: hit.call.as_deref().map(|call| Called {
                syscall: call.nr,
                call: Call(call),
            }),
            place,
            callers: callers.iter().map(|caller| &**caller).collect(),
        };
        json::append(out, &logged);
    }

    fn named(&mut self, record: &Record) -> Rc<Named> {
        if self.names.len() >= CACHE_LIMIT {
            self.names.clear();
        }
        let (watch, len) = (record.watch, record.hit.len);
        let offset = watch.offset(record.hit);
        let new = || {
            let (text, part) = watch.part(offset, len.into());
            let shown = shown(&text).into_owned();
            Rc::new(Named { text, shown, part })
        };
        self.names
            .entry((record.hit.watch, offset, len))
            .or_insert_with(new)
            .clone()
    }

    /// `caller`: `pc` is a return address.
    fn place(&mut self, program: &Program, pc: u64, caller: bool) -> Rc<Place> {
        // Return addresses and hits are told apart by the top bit, which no user address has.
        let key = pc | u64::from(caller) << 63;
        if let Some(known) = self.places.get(&key) {
            return known.clone();
        }
        if self.places.len() >= CACHE_LIMIT {
            self.places.clear();
        }
        let location = if caller {
            program.locate_caller(pc).into()
        } else {
            program.locate(pc)
        };
        let place = Rc::new(Place::of(&location));
        self.places.insert(key, place.clone());
        place
    }
}

/// The thread, with its process where there are several.
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
    use ulpf_lib::WatchKind;
    use ulpf_lib::ring::MAX_VALUE;
    use ulpf_lib::ring::SystemCall;

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
            spec: "0x5000:64".into(),
            name: "0x5000".into(),
            addr: 0x5000,
            len: 64,
            heap: false,
            kind: WatchKind::Write,
            ty: None,
            slice: None,
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
            pid: None,
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
    }
}
