//! Typed answers of GDB's plugin to its own MI commands (gdb-plugin/ulpf/ide.py).
//!
//! ```text
//!   12-ulpf-remove "{\"numbers\":[3]}"      arguments by their names, as JSON
//!   12^done,removed=["3"]                   a tuple of MI: yes is "1", no "0"; what is not known is not there
//! ```
#![forbid(unsafe_code)]

use super::mi::parse::{Fields, quote};
use serde_json::json;

/// The line of a command (without its token).
pub fn line(verb: &str, arguments: &serde_json::Value) -> String {
    format!("-ulpf-{verb} {}", quote(&arguments.to_string()))
}

fn known(fields: &Fields, name: &str) -> Option<String> {
    fields.has(name).then(|| fields.text(name).to_string())
}

fn yes(fields: &Fields, name: &str) -> bool {
    fields.text(name) == "1"
}

fn texts(fields: &Fields, name: &str) -> Vec<String> {
    let list = fields.list(name).iter();
    list.map(|v| v.text().to_string()).collect()
}

fn numbers<N: std::str::FromStr>(fields: &Fields, name: &str) -> Vec<N> {
    let list = fields.list(name).iter();
    list.filter_map(|v| v.text().parse().ok()).collect()
}

/// Unsigned, all 64 bits.
fn count(fields: &Fields, name: &str) -> u64 {
    fields.text(name).parse().unwrap_or(0)
}

/// `info`: the identifiers with which a client can watch something.
pub struct Info {
    pub id: String,
    pub name: String,
    /// The identifier is valid in another run, too.
    pub persists: bool,
}

impl Info {
    pub fn of(said: &Fields) -> Info {
        Info {
            id: said.text("id").into(),
            name: said.text("name").into(),
            persists: yes(said, "persist"),
        }
    }
}

/// `add`: for each breakpoint the watch's number, or why it was refused.
pub fn added(said: &Fields) -> Vec<Result<i64, String>> {
    let one = |b: &Fields| {
        b.number("number")
            .ok_or_else(|| b.text("error").to_string())
    };
    said.tuples("breakpoints").map(one).collect()
}

/// `remove`: the numbers of the removed watches.
pub fn removed(said: &Fields) -> Vec<i64> {
    numbers(said, "removed")
}

/// `stop`: events of watches.
pub struct Stop {
    /// Numbers of watches that have ended since, and why.
    pub ended: Vec<(i64, String)>,
    /// The hit that the program has stopped for, if it is one of ulpf.
    pub hit: Option<Hit>,
}

/// A hit, with values in GDB's format.
pub struct Hit {
    /// The watch's number, or `None` if it was not set through the plugin.
    pub watch: Option<i64>,
    pub name: String,
    /// `read`, `write`, `update`.
    pub access: String,
    pub old: String,
    pub new: String,
    pub silent: bool,
    /// The system call that caused it.
    pub call: Option<String>,
    /// The stub's numbers of the watch's places.
    pub ids: Vec<u32>,
    /// The hit, as the plugin sends it ([`ulpf_session::hit::completed`]).
    pub asked: String,
}

impl Stop {
    pub fn of(said: &Fields) -> Stop {
        let ended = |e: &Fields| Some((e.number("number")?, e.text("why").to_string()));
        let hit = |h: &Fields| Hit {
            watch: h.number("watch"),
            name: h.text("name").into(),
            access: h.text("access").into(),
            old: h.text("old").into(),
            new: h.text("new").into(),
            silent: yes(h, "silent"),
            call: known(h, "call"),
            ids: numbers(h, "ids"),
            asked: h.text("asked").into(),
        };
        Stop {
            ended: said.tuples("ended").filter_map(ended).collect(),
            hit: said.fields("hit").map(hit),
        }
    }
}

/// A logged hit: its text without the location, and the request for that location.
pub struct Line {
    pub text: String,
    pub asked: String,
}

/// One line for each requested record.
pub fn lines(said: &Fields) -> Vec<Line> {
    let one = |l: &Fields| Line {
        text: l.text("text").into(),
        asked: l.text("asked").into(),
    };
    said.tuples("lines").map(one).collect()
}

/// `logging`: the watches that log.
pub struct Logging {
    /// The stub's numbers.
    pub ids: Vec<u32>,
    pub any: bool,
    pub pid: Option<i32>,
}

fn pid(said: &Fields) -> Option<i32> {
    let pid = said.number("pid").and_then(|n| i32::try_from(n).ok());
    pid.filter(|n| *n > 0)
}

impl Logging {
    pub fn of(said: &Fields) -> Logging {
        Logging {
            ids: numbers(said, "ids"),
            any: yes(said, "any"),
            pid: pid(said),
        }
    }
}

/// `listed`: all watches.
pub struct Listed {
    pub watches: Vec<Watch>,
    pub pid: Option<i32>,
}

