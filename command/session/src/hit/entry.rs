//! A hit with all its known properties, and its forms for programs: a JSON object and a row of CSV. All parts of the
//! command write hits in these forms; GDB's plugin gets them from the server ([`super::told`]). docs/json.md and
//! docs/json.schema.json define them.

use super::place::{Caller, Place};
use crate::words::{Seconds, verb};
use serde::ser::{SerializeSeq, SerializeStruct};
use serde::{Serialize, Serializer};
use std::fmt::{self, Write};
use std::rc::Rc;
use ulpf_host::foreign::text::shown;
use ulpf_host::say::json::{self, Address, Hex};
use ulpf_lib::ring::{self, SystemCall, hit_flags};
use ulpf_lib::syscalls;
use ulpf_symbols::{Part, Value};

/// The system call that made an access: `read(3, 0x4010, 512) = 512`.
pub struct Call<'a>(pub &'a SystemCall);

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        syscalls::write_call(f, self.0.nr, &self.0.args, self.0.result)
    }
}

/// Time of a hit, in nanoseconds.
#[derive(Clone, Copy, Debug)]
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

/// The accessed part of a watch, looked up once for all accesses to the same bytes.
#[derive(Clone, Debug)]
pub struct Named {
    pub name: Rc<str>,
    /// The type of its value.
    pub value_type: Option<String>,
    pub part: Part,
}

impl Named {
    /// The name and the form of `len` bytes.
    pub fn new((name, part): (String, Part), len: u32) -> Named {
        let value_type = part.type_name(len.into());
        Named {
            name: name.into(),
            value_type,
            part,
        }
    }
}

/// A hit, with the properties that its thread has not written.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    pub hit: &'a ring::Hit,
    pub pid: i32,
    pub when: When,
    /// The user's number of the watch, from 1; `None` for a debugger's watch.
    pub watch: Option<usize>,
    pub spec: &'a str,
    pub named: &'a Named,
    pub place: &'a Place,
    pub by: Option<&'a Caller>,
    /// Innermost first.
    pub callers: &'a [Rc<Place>],
}

/// All columns of the table, in their order, and fields of the object.
#[derive(Serialize)]
pub(super) struct Fields<'a> {
    pub r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Seconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ago: Option<Seconds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    pub tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watch: Option<usize>,
    pub spec: &'a str,
    pub name: &'a str,
    pub access: &'a str,
    pub addr: Address,
    pub len: u32,
    pub value_type: Option<&'a str>,
    #[serde(flatten)]
    pub values: Option<Values<'a>>,
    pub silent: bool,
    pub truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unchained: Option<bool>,
    #[serde(flatten)]
    pub call: Option<Caused<'a>>,
    /// `None`: the stop keeps no record.
    #[serde(flatten)]
    pub place: Option<&'a Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<&'a Place>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub callers: &'a [Rc<Place>],
}

#[derive(Serialize)]
pub(super) struct Values<'a> {
    old: Typed,
    new: Typed,
    old_bytes: Hex<'a>,
    new_bytes: Hex<'a>,
}

impl<'a> Values<'a> {
    /// The values of an access to `len` bytes, of which these are the first.
    pub fn of(part: &Part, (old, new): (&'a [u8], &'a [u8]), len: u32) -> Values<'a> {
        let typed = |bytes: &[u8]| Typed(part.value(bytes, len.into()));
        Values {
            old: typed(old),
            new: typed(new),
            old_bytes: Hex(old),
            new_bytes: Hex(new),
        }
    }
}

/// The system call that made an access.
#[derive(Clone, Copy)]
pub(super) enum Caused<'a> {
    By(&'a SystemCall),
    /// As `By` writes it.
    Text(&'a str),
}

impl fmt::Display for Caused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Caused::By(call) => Call(call).fmt(f),
            Caused::Text(text) => f.write_str(text),
        }
    }
}

/// The fields `syscall` and `call`.
impl Serialize for Caused<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut both = to.serialize_struct("Caused", 2)?;
        both.serialize_field("syscall", &NameOf(*self).to_string())?;
        both.serialize_field("call", &self.to_string())?;
        both.end()
    }
}

/// The name of the system call.
struct NameOf<'a>(Caused<'a>);

impl fmt::Display for NameOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Caused::By(call) => match syscalls::name(call.nr) {
                Some(name) => f.write_str(name),
                None => write!(f, "syscall {}", call.nr),
            },
            Caused::Text(text) => f.write_str(text.split('(').next().unwrap_or(text)),
        }
    }
}

/// A value in JSON form.
struct Typed(Value);

impl Serialize for Typed {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        json_of(&self.0, to)
    }
}

fn json_of<S: Serializer>(value: &Value, to: S) -> Result<S::Ok, S::Error> {
    struct Item<'a>(&'a Value);
    impl Serialize for Item<'_> {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            json_of(self.0, to)
        }
    }
    match value {
        Value::Bool(b) => to.serialize_bool(*b),
        Value::Signed(n) => to.serialize_i128(*n),
        Value::Unsigned(n) => to.serialize_u128(*n),
        // (JSON has no infinity and no NaN, so these become texts: `inf`, `NaN`.)
        Value::Single(n) if !n.is_finite() => to.collect_str(n),
        Value::Double(n) if !n.is_finite() => to.collect_str(n),
        Value::Single(n) => to.serialize_f32(*n),
        Value::Double(n) => to.serialize_f64(*n),
        Value::Text(text) => to.serialize_str(text),
        Value::List(items) => {
            let mut list = to.serialize_seq(Some(items.len()))?;
            for item in items {
                list.serialize_element(&Item(item))?;
            }
            list.end()
        }
    }
}

