//! What another process of the same user may ask of a ulpf that watches: which watches there are, by the
//! words that the user typed, and to add one, switch one off and on, or take it away.
//!
//! ```text
//!   ulpf top ── ask ── @ulpf/PID (abstract socket, JSON lines) ── serve ──▶ who owns the session
//! ```
//! An abstract socket leaves nothing behind, and has no rights: every user can connect, and take the name
//! before us. So both sides look at who is at the other end before anything is said: the one that serves
//! hears its own user and root only, the one that asks believes only the process that it means.

pub mod ask;
pub mod serve;

use crate::foreign::text::cut;
use crate::top::model::{State, Watch};
use serde_json::{Value, json};
use std::collections::HashMap;

/// Longer requests are refused.
pub const LONGEST: usize = 64 << 10;
/// Of a text in an answer so many bytes are taken, of a list so many entries.
const LONGEST_TEXT: usize = 4096;
const MOST_ENTRIES: usize = 1 << 17;
/// The busiest sites that are told of.
pub const MOST_SITES: u64 = 512;

/// The abstract name of the socket of the ulpf `by`.
pub fn name(by: i32) -> String {
    format!("ulpf/{by}")
}

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    List,
    /// Instructions that have touched guarded pages, and how they are served.
    Sites,
    Add(String),
    /// By the number of the watch.
    Off(usize),
    On(usize),
    Delete(usize),
}

/// One watch, as its owner knows it.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    pub number: usize,
    pub spec: String,
    pub kind: String,
    pub addr: u64,
    pub len: u64,
    pub state: State,
    pub why: String,
    /// The stub's number, and those that it had before.
    pub id: Option<u32>,
    pub past: Vec<u32>,
}

#[derive(Clone, Debug, Default)]
pub struct Listing {
    pub entries: Vec<Entry>,
    /// Places in `entries`, by the stub's present numbers and by all those of before.
    by_id: HashMap<u32, usize>,
    by_past: HashMap<u32, usize>,
}

impl Ask {
    pub fn to_json(&self, pid: i32) -> String {
        let value = match self {
            Ask::List => json!({"do": "list", "pid": pid}),
            Ask::Sites => json!({"do": "sites", "pid": pid}),
            Ask::Add(spec) => json!({"do": "add", "pid": pid, "spec": spec}),
            Ask::Off(n) => json!({"do": "off", "pid": pid, "watch": n}),
            Ask::On(n) => json!({"do": "on", "pid": pid, "watch": n}),
            Ask::Delete(n) => json!({"do": "delete", "pid": pid, "watch": n}),
        };
        format!("{value}\n")
    }

    /// The process that it concerns, and what is asked. The error is for whoever asked.
    pub fn parse(line: &str) -> Result<(i32, Ask), String> {
        let value: Value = serde_json::from_str(line).map_err(|e| format!("not JSON: {e}"))?;
        let pid = value["pid"].as_i64().and_then(|n| i32::try_from(n).ok());
        let pid = pid.ok_or("`pid` is missing")?;
        let watch = || {
            let n = value["watch"]
                .as_u64()
                .and_then(|n| usize::try_from(n).ok());
            n.ok_or("`watch` has to be the number of a watch")
        };
        let ask = match value["do"].as_str() {
            Some("list") => Ask::List,
            Some("sites") => Ask::Sites,
            Some("add") => Ask::Add(value["spec"].as_str().ok_or("`spec` is missing")?.into()),
            Some("off") => Ask::Off(watch()?),
            Some("on") => Ask::On(watch()?),
            Some("delete") => Ask::Delete(watch()?),
            _ => return Err("`do` has to be list, sites, add, off, on or delete".into()),
        };
        Ok((pid, ask))
    }
}

/// What was asked cannot be had; for the user.
pub fn refusal(why: impl std::fmt::Display) -> String {
    json!({"refused": why.to_string()}).to_string()
}

fn word(state: State) -> &'static str {
    match state {
        State::Armed => "armed",
        State::Off => "off",
        State::Gone => "gone",
        State::Waiting => "waiting",
        State::Refused => "refused",
    }
}

