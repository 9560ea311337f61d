//! A hit in Chrome's trace format, for ui.perfetto.dev.

use super::entry::{Entry, When};
use crate::words::verb;
use serde::Serialize;
use serde_json::value::RawValue;
use ulpf_host::say::json::{self, Address};
use ulpf_lib::ring::hit_flags;

/// Arguments of the event.
pub struct Event<'a> {
    pub name: &'a str,
    pub verb: &'static str,
    pub nanos: u64,
    pub pid: i32,
    pub tid: u32,
    pub value: &'a str,
    pub place: &'a str,
    pub addr: u64,
}

#[derive(Serialize)]
struct EventJson<'a> {
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

impl<'a> Event<'a> {
    pub fn json(self) -> impl Serialize + 'a {
        let (micros, nanos) = (self.nanos / 1000, self.nanos % 1000);
        EventJson {
            ph: "i",
            s: "t",
            name: self.name,
            cat: self.verb,
            ts: json::number(format_args!("{micros}.{nanos:03}")),
            pid: self.pid,
            tid: self.tid,
            args: Args {
                value: self.value,
                r#where: self.place,
                addr: Address(self.addr),
            },
        }
    }
}

impl Entry<'_> {
    /// Appends an event, with a comma and a line end.
    pub fn trace(&self, out: &mut String) {
        let hit = self.hit;
        let render = |bytes: &[u8]| {
            let mut out = String::new();
            self.named.part.render(bytes, hit.len.into(), &mut out);
            out
        };
        let (old, new) = (&hit.old[..hit.used()], &hit.new[..hit.used()]);
        let value = match () {
            _ if hit.flags & hit_flags::UNKNOWN != 0 => "?".to_string(),
            _ if hit.kind == 1 || hit.flags & hit_flags::SILENT != 0 => render(new),
            _ => format!("{} → {}", render(old), render(new)),
        };
        let (When::Since(nanos) | When::Ago(nanos)) = self.when;
        let event = Event {
            name: &self.named.name,
            verb: verb(hit.kind),
            nanos,
            pid: self.pid,
            tid: hit.tid,
            value: &value,
            place: self.by.map_or(&self.place.text, |by| &by.text),
            addr: hit.addr,
        };
        json::put(out, &event.json());
        out.push_str(",\n");
    }
}

/// Metadata of a process or a thread in a trace.
#[derive(Serialize)]
pub struct Meta<'a> {
    ph: &'static str,
    name: &'static str,
    pid: i32,
    tid: i32,
    args: Named<'a>,
}

#[derive(Serialize)]
struct Named<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

impl<'a> Meta<'a> {
    pub fn process(pid: i32, name: &'a str) -> Meta<'a> {
        Meta::of("process_name", pid, pid, Some(name))
    }

    pub fn thread(pid: i32, tid: i32, name: &'a str) -> Meta<'a> {
        Meta::of("thread_name", pid, tid, Some(name))
    }

    /// The last event, without a comma after it.
    pub fn end(pid: i32) -> Meta<'a> {
        Meta::of("end", pid, pid, None)
    }

    fn of(what: &'static str, pid: i32, tid: i32, name: Option<&'a str>) -> Meta<'a> {
        Meta {
            ph: "M",
            name: what,
            pid,
            tid,
            args: Named { name },
        }
    }
}