impl<'a> Entry<'a> {
    fn is(&self, flag: u8) -> bool {
        self.hit.flags & flag != 0
    }

    fn fields(&self) -> Fields<'a> {
        let hit = self.hit;
        let (used, len) = (hit.used(), hit.len);
        let bytes = (&hit.old[..used], &hit.new[..used]);
        let known = !self.is(hit_flags::UNKNOWN);
        Fields {
            r#type: "hit",
            time: self.when.since(),
            ago: self.when.ago(),
            pid: Some(self.pid),
            tid: hit.tid,
            watch: self.watch,
            spec: self.spec,
            name: &self.named.name,
            access: verb(hit.kind),
            addr: Address(hit.addr),
            len,
            value_type: self.named.value_type.as_deref(),
            values: known.then(|| Values::of(&self.named.part, bytes, len)),
            silent: self.is(hit_flags::SILENT),
            truncated: self.is(hit_flags::TRUNCATED),
            unchained: self.is(hit_flags::UNCHAINED).then_some(true),
            call: hit.call.as_deref().map(Caused::By),
            place: Some(self.place),
            by: self.by.map(|by| &*by.place),
            callers: self.callers,
        }
    }

    /// One object.
    pub fn json(&self) -> impl Serialize + 'a {
        self.fields()
    }

    /// Appends a line of CSV; its columns are [`CSV_HEAD`].
    pub fn csv(&self, out: &mut String) {
        self.fields().csv(out);
    }
}

impl Fields<'_> {
    /// As [`Entry::csv`].
    pub fn csv(&self, out: &mut String) {
        let mut row = Row { out, first: true };
        row.maybe(self.time);
        row.maybe(self.ago);
        row.maybe(self.pid);
        row.cell(self.tid);
        row.maybe(self.watch);
        row.text(self.spec);
        row.text(self.name);
        row.cell(self.access);
        row.cell(format_args!("{:#x}", self.addr.0));
        row.cell(self.len);
        row.text(self.value_type.unwrap_or_default());
        match &self.values {
            Some(values) => {
                row.value(&values.old.0);
                row.value(&values.new.0);
                row.cell(values.old_bytes);
                row.cell(values.new_bytes);
            }
            None => (0..4).for_each(|_| row.cell("")),
        }
        row.cell(self.silent);
        row.cell(self.truncated);
        row.maybe(self.unchained);
        row.maybe(self.call.map(NameOf));
        row.text(&self.call.map(|call| call.to_string()).unwrap_or_default());
        let place = self.place;
        row.maybe(place.map(|place| format!("{:#x}", place.pc.0)));
        let text = |of: fn(&Place) -> &Option<String>| place.and_then(|p| of(p).as_deref());
        row.text(text(|place| &place.function).unwrap_or_default());
        row.maybe(place.and_then(|place| place.offset));
        row.text(text(|place| &place.inlined).unwrap_or_default());
        row.text(text(|place| &place.file).unwrap_or_default());
        row.maybe(place.and_then(|place| place.line));
        row.text(text(|place| &place.object).unwrap_or_default());
        row.text(self.by.map(|by| by.caller.as_str()).unwrap_or_default());
        let callers: Vec<&str> = self.callers.iter().map(|c| c.caller.as_str()).collect();
        row.text(&callers.join(" < "));
        out.push('\n');
    }
}

/// Column names of [`Entry::csv`]: the fields of the JSON object, in their order.
pub const CSV_HEAD: &str = "time,ago,pid,tid,watch,spec,name,access,addr,len,value_type,old,new,old_bytes,new_bytes,\
silent,truncated,unchained,syscall,call,pc,function,offset,inlined,file,line,object,by,callers\n";

struct Row<'a> {
    out: &'a mut String,
    first: bool,
}

impl Row<'_> {
    /// Appends a cell that needs no quotes.
    fn cell(&mut self, what: impl fmt::Display) {
        let comma = if std::mem::take(&mut self.first) {
            ""
        } else {
            ","
        };
        let _ = write!(self.out, "{comma}{what}");
    }

    fn maybe(&mut self, what: Option<impl fmt::Display>) {
        match what {
            Some(what) => self.cell(what),
            None => self.cell(""),
        }
    }

    /// Appends a text. CSV cannot escape a control character of a terminal, so the text shows it in printable form.
    fn text(&mut self, text: &str) {
        let text = shown(text);
        match text.contains([',', '"']) {
            true => self.cell(format_args!("\"{}\"", text.replace('"', "\"\""))),
            false => self.cell(text),
        }
    }

    /// Appends a text as it is, any other value as in JSON.
    fn value(&mut self, value: &Value) {
        match value {
            Value::Text(text) => self.text(text),
            Value::Single(n) if !n.is_finite() => self.cell(n),
            Value::Double(n) if !n.is_finite() => self.cell(n),
            Value::List(_) | Value::Single(_) | Value::Double(_) => {
                let mut text = String::new();
                json::put(&mut text, &Typed(value.clone()));
                self.text(&text);
            }
            Value::Bool(b) => self.cell(b),
            Value::Signed(n) => self.cell(n),
            Value::Unsigned(n) => self.cell(n),
        }
    }
}
