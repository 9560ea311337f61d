//! One hit, one line: for people or as JSON. Allocates only for names and places not seen before;
//! a busy program hits some hundred thousand times a second.

use crate::foreign::text::{is_plain, shown};
use crate::symbols::{Location, Part, Program, Watched};
use std::collections::HashMap;
use std::fmt::Write;
use std::rc::Rc;
use ulpf_lib::ring::{Hit, SystemCall, hit_flags};
use ulpf_lib::syscalls;

/// Forgets everything when it has grown to this many entries.
const CACHE_LIMIT: usize = 1 << 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    Plain,
    Coloured,
    Json,
}

pub struct Formatter {
    look: Look,
    /// By watch, offset in it, length.
    names: HashMap<(usize, u64, u32), Rc<Named>>,
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

struct Place {
    text: String,
    json: String,
}

impl Formatter {
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

    /// Appends the line (and the lines of the backtrace). `pid`: if it is to be named; `number`: of the
    /// watch in the order given by the user.
    #[allow(clippy::too_many_arguments)]
    pub fn hit(
        &mut self,
        out: &mut String,
        hit: &Hit,
        pid: Option<i32>,
        when: When,
        number: usize,
        watch: &Watched,
        program: &Program,
    ) {
        let offset = hit.addr.wrapping_sub(watch.addr);
        let named = self.named(number, watch, offset, hit.len);
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
        let silent = hit.flags & hit_flags::SILENT != 0;
        let place = self.place(program, hit.pc, false);
        let verb = verb(hit.kind);
        let _ = match self.look {
            Look::Json => self.json(
                out,
                hit,
                pid,
                number,
                watch,
                program,
                &named.text,
                &place,
                when,
                used,
            ),
            Look::Plain | Look::Coloured => {
                let paint = |code: &'static str| {
                    if self.look == Look::Coloured {
                        code
                    } else {
                        ""
                    }
                };
                let colour = if verb == "read" {
                    paint("\x1b[32m")
                } else {
                    paint("\x1b[33m")
                };
                let (bold, dim, end) = (paint("\x1b[1m"), paint("\x1b[2m"), paint("\x1b[0m"));
                let _ = write!(
                    out,
                    "{dim}{when} [{}]{end} {colour}{verb:<6}{end} {bold}{}{end}: ",
                    Who(pid, hit.tid),
                    named.shown
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
                for (i, frame) in hit.frames.iter().enumerate() {
                    let caller = self.place(program, *frame, true);
                    let _ = writeln!(out, "                #{} {}", i + 1, caller.text);
                }
                Ok(())
            }
        };
    }

    #[allow(clippy::too_many_arguments)]
    fn json(
        &mut self,
        out: &mut String,
        hit: &Hit,
        pid: Option<i32>,
        number: usize,
        watch: &Watched,
        program: &Program,
        name: &str,
        place: &Place,
        when: When,
        used: usize,
    ) -> std::fmt::Result {
        let (key, nanos) = match when {
            When::Since(nanos) => ("time", nanos),
            When::Ago(nanos) => ("ago", nanos),
        };
        let (seconds, micros) = (nanos / 1_000_000_000, nanos % 1_000_000_000 / 1000);
        write!(out, "{{\"type\":\"hit\",\"{key}\":{seconds}.{micros:06}")?;
        if let Some(pid) = pid {
            write!(out, ",\"pid\":{pid}")?;
        }
        write!(out, ",\"tid\":{},\"watch\":{}", hit.tid, number + 1)?;
        write!(
            out,
            ",\"spec\":{},\"name\":{}",
            Quoted(&watch.spec),
            Quoted(name)
        )?;
        write!(
            out,
            ",\"access\":\"{}\",\"addr\":\"{:#x}\",\"len\":{}",
            verb(hit.kind),
            hit.addr,
            hit.len
        )?;
        if hit.flags & hit_flags::UNKNOWN == 0 {
            let (old, new) = (Quoted(&self.old), Quoted(&self.new));
            write!(out, ",\"old\":{old},\"new\":{new}")?;
            let (old, new) = (Hex(&hit.old[..used]), Hex(&hit.new[..used]));
            write!(out, ",\"old_bytes\":\"{old}\",\"new_bytes\":\"{new}\"")?;
        }
        let flag = |bit| hit.flags & bit != 0;
        write!(
            out,
            ",\"silent\":{},\"truncated\":{}",
            flag(hit_flags::SILENT),
            flag(hit_flags::TRUNCATED)
        )?;
        if let Some(call) = &hit.call {
            match syscalls::name(call.nr) {
                Some(name) => write!(out, ",\"syscall\":\"{name}\"")?,
                None => write!(out, ",\"syscall\":\"syscall {}\"", call.nr)?,
            }
            write!(out, ",\"call\":\"{}\"", Call(call))?;
        }
        write!(out, ",{}", place.json)?;
        if !hit.frames.is_empty() {
            out.write_str(",\"callers\":[")?;
            for (i, frame) in hit.frames.iter().enumerate() {
                let caller = self.place(program, *frame, true);
                write!(out, "{}{{{}}}", if i > 0 { "," } else { "" }, caller.json)?;
            }
            out.write_str("]")?;
        }
        out.write_str("}\n")
    }

