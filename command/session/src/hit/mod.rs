//! A hit in words, and its forms: lines for people and JSON ([`log`]), JSON, CSV and events of a trace for other
//! tools ([`Line`]), and what the stub writes ([`as_the_stub`]). docs/json.md describes the JSON.

pub mod log;

use super::words::Seconds;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use std::fmt::{self, Write};
use std::rc::Rc;
use ulpf_area::SharedArea;
use ulpf_host::foreign::text::shown;
use ulpf_lib::command::reply::{Micros, Record, Which};
use ulpf_lib::ring::{self, SystemCall, hit_flags};
use ulpf_lib::syscalls;
use ulpf_say::json::{self, Address, Hex};

/// The system call that made an access: `read(3, 0x4010, 512) = 512`.
pub struct Call<'a>(pub &'a SystemCall);

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        syscalls::write_call(f, self.0.nr, &self.0.args, self.0.result)
    }
}

impl Serialize for Call<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A hit as whoever looks at a session from outside knows it.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// Counts lines, from the first.
    pub number: u64,
    /// Since the session began.
    pub nanos: u64,
    /// The thread that made it.
    pub tid: u32,
    /// `read`, `write`, `update`.
    pub verb: &'static str,
    /// The part of the watch that was touched.
    pub name: Rc<str>,
    /// Its value before and after.
    pub change: String,
    /// Where the instruction is.
    pub place: Rc<str>,
    /// The record itself.
    pub hit: ring::Hit,
}

/// The names of what [`Line::csv`] writes.
pub const CSV_HEAD: &str = "time,thread,access,watch,addr,len,old,new,silent,pc,where\n";

impl Line {
    fn is_silent(&self) -> bool {
        self.hit.flags & hit_flags::SILENT != 0
    }

    fn values(&self) -> (Hex<'_>, Hex<'_>) {
        let used = self.hit.used();
        (Hex(&self.hit.old[..used]), Hex(&self.hit.new[..used]))
    }

    /// One object, of process `pid`.
    pub fn json(&self, pid: i32) -> impl Serialize + '_ {
        #[derive(Serialize)]
        struct Exported<'a> {
            r#type: &'static str,
            time: Seconds,
            pid: i32,
            tid: u32,
            access: &'static str,
            name: &'a str,
            addr: Address,
            len: u32,
            value: &'a str,
            old_bytes: Hex<'a>,
            new_bytes: Hex<'a>,
            silent: bool,
            pc: Address,
            r#where: &'a str,
        }
        let (old_bytes, new_bytes) = self.values();
        Exported {
            r#type: "hit",
            time: Seconds(self.nanos),
            pid,
            tid: self.tid,
            access: self.verb,
            name: &self.name,
            addr: Address(self.hit.addr),
            len: self.hit.len,
            value: &self.change,
            old_bytes,
            new_bytes,
            silent: self.is_silent(),
            pc: Address(self.hit.pc),
            r#where: &self.place,
        }
    }

    /// A line of CSV, with its end.
    pub fn csv(&self, out: &mut String) {
        let (old, new) = self.values();
        let _ = writeln!(
            out,
            "{},{},{},{},{:#x},{},{old},{new},{},{:#x},{}",
            Seconds(self.nanos),
            self.tid,
            self.verb,
            Cell(&self.name),
            self.hit.addr,
            self.hit.len,
            self.is_silent(),
            self.hit.pc,
            Cell(&self.place)
        );
    }

    /// An event in Chrome's trace format.
    pub fn trace(&self, pid: i32) -> impl Serialize + '_ {
        #[derive(Serialize)]
        struct Event<'a> {
            ph: &'static str,
            s: &'static str,
            name: &'a str,
            cat: &'static str,
            ts: Option<Box<RawValue>>,
            pid: i32,
            tid: u32,
            args: Args<'a>,
        }
        #[derive(Serialize)]
        struct Args<'a> {
            value: &'a str,
            r#where: &'a str,
            addr: Address,
        }
        let (micros, nanos) = (self.nanos / 1000, self.nanos % 1000);
        Event {
            ph: "i",
            s: "t",
            name: &self.name,
            cat: self.verb,
            ts: json::number(format_args!("{micros}.{nanos:03}")),
            pid,
            tid: self.tid,
            args: Args {
                value: &self.change,
                r#where: &self.place,
                addr: Address(self.hit.addr),
            },
        }
    }
}

/// A field of a CSV line. CSV has no way to write a character that a terminal obeys: it is shown.
struct Cell<'a>(&'a str);

impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = shown(self.0);
        match text.contains([',', '"']) {
            true => write!(f, "\"{}\"", text.replace('"', "\"\"")),
            false => f.write_str(&text),
        }
    }
}

/// A hit as the stub tells of it (`monitor ulpf log`, stub/task/src/control/last.rs), which is what the plugin reads.
pub fn as_the_stub(area: &SharedArea, hit: &ring::Hit) -> Record {
    let clock = area.clock();
    let since = clock.nanos(hit.time).saturating_sub(clock.base_ns);
    let (time, watch) = (Micros::of_nanos(since), hit.watch);
    Record::of(Which::Logged { time, watch }, hit)
}