/// A watch, without the counters in the shared area.
pub struct Watch {
    pub number: i64,
    /// The description for the client.
    pub description: serde_json::Value,
    /// The stub's numbers of its places.
    pub ids: Vec<u32>,
    pub before: Before,
}

/// Counters of places that are no longer armed.
#[derive(Default)]
pub struct Before {
    pub hits: u64,
    pub silent: u64,
    pub filtered: u64,
    pub stops: u64,
    pub false_positives: u64,
}

impl Listed {
    pub fn of(said: &Fields) -> Listed {
        Listed {
            watches: said.tuples("watches").map(Watch::of).collect(),
            pid: pid(said),
        }
    }
}

impl Watch {
    fn of(w: &Fields) -> Watch {
        let before = |b: &Fields| Before {
            hits: count(b, "hits"),
            silent: count(b, "silent"),
            filtered: count(b, "filtered"),
            stops: count(b, "stops"),
            false_positives: count(b, "false_positives"),
        };
        let number = w.number("number").unwrap_or(0);
        let mut description = json!({
            "number": number, "text": w.text("text"), "name": w.text("name"), "kind": w.text("kind"),
            "log": yes(w, "log"), "condition": known(w, "condition"), "bytes": count(w, "bytes"),
            "places": count(w, "places"), "enabled": yes(w, "enabled"), "ended": known(w, "ended"),
        });
        if let Some(address) = known(w, "address") {
            description["address"] = address.into();
        }
        Watch {
            number,
            description,
            ids: numbers(w, "ids"),
            before: w.fields("before").map(before).unwrap_or_default(),
        }
    }
}

/// `globals`: names of the variables of a frame's file.
pub fn names(said: &Fields) -> Vec<String> {
    texts(said, "names")
}

/// `summary`: a pretty-printer's text for the whole value; `writer`: the last writer.
pub fn summary(said: &Fields) -> Option<String> {
    known(said, "text")
}

/// `lines-of`: addresses of the code of a line.
pub fn addresses(said: &Fields) -> Vec<u64> {
    numbers(said, "addresses")
}

/// `disassemble`: an instruction.
pub struct Instruction {
    pub address: u64,
    pub bytes: String,
    pub text: String,
    pub symbol: Option<String>,
    pub place: Option<(String, i64)>,
}

pub fn instructions(said: &Fields) -> Vec<Instruction> {
    let one = |i: &Fields| Instruction {
        address: count(i, "address"),
        bytes: i.text("bytes").into(),
        text: i.text("text").into(),
        symbol: known(i, "symbol"),
        place: known(i, "file").zip(i.number("line")),
    };
    said.tuples("instructions").map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mi::parse::{self, Record};

    fn fields(text: &str) -> Fields {
        match parse::line(format!("1^done,{text}").as_bytes()) {
            Record::Answer(_, _, fields) => fields,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_command_is_one_line() {
        let text = line("watch", &json!({"text": "a if $new > 3\n\"x\""}));
        assert_eq!(
            text,
            r#"-ulpf-watch "{\"text\":\"a if $new > 3\\n\\\"x\\\"\"}""#
        );
    }

    #[test]
    fn stops() {
        let said = Stop::of(&fields(
            r#"ended=[{number="3",why="free"}],hit={watch="1",name="a",access="write",old="1",new="2",silent="0",ids=["4","5"]}"#,
        ));
        assert_eq!(said.ended, [(3, "free".to_string())]);
        let hit = said.hit.unwrap();
        assert_eq!((hit.watch, hit.silent, hit.call), (Some(1), false, None));
        assert_eq!(hit.ids, [4, 5]);
        let said = Stop::of(&fields("ended=[]"));
        assert!(said.ended.is_empty() && said.hit.is_none());
    }

    #[test]
    fn what_became_of_breakpoints() {
        let said = added(&fields(
            r#"breakpoints=[{number="7",log="0"},{error="no \"x\""}]"#,
        ));
        assert_eq!(said, [Ok(7), Err("no \"x\"".to_string())]);
    }

    #[test]
    fn a_list() {
        let said = Listed::of(&fields(
            r#"watches=[{number="1",text="a",name="a",kind="w",log="1",bytes="4",places="1",ids=["0"],enabled="1",before={hits="2"},address="0x10"}],pid="42""#,
        ));
        let watch = &said.watches[0];
        assert_eq!((said.pid, watch.before.hits), (Some(42), 2));
        assert_eq!(watch.description["log"], true);
        assert!(watch.description["condition"].is_null() && watch.description["ended"].is_null());
    }

    #[test]
    fn addresses_have_all_bits() {
        let said = fields(r#"addresses=["18446744071562067968"]"#);
        assert_eq!(addresses(&said), [0xffff_ffff_8000_0000]);
    }
}
