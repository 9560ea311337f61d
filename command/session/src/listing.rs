//! The watches of a session as its owner lists them, by the words that the user typed. The list includes watches that
//! the stub does not know (switched off, refused, waiting for a library).

use super::snapshot::{State, Watch};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use ulpf_host::foreign::text::cut;
use ulpf_lib::command::reply::PatchSite;

/// Limits of an answer: bytes of a text, and entries of a list.
const LONGEST_TEXT: usize = 4096;
const MOST_ENTRIES: usize = 1 << 17;
/// Number of sites that are listed, busiest first.
pub const MOST_SITES: u64 = 512;

/// One watch, as its owner knows it.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// The owner's number.
    pub number: usize,
    /// The text that the user typed.
    pub spec: String,
    /// `w`, `r`, `rw`.
    pub kind: String,
    pub addr: u64,
    pub len: u64,
    /// Whether it is armed.
    pub state: State,
    /// Reason, if it is not.
    pub why: String,
    /// The stub's present numbers of its places, and the previous ones.
    pub ids: Vec<u32>,
    pub past: Vec<u32>,
}

/// All watches of a session, as its owner knows them.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// In the order given.
    pub entries: Vec<Entry>,
    /// Index in `entries` by the stub's present number, and by previous numbers.
    by_id: HashMap<u32, usize>,
    by_past: HashMap<u32, usize>,
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
    /// The answer to `Ask::List`.
    pub fn to_json(&self) -> String {
        let entry = |e: &Entry| {
            json!({
                "watch": e.number, "spec": e.spec, "kind": e.kind, "addr": e.addr, "len": e.len,
                "state": word(e.state), "why": e.why, "ids": e.ids, "past": e.past,
            })
        };
        let entries: Vec<Value> = self.entries.iter().map(entry).collect();
        json!({"watches": entries}).to_string()
    }

    /// Reads such an answer; `None` if it is malformed.
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
            let numbers = |key: &str| {
                let numbers = v[key].as_array().into_iter().flatten();
                let numbers = numbers.filter_map(Value::as_u64).map(|n| n as u32);
                numbers.take(MOST_ENTRIES).collect()
            };
            Entry {
                number: v["watch"].as_u64().unwrap_or_default() as usize,
                spec: text("spec"),
                kind: text("kind"),
                addr: v["addr"].as_u64().unwrap_or_default(),
                len: v["len"].as_u64().unwrap_or_default(),
                state,
                why: text("why"),
                ids: numbers("ids"),
                past: numbers("past"),
            }
        };
        let entries = value["watches"].as_array()?.iter().take(MOST_ENTRIES);
        Some(Listing::of(entries.map(entry).collect()))
    }

    /// Makes a list of these watches.
    pub fn of(entries: Vec<Entry>) -> Listing {
        let all = || entries.iter().enumerate();
        let ids = all().flat_map(|(at, e)| e.ids.iter().map(move |id| (*id, at)));
        let by_id = ids.collect();
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

    /// The watch that had this number before.
    pub fn past(&self, id: u32) -> Option<&Entry> {
        self.entries.get(*self.by_past.get(&id)?)
    }
}

impl Entry {
    /// A row for a watch that is not armed, with its counters.
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

/// The answer to `Ask::Sites`, the instructions that have touched guarded pages; `lines` is the stub's output.
pub fn sites(lines: &str) -> String {
    let sites = lines.lines().filter_map(|l| serde_json::from_str(l).ok());
    let sites: Vec<String> = sites.map(|site: PatchSite| site.to_string()).collect();
    format!("{{\"sites\":[{}]}}", sites.join(","))
}

/// Reads the output of [`sites`] and skips entries that do not parse.
pub fn sites_of(value: &Value) -> impl Iterator<Item = PatchSite> + '_ {
    let sites = value["sites"].as_array().into_iter().flatten();
    sites.filter_map(|site| PatchSite::deserialize(site).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_stub_says_of_sites() {
        let line = r#"{"pc":"0x401000","faults":7,"beside":5,"why":"a \"b\"","bytes":"8807"}"#;
        let listed = sites(&format!("ulpf: no JSON\n{line}\n{{}}\n{line}\n"));
        assert_eq!(listed, format!("{{\"sites\":[{line},{line}]}}"));
        let value = serde_json::from_str(&listed).unwrap();
        let read: Vec<PatchSite> = sites_of(&value).collect();
        assert_eq!((read.len(), read[1].pc, read[1].faults), (2, 0x401000, 7));
        assert_eq!(sites_of(&json!({"sites": 3})).count(), 0);
    }

    #[test]
    fn there_and_back() {
        let listing = Listing::of(vec![Entry {
            number: 2,
            spec: "x:rw".into(),
            kind: "rw".into(),
            addr: 0x4040,
            len: 4,
            state: State::Off,
            why: "switched off".into(),
            ids: vec![11, 12],
            past: vec![3, 9],
        }]);
        let back = serde_json::from_str(&listing.to_json()).unwrap();
        let back = Listing::parse(&back).unwrap();
        assert_eq!(
            format!("{:?}", back.entries),
            format!("{:?}", listing.entries)
        );
        assert_eq!(back.armed(12).unwrap().number, 2);
        assert_eq!(back.past(9).unwrap().number, 2);
    }
}
