//! Hits of watches that GDB's plugin has set: the plugin knows their names and types, this side the places of code. The
//! server completes hits for the plugin, and the debug adapter for itself.
//!
//! ```text
//!  ring ─▶ plugin: watch, name, type ─▶ `monitor ulpf tell JSON` ─▶ Asked ─▶ Completed: the object of docs/json.md, texts
//! ```

use super::entry::{CSV_HEAD, Caused, Fields, Values};
use super::place::{Place, own_caller};
use crate::words::Seconds;
use serde::{Deserialize, Serialize};
use std::rc::Rc;
use std::sync::mpsc;
use tokio::sync::oneshot;
use ulpf_area::sessions::Elsewhere;
use ulpf_host::foreign::text::shown;
use ulpf_host::say::json::{self, Address};
use ulpf_symbols::{Bits, Described, Part, Program};

/// The plugin's request.
#[derive(Deserialize)]
pub struct Request {
    /// The hits, which are answered in this order.
    hits: Vec<Asked>,
    /// Each hit as a row of a table, too, below a first line with the heads of the columns.
    #[serde(default)]
    csv: bool,
}

/// A hit, as far as the plugin knows it.
#[derive(Deserialize)]
pub struct Asked {
    /// Seconds since the session began, or before now.
    time: Option<f64>,
    ago: Option<f64>,
    pid: Option<i32>,
    tid: u32,
    /// The user's number of the watch.
    watch: Option<usize>,
    spec: String,
    name: String,
    access: String,
    addr: u64,
    len: u32,
    /// Hexadecimal digits.
    old: Option<String>,
    new: Option<String>,
    silent: bool,
    unchained: bool,
    /// The system call that made the access.
    call: Option<String>,
    /// `None`: the stop keeps no record.
    pc: Option<u64>,
    /// Return addresses, the innermost first: of callers that were asked for, or of those out of a runtime library.
    callers: Vec<u64>,
    through: Vec<u64>,
    /// The accessed part, if its type is known.
    part: Option<Accessed>,
}

/// The smallest part of a watch in which an access lies.
#[derive(Deserialize)]
struct Accessed {
    #[serde(rename = "type")]
    ty: Described,
    /// Number of its bytes before the access.
    inside: u64,
    /// Of a bit-field: its bits in the accessed bytes.
    mask: Option<u64>,
}

/// The answer for one hit.
#[derive(Serialize)]
struct Completed<'a> {
    hit: &'a Fields<'a>,
    /// The writer: the instruction, or the program's own call into a runtime library.
    who: &'a str,
    /// Places of the callers that were asked for.
    callers: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    csv: Option<String>,
}

/// Heads of the columns.
#[derive(Serialize)]
struct Heads {
    csv: &'static str,
}

/// Hits, and where their answers go.
type Question = (Vec<String>, oneshot::Sender<Vec<serde_json::Value>>);

/// Completes hits of one program, on a thread of its own, which has the debug information.
pub struct Completer(mpsc::Sender<Question>);

impl Completer {
    /// For the program `pid`, which may run elsewhere.
    pub fn of(pid: i32, elsewhere: Option<Elsewhere>) -> Completer {
        let (sender, questions) = mpsc::channel();
        std::thread::spawn(move || serve(pid, elsewhere.as_ref(), &questions));
        Completer(sender)
    }

    /// The answers for hits as the plugin has written them. One that is not understood is null.
    pub async fn tell(&self, asked: Vec<String>) -> Vec<serde_json::Value> {
        let nothing = vec![serde_json::Value::Null; asked.len()];
        let (sender, answer) = oneshot::channel();
        match self.0.send((asked, sender)) {
            Ok(()) => answer.await.unwrap_or(nothing),
            Err(_) => nothing,
        }
    }
}

/// Until the [`Completer`] is gone.
fn serve(pid: i32, elsewhere: Option<&Elsewhere>, questions: &mpsc::Receiver<Question>) {
    let mut program = match elsewhere {
        None => Program::of_process(pid).unwrap_or_default(),
        Some(of) => Program::of_file(&of.file, of.bias, std::process::id() as i32),
    };
    for (hits, answer) in questions {
        if elsewhere.is_none() {
            // Libraries may have come or gone. On failure the earlier mappings are better than none.
            let _ = program.refresh_from_process(pid);
        }
        let tell = |asked: &String| {
            let asked: Asked = serde_json::from_str(asked).ok()?;
            let mut line = String::new();
            asked.tell(&program, false, &mut line);
            serde_json::from_str(&line).ok()
        };
        let answers = hits.iter().map(|hit| tell(hit).unwrap_or_default());
        // (If this fails, the receiver has gone.)
        let _ = answer.send(answers.collect());
    }
}

impl Request {
    /// A line of JSON for each hit.
    pub fn answer(&self, program: &Program) -> String {
        let mut out = String::new();
        if self.csv {
            json::append(&mut out, &Heads { csv: CSV_HEAD });
        }
        for hit in &self.hits {
            hit.tell(program, self.csv, &mut out);
        }
        out
    }
}