impl Listing {
    pub fn to_json(&self) -> String {
        let entry = |e: &Entry| {
            json!({
                "watch": e.number, "spec": e.spec, "kind": e.kind, "addr": e.addr, "len": e.len,
                "state": word(e.state), "why": e.why, "id": e.id, "past": e.past,
            })
        };
        let entries: Vec<Value> = self.entries.iter().map(entry).collect();
        json!({"watches": entries}).to_string()
    }

    pub fn parse(value: &Value) -> Option<Listing> {
        let entry = |v: &Value| {
            let text = |key: &str| {
                let text = v[key].as_str().unwrap_or_default();
                cut(text, LONGEST_TEXT).to_string()
            };
            let state = match v["state"].as_str() {
                Some("off") => State::Off,
                Some("waiting") => State::Waiting,
                Some("refused") => State::Refused,
                _ => State::Armed,
            };
            let past = v["past"].as_array().into_iter().flatten();
            Entry {
                number: v["watch"].as_u64().unwrap_or_default() as usize,
                spec: text("spec"),
                kind: text("kind"),
                addr: v["addr"].as_u64().unwrap_or_default(),
                len: v["len"].as_u64().unwrap_or_default(),
                state,
                why: text("why"),
                id: v["id"].as_u64().map(|n| n as u32),
                past: past
                    .filter_map(Value::as_u64)
                    .map(|n| n as u32)
                    .take(MOST_ENTRIES)
                    .collect(),
            }
        };
        let entries = value["watches"].as_array()?.iter().take(MOST_ENTRIES);
        Some(Listing::of(entries.map(entry).collect()))
    }

    pub fn of(entries: Vec<Entry>) -> Listing {
        let all = || entries.iter().enumerate();
        let by_id = all().filter_map(|(at, e)| Some((e.id?, at))).collect();
        let past = all().flat_map(|(at, e)| e.past.iter().map(move |id| (*id, at)));
        let by_past = past.collect();
        Listing {
            entries,
            by_id,
            by_past,
        }
    }

    /// The watch that has this number.
    pub fn armed(&self, id: u32) -> Option<&Entry> {
        self.entries.get(*self.by_id.get(&id)?)
    }

    /// The watch that has had this number before.
    pub fn past(&self, id: u32) -> Option<&Entry> {
        self.entries.get(*self.by_past.get(&id)?)
    }
}

impl Entry {
    /// One that is not armed, with what it has counted.
    pub fn row(&self, [hits, silent, filtered, false_positives]: [u64; 4]) -> Watch {
        Watch {
            number: Some(self.number),
            name: self.spec.as_str().into(),
            addr: self.addr,
            len: self.len,
            kind: match self.kind.as_str() {
                "r" => "r",
                "rw" => "rw",
                _ => "w",
            },
            state: self.state,
            hits,
            silent,
            filtered,
            false_positives,
            note: self.why.clone(),
            ..Watch::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for ask in [
            Ask::List,
            Ask::Sites,
            Ask::Add("tab[0..4]:rw if $new > \"3\"".into()),
            Ask::Off(3),
            Ask::On(1),
            Ask::Delete(7),
        ] {
            assert_eq!(Ask::parse(&ask.to_json(4711)), Ok((4711, ask)));
        }
        let listing = Listing::of(vec![Entry {
            number: 2,
            spec: "x:rw".into(),
            kind: "rw".into(),
            addr: 0x4040,
            len: 4,
            state: State::Off,
            why: "switched off".into(),
            id: None,
            past: vec![3, 9],
        }]);
        let back = serde_json::from_str(&listing.to_json()).unwrap();
        let back = Listing::parse(&back).unwrap();
        assert_eq!(
            format!("{:?}", back.entries),
            format!("{:?}", listing.entries)
        );
        assert_eq!(back.past(9).unwrap().number, 2);
    }

    #[test]
    fn garbage_is_answered() {
        for bad in [
            "",
            "{",
            "[]",
            "{\"do\":\"list\"}",
            "{\"do\":\"off\",\"pid\":1}",
            "{\"do\":1,\"pid\":2}",
        ] {
            assert!(Ask::parse(bad).is_err(), "{bad}");
        }
    }
}