    fn named(&mut self, number: usize, watch: &Watched, offset: u64, len: u32) -> Rc<Named> {
        if self.names.len() >= CACHE_LIMIT {
            self.names.clear();
        }
        let new = || {
            let (text, part) = watch.part(offset, len.into());
            let shown = shown(&text).into_owned();
            Rc::new(Named { text, shown, part })
        };
        self.names
            .entry((number, offset, len))
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
        let place = Rc::new(Place {
            text: location.to_string(),
            json: location_json(&location),
        });
        self.places.insert(key, place.clone());
        place
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

impl std::fmt::Display for When {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (nanos, unit) = match self {
            When::Since(nanos) => (nanos, ""),
            When::Ago(nanos) => (nanos, " s ago"),
        };
        let (seconds, micros) = (nanos / 1_000_000_000, nanos % 1_000_000_000 / 1000);
        write!(f, "{seconds:>4}.{micros:06}{unit}")
    }
}

/// The thread, with its process where there are several.
struct Who(Option<i32>, u32);

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "{pid}/{}", self.1),
            None => write!(f, "{}", self.1),
        }
    }
}

fn verb(kind: u8) -> &'static str {
    match kind {
        1 => "read",
        2 => "write",
        _ => "update",
    }
}

/// The members of a JSON object, without the braces.
fn location_json(location: &Location) -> String {
    let mut out = format!("\"pc\":\"{:#x}\"", location.pc);
    let mut text = |key: &str, value: &Option<String>| {
        if let Some(value) = value {
            let _ = write!(out, ",\"{key}\":{}", Quoted(value));
        }
    };
    text("function", &location.function);
    text("inlined", &location.inlined);
    text("file", &location.file);
    text("object", &location.object);
    if location.function.is_some() {
        let _ = write!(out, ",\"offset\":{}", location.offset);
    }
    if let Some(line) = location.line {
        let _ = write!(out, ",\"line\":{line}");
    }
    out
}

/// A JSON string.
pub struct Quoted<'a>(pub &'a str);

impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("\"")?;
        let mut rest = self.0;
        while let Some(at) = rest.find(|c| matches!(c, '"' | '\\') || !is_plain(c)) {
            let (plain, from) = rest.split_at(at);
            f.write_str(plain)?;
            let mut chars = from.chars();
            match chars.next() {
                Some('\n') => f.write_str("\\n")?,
                Some(c @ ('"' | '\\')) => write!(f, "\\{c}")?,
                // What a terminal would obey is not left to it here, either.
                Some(c) => {
                    let mut units = [0; 2];
                    let mut units = c.encode_utf16(&mut units).iter();
                    units.try_for_each(|unit| write!(f, "\\u{unit:04x}"))?;
                }
                None => {}
            }
            rest = chars.as_str();
        }
        f.write_str(rest)?;
        f.write_str("\"")
    }
}

/// The system call that made an access: `read(3, 0x4010, 512) = 512`.
struct Call<'a>(&'a SystemCall);

impl std::fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        syscalls::write_call(f, self.0.nr, &self.0.args, self.0.result)
    }
}

struct Hex<'a>(&'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ulpf_lib::WatchKind;
    use ulpf_lib::ring::MAX_VALUE;

    fn record(addr: u64, old: u32, new: u32) -> Hit {
        let value = |n: u32| {
            let mut bytes = [0; MAX_VALUE];
            bytes[..4].copy_from_slice(&n.to_le_bytes());
            bytes
        };
        Hit {
            tid: 4711,
            pc: 0x401234,
            addr,
            len: 4,
            kind: 2,
            old: value(old),
            new: value(new),
            frames: vec![0x401300],
            ..Hit::default()
        }
    }

    fn by_kernel(hit: &mut Hit) {
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
            note: None,
            filter: Default::default(),
        }
    }

    fn show(look: Look, hit: &Hit) -> String {
        let mut out = String::new();
        Formatter::new(look).hit(
            &mut out,
            hit,
            None,
            When::Since(1_002_003_004),
            0,
            &watch(),
            &Program::default(),
        );
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

    #[test]
    fn quoting() {
        assert_eq!(
            Quoted("a\"b\\c\n\u{1}é").to_string(),
            "\"a\\\"b\\\\c\\n\\u0001é\""
        );
        let foreign = "\u{9b}31m\u{202e}\u{e0001}\x7f";
        let quoted = Quoted(foreign).to_string();
        assert!(quoted.is_ascii(), "{quoted}");
        assert_eq!(serde_json::from_str::<String>(&quoted).unwrap(), foreign);
    }
}
