//! Requests that another process of the same user may send to a watching ulpf:
//!
//! * List the watches, by the words that the user typed.
//! * List how sites are served, or the blocks of a checked heap.
//! * Add a watch, switch one off and on, or delete it.
//!
//! ```text
//!   ulpf top ── ask ── @ulpf/PID (abstract socket, JSON lines) ── serve ──▶ owner of the session
//! ```
//! An abstract socket leaves no file behind and has no permissions: every user can connect, and can take the name
//! first. So both sides check the other end before they send anything. The server answers only its own user and root;
//! the client accepts only the process that it means.

pub(crate) mod ask;
pub mod serve;

use serde_json::{Value, json};

/// Longer requests are refused.
const LONGEST: usize = 64 << 10;

/// The abstract name of the socket of the ulpf `by`.
fn name(by: i32) -> String {
    format!("ulpf/{by}")
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    List,
    /// Instructions that have touched guarded pages, and how they are served.
    Sites,
    /// The blocks of a checked heap, by the place that has allocated them.
    Blocks,
    Add(String),
    /// By the number of the watch.
    Off(usize),
    On(usize),
    Delete(usize),
}

impl Ask {
    /// The request as a line to send, about process `pid`.
    pub fn to_json(&self, pid: i32) -> String {
        let value = match self {
            Ask::List => json!({"do": "list", "pid": pid}),
            Ask::Sites => json!({"do": "sites", "pid": pid}),
            Ask::Blocks => json!({"do": "blocks", "pid": pid}),
            Ask::Add(spec) => json!({"do": "add", "pid": pid, "spec": spec}),
            Ask::Off(n) => json!({"do": "off", "pid": pid, "watch": n}),
            Ask::On(n) => json!({"do": "on", "pid": pid, "watch": n}),
            Ask::Delete(n) => json!({"do": "delete", "pid": pid, "watch": n}),
        };
        format!("{value}\n")
    }

    /// Reads a request and its process. The error is a text for the client.
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
            Some("blocks") => Ask::Blocks,
            Some("add") => Ask::Add(value["spec"].as_str().ok_or("`spec` is missing")?.into()),
            Some("off") => Ask::Off(watch()?),
            Some("on") => Ask::On(watch()?),
            Some("delete") => Ask::Delete(watch()?),
            _ => return Err("`do` has to be list, sites, blocks, add, off, on or delete".into()),
        };
        Ok((pid, ask))
    }
}

/// Encodes a refusal, with a reason for the user.
pub fn refusal(why: impl std::fmt::Display) -> String {
    json!({"refused": why.to_string()}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for ask in [
            Ask::List,
            Ask::Sites,
            Ask::Blocks,
            Ask::Add("tab[0..4]:rw if $new > \"3\"".into()),
            Ask::Off(3),
            Ask::On(1),
            Ask::Delete(7),
        ] {
            assert_eq!(Ask::parse(&ask.to_json(4711)), Ok((4711, ask)));
        }
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