impl Asked {
    /// Appends a line of JSON.
    pub fn tell(&self, program: &Program, csv: bool, out: &mut String) {
        let place = self.pc.map(|pc| Rc::new(Place::at(program, pc, false)));
        let asked = !self.callers.is_empty();
        let frames = if asked { &self.callers } else { &self.through };
        let callers = frames.iter();
        let callers: Vec<_> = callers
            .map(|at| Rc::new(Place::at(program, *at, true)))
            .collect();
        let by = place.as_ref().and_then(|place| own_caller(place, &callers));
        let part = self.part.as_ref().map(|part| part.of(self.len.into()));
        let (old, new) = (bytes(self.old.as_deref()), bytes(self.new.as_deref()));
        let values = old.as_deref().zip(new.as_deref());
        let untyped = Part::untyped(0);
        let typed = part.as_ref().unwrap_or(&untyped);
        let value_type = values.and_then(|(_, new)| typed.type_name(new.len() as u64));
        let seconds = |of: Option<f64>| of.map(|s| Seconds((s * 1e6).round() as u64 * 1000));
        let fields = Fields {
            r#type: "hit",
            time: seconds(self.time),
            ago: seconds(self.ago),
            pid: self.pid,
            tid: self.tid,
            watch: self.watch,
            spec: &self.spec,
            name: &self.name,
            access: &self.access,
            addr: Address(self.addr),
            len: self.len,
            value_type: value_type.as_deref(),
            values: values.map(|values| Values::of(typed, values, self.len)),
            silent: self.silent,
            truncated: values.is_some_and(|(_, new)| new.len() < self.len as usize),
            unchained: self.unchained.then_some(true),
            call: self.call.as_deref().map(Caused::Text),
            place: place.as_deref(),
            by: by.as_ref().map(|by| &*by.place),
            callers: if asked { &callers } else { &[] },
        };
        let text = by.as_ref().map(|by| by.text.as_str());
        let place = place.as_ref().map(|place| place.text.as_str());
        let completed = Completed {
            hit: &fields,
            who: text.or(place).unwrap_or_default(),
            callers: fields.callers.iter().map(|c| c.text.as_str()).collect(),
            csv: csv.then(|| {
                let mut row = String::new();
                fields.csv(&mut row);
                row
            }),
        };
        json::append(out, &completed);
    }
}

impl Accessed {
    fn of(&self, len: u64) -> Part {
        let ty = self.ty.of_value();
        if let Some(mask) = self.mask.filter(|mask| *mask != 0) {
            let bits = Bits {
                first: mask.trailing_zeros().into(),
                len: mask.count_ones().into(),
            };
            return Part {
                ty,
                repeat: None,
                inside: 0,
                bits: Some(bits),
            };
        }
        match ty.element() {
            Some(element)
                if (self.inside, len) != (0, ty.size)
                    && self.inside.is_multiple_of(element.size)
                    && len.is_multiple_of(element.size) =>
            {
                Part {
                    repeat: Some(len / element.size),
                    ty: element,
                    inside: 0,
                    bits: None,
                }
            }
            _ => Part {
                ty,
                repeat: None,
                inside: self.inside,
                bits: None,
            },
        }
    }
}

/// Two digits for each byte; `None` for anything else.
fn bytes(digits: Option<&str>) -> Option<Vec<u8>> {
    let digits = digits?;
    let of = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    (0..digits.len()).step_by(2).map(of).collect()
}

/// The writer and the callers of a hit, as lines of text behind `before`. `completed` is a line of an answer.
pub fn lines(before: &str, completed: &serde_json::Value) -> String {
    let text = |value: &serde_json::Value| shown(value.as_str().unwrap_or_default()).into_owned();
    let mut out = before.to_string();
    let who = text(&completed["who"]);
    if !who.is_empty() {
        out += &format!("  {who}");
    }
    for caller in completed["callers"].as_array().into_iter().flatten() {
        out += &format!("\n{:14}  called from {}", "", text(caller));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(asked: &str) -> Vec<serde_json::Value> {
        let request: Request = serde_json::from_str(asked).unwrap();
        let answer = request.answer(&Program::default());
        let lines = answer.lines();
        lines.map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    const HIT: &str = r#"{"time":1.5,"pid":42,"tid":7,"watch":1,"spec":"list","name":"list","access":"write","addr":16448,"len":8,
        "old":"0100000002000000","new":"0100000003000000","silent":false,"unchained":false,"pc":4198400,"callers":[4198656],
        "through":[],"part":{"inside":4,"type":{"name":"int [4]","size":16,
        "is":{"array":{"first":0,"of":{"name":"int","size":4,"is":{"int":true}}}}}}}"#;

    #[test]
    fn a_hit_is_completed() {
        let said = answers(&format!(r#"{{"hits":[{HIT}]}}"#));
        let hit = &said[0]["hit"];
        assert_eq!(hit["new"], serde_json::json!([1, 3]));
        assert_eq!(hit["value_type"], "int [2]");
        assert_eq!(
            (&hit["time"], &hit["pc"]),
            (&1.5.into(), &"0x401000".into())
        );
        assert_eq!(said[0]["who"], "0x401000");
        assert_eq!(said[0]["callers"], serde_json::json!(["0x401100"]));
        assert!(said[0]["csv"].is_null());
        let text = lines("write", &said[0]);
        assert_eq!(text.lines().next(), Some("write  0x401000"));
        assert!(text.ends_with("called from 0x401100"), "{text}");
    }

    #[test]
    fn a_table_begins_with_its_heads() {
        let said = answers(&format!(r#"{{"csv":true,"hits":[{HIT}]}}"#));
        assert_eq!(said[0]["csv"], CSV_HEAD);
        let cells = |n: usize| said[n]["csv"].as_str().unwrap().matches(',').count();
        // (A list has commas of its own.)
        assert_eq!(cells(1), cells(0) + 2);
    }

    #[test]
    fn a_stop_without_a_record() {
        let said = answers(
            r#"{"hits":[{"tid":7,"spec":"x","name":"x","access":"access","addr":16448,"len":1,"silent":false,
               "unchained":false,"callers":[],"through":[]}]}"#,
        );
        let hit = &said[0]["hit"];
        assert!(hit["pc"].is_null() && hit["old"].is_null() && hit["value_type"].is_null());
        assert_eq!(
            (&said[0]["who"], &hit["truncated"]),
            (&"".into(), &false.into())
        );
    }
}
