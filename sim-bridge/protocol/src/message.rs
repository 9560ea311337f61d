//! The messages. Names in JSON are these, in kebab-case; an unknown field is ignored, an unknown request
//! is refused.

use crate::bytes::Bytes;
use crate::hit::Hit;
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use ulpf_lib::WatchKind;
use ulpf_lib::filter::Filter;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Write,
    Read,
    Access,
}

impl From<WatchKind> for Kind {
    fn from(kind: WatchKind) -> Kind {
        match kind {
            WatchKind::Write => Kind::Write,
            WatchKind::Read => Kind::Read,
            WatchKind::Access => Kind::Access,
        }
    }
}

impl From<Kind> for WatchKind {
    fn from(kind: Kind) -> WatchKind {
        match kind {
            Kind::Write => WatchKind::Write,
            Kind::Read => WatchKind::Read,
            Kind::Access => WatchKind::Access,
        }
    }
}

/// Optional capabilities of a back end, beyond memory, registers, resuming and stopping.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// `breakpoints`
    Breakpoints,
    /// `resume` with `how: step`
    Step,
    /// `interrupt`
    Interrupt,
    /// `set-registers`
    SetRegisters,
    /// `hits`
    Hits,
    /// `statistics`
    Statistics,
    /// `monitor`
    Monitor,
    /// `detach`: the program continues without a debugger
    Detach,
    /// `auxv`
    Auxv,
    /// `list`
    List,
    /// `hits`, `list` and `statistics` are served while the program runs, too.
    Live,
    /// Watches with `stop: false`: their hits are kept, and do not stop the program.
    Log,
    /// Watches with a `filter`, and `filter`: the back end itself sorts hits.
    Filters,
    /// A feature that this version does not have.
    #[serde(other)]
    Other,
}

#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct Capabilities {
    /// The registers' layout: see [`LAYOUTS`].
    pub registers: String,
    /// Kinds of watches, or empty if it has no watches.
    #[serde(default)]
    pub watches: Vec<Kind>,
    /// Limit of watches; if absent, memory is the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most_watches: Option<u64>,
    #[serde(default)]
    pub features: Vec<Feature>,
}

impl Capabilities {
    pub fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }
}

/// Register layouts, and the bytes of each. A layout is gdb's `g` packet for its target description
/// `i386:x86-64`: from rax to gs (core), and further st0…7, the x87's control registers, xmm0…15, mxcsr,
/// orig_rax, fs_base, gs_base (full).
pub const LAYOUTS: [(&str, usize); 2] = [("amd64-core", 164), ("amd64-linux", 560)];

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct WatchSpec {
    pub addr: u64,
    pub len: u64,
    pub kind: Kind,
    /// A hit that passes the filter stops the program.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub stop: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
}

fn yes() -> bool {
    true
}

fn is_yes(yes: &bool) -> bool {
    *yes
}

fn is_no(yes: &bool) -> bool {
    !*yes
}

impl WatchSpec {
    pub fn plain(addr: u64, len: u64, kind: Kind) -> WatchSpec {
        WatchSpec {
            addr,
            len,
            kind,
            stop: true,
            filter: None,
        }
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    Continue,
    Step,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    /// The first request: oldest and newest version that the front end supports, its name, and its former
    /// session if it reconnects.
    Hello {
        versions: [u32; 2],
        client: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<String>,
    },
    Status,
    Threads,
    Registers {
        thread: u64,
    },
    SetRegisters {
        thread: u64,
        registers: Bytes,
    },
    Read {
        addr: u64,
        len: u64,
    },
    Write {
        addr: u64,
        data: Bytes,
    },
    Breakpoints {
        #[serde(default)]
        insert: Vec<u64>,
        #[serde(default)]
        remove: Vec<u64>,
    },
    Watch {
        watches: Vec<WatchSpec>,
    },
    Unwatch {
        ids: Vec<u64>,
    },
    /// Another filter for a watch; none: every hit counts.
    Filter {
        /// (`id` is the request's own.)
        watch: u64,
        #[serde(default)]
        filter: Option<Filter>,
    },
    /// All watches, with what they have counted.
    List,
    Resume {
        how: How,
        /// The thread that makes the step; if absent, the one that stopped last.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        thread: Option<u64>,
        /// A signal for it; 0: none.
        #[serde(default)]
        signal: u8,
        /// All other threads rest meanwhile.
        #[serde(default, skip_serializing_if = "is_no")]
        alone: bool,
    },
    Interrupt,
    /// Those with a number above `since`, at most so many.
    Hits {
        since: u64,
        most: u64,
    },
    Statistics,
    Auxv,
    Monitor {
        command: String,
    },
    Detach,
    Kill,
}

impl Request {
    pub fn name(&self) -> String {
        let tag = serde_json::to_value(self).ok();
        let tag = tag.as_ref().and_then(|v| v.get("op")?.as_str());
        tag.unwrap_or("?").to_owned()
    }
}

/// A request with its number.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ask {
    pub id: u64,
    #[serde(flatten)]
    pub request: Request,
}

/// A watch, and what it has counted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Listed {
    pub id: u64,
    pub addr: u64,
    pub len: u64,
    pub kind: Kind,
    pub hits: u64,
    /// Of the hits: writes that left the value as it was; what the filter has rejected; stops.
    #[serde(default)]
    pub silent: u64,
    #[serde(default)]
    pub filtered: u64,
    #[serde(default)]
    pub stops: u64,
    /// Accesses beside it, on a page that it shares with others maybe.
    #[serde(default)]
    pub false_positives: u64,
    /// Its hits are kept for `hits`.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub log: bool,
    /// The debugger's own; else one of ulpf's commands.
    #[serde(default, skip_serializing_if = "is_no")]
    pub debuggers: bool,
    /// It lives in a debug register.
    #[serde(default, skip_serializing_if = "is_no")]
    pub register: bool,
}

/// Of all watches together.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    pub faults: u64,
    pub false_positives: u64,
    /// Accesses for which everybody had to wait.
    pub slow: u64,
    pub syscalls: u64,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
pub enum Reason {
    /// It has not run yet, or a front end has come back.
    Attached,
    Step,
    Interrupted,
    Breakpoint,
    Watch {
        kind: Kind,
        hit: Hit,
    },
    Signal {
        number: u8,
        why: String,
    },
    /// The program has ended, and the back end has no state of it any more.
    Exited {
        status: i32,
    },
    Killed {
        number: u8,
        why: String,
    },
    /// The machine cannot go on.
    Failed {
        why: String,
    },
}

impl Reason {
    pub fn is_end(&self) -> bool {
        matches!(
            self,
            Reason::Exited { .. } | Reason::Killed { .. } | Reason::Failed { .. }
        )
    }
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Stop {
    pub thread: u64,
    /// Where the thread goes on; 0 after its end.
    #[serde(default)]
    pub pc: u64,
    #[serde(flatten)]
    pub reason: Reason,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum State {
    Running,
    Stopped { stop: Stop },
}

/// A watch's number, or the refusal.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Armed {
    Id(u64),
    Refused(Refusal),
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    Hello {
        version: u32,
        /// Its kind (`unicorn`, `rsp`, `gem5`), and what it says of itself.
        backend: String,
        name: String,
        /// To come back to it.
        session: String,
        /// Its program, as a path that may mean something to the front end.
        #[serde(default)]
        program: String,
        capabilities: Capabilities,
    },
    Done,
    Status(State),
    Threads {
        threads: Vec<u64>,
    },
    /// Registers, memory, the auxiliary vector.
    Data {
        data: Bytes,
    },
    Watched {
        watches: Vec<Armed>,
    },
    Hits {
        hits: Vec<Hit>,
        /// The number of the last one that there has been, and how many of those asked for are kept no more.
        last: u64,
        lost: u64,
    },
    /// The watches that there are.
    Listed {
        watches: Vec<Listed>,
        totals: Totals,
    },
    /// Counters by name, and for people.
    Statistics {
        counters: BTreeMap<String, u64>,
        text: String,
    },
    Text {
        text: String,
    },
}

/// A message of a back end.
#[derive(Clone, PartialEq, Debug)]
pub enum Said {
    Answer {
        id: u64,
        answer: Result<Reply, Refusal>,
    },
    /// The program that was running has stopped.
    Stopped(Stop),
    /// For the user.
    Message(String),
}

#[derive(Serialize, Deserialize)]
struct Answered {
    id: u64,
    #[serde(flatten)]
    reply: Reply,
}

#[derive(Serialize, Deserialize)]
struct Refused {
    id: u64,
    error: Refusal,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
enum Event {
    Stopped { stop: Stop },
    Message { text: String },
}

impl Said {
    pub fn line(&self) -> Vec<u8> {
        use crate::line;
        match self.clone() {
            Said::Answer {
                id,
                answer: Ok(reply),
            } => line(&Answered { id, reply }),
            Said::Answer {
                id,
                answer: Err(error),
            } => line(&Refused { id, error }),
            Said::Stopped(stop) => line(&Event::Stopped { stop }),
            Said::Message(text) => line(&Event::Message { text }),
        }
    }

    /// The error says what is wrong with the line.
    pub fn parse(text: &str) -> Result<Said, String> {
        let value: Value = serde_json::from_str(text).map_err(|e| format!("no JSON: {e}"))?;
        fn of<T: serde::de::DeserializeOwned>(v: Value) -> Result<T, String> {
            serde_json::from_value(v).map_err(|e| e.to_string())
        }
        if value.get("event").is_some() {
            return Ok(match of(value)? {
                Event::Stopped { stop } => Said::Stopped(stop),
                Event::Message { text } => Said::Message(text),
            });
        }
        if value.get("error").is_some() {
            let Refused { id, error } = of(value)?;
            return Ok(Said::Answer {
                id,
                answer: Err(error),
            });
        }
        let Answered { id, reply } = of(value)?;
        Ok(Said::Answer {
            id,
            answer: Ok(reply),
        })
    }
}

impl Ask {
    /// The error has the request's number, if it can be found, so that it can be answered.
    pub fn parse(text: &str) -> Result<Ask, (Option<u64>, String)> {
        let value: Value =
            serde_json::from_str(text).map_err(|e| (None, format!("no JSON: {e}")))?;
        let id = value.get("id").and_then(Value::as_u64);
        serde_json::from_value(value).map_err(|e| (id, e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn as_the_specification_writes_them() {
        let ask = r#"{"id":3,"op":"watch","watches":[{"addr":4096,"len":4,"kind":"write"}]}"#;
        let parsed = Ask::parse(ask).unwrap();
        assert_eq!(crate::line(&parsed), [ask.as_bytes(), b"\n"].concat());
        for said in [
            r#"{"id":3,"reply":"watched","watches":[{"id":1},{"refused":{"what":"a","why":"b","todo":"c"}}]}"#,
            r#"{"id":4,"error":{"what":"a","why":"","todo":""}}"#,
            r#"{"event":"stopped","stop":{"thread":1,"pc":7,"reason":"exited","status":3}}"#,
            r#"{"event":"stopped","stop":{"thread":1,"pc":7,"reason":"watch","kind":"write","hit":{"sequence":1,"watch":1,"pc":4,"thread":1,"write":true,"addr":4096,"len":4,"old":"01000000","new":"02000000","system_call":false}}}"#,
            r#"{"id":5,"reply":"status","state":"running"}"#,
        ] {
            let parsed = Said::parse(said).unwrap_or_else(|e| panic!("{said}: {e}"));
            assert_eq!(
                String::from_utf8(parsed.line()).unwrap(),
                format!("{said}\n")
            );
        }
    }

    /// A field of a request's must not be called as one of the line's.
    #[test]
    fn another_filter_comes_back_as_it_was() {
        let ask = Ask {
            id: 7,
            request: Request::Filter {
                watch: 3,
                filter: Some(Filter::default()),
            },
        };
        let text = String::from_utf8(crate::line(&ask)).unwrap();
        assert_eq!(Ask::parse(text.trim()), Ok(ask));
    }

    #[test]
    fn what_is_new_does_not_hurt() {
        let caps: Capabilities = serde_json::from_str(
            r#"{"registers":"amd64-core","features":["step","levitation"],"more":1}"#,
        )
        .unwrap();
        assert!(caps.has(Feature::Step) && caps.has(Feature::Other) && caps.watches.is_empty());
        assert_eq!(
            Ask::parse(r#"{"id":9,"op":"levitate"}"#).unwrap_err().0,
            Some(9)
        );
        assert_eq!(Ask::parse("[").unwrap_err().0, None);
    }

    /// Text that looks like messages more often than random text does.
    fn noise() -> impl Strategy<Value = String> {
        let word = prop::sample::select(vec![
            "{",
            "}",
            "[",
            "]",
            ":",
            ",",
            "\"id\"",
            "\"op\"",
            "\"event\"",
            "\"stop\"",
            "\"error\"",
            "\"reply\"",
            "\"hello\"",
            "\"read\"",
            "\"resume\"",
            "\"stopped\"",
            "\"addr\"",
            "\"len\"",
            "1",
            "-1",
            "18446744073709551616",
            "null",
            "\"0x\"",
            "\"versions\"",
            "\"thread\"",
            "\"reason\"",
            "\"watch\"",
        ]);
        prop::collection::vec(
            prop_oneof![9 => word.prop_map(str::to_owned), 1 => any::<String>()],
            0..30,
        )
        .prop_map(|words| words.concat())
    }

    proptest! {
        #[test]
        fn anything_is_parsed_or_refused(text in noise()) {
            let _ = Ask::parse(&text);
            let _ = Said::parse(&text);
        }

        #[test]
        fn cut_and_changed_messages(at in 0usize..60, byte: u8) {
            let mut text = br#"{"id":3,"op":"write","addr":4096,"data":"00ff"}"#.to_vec();
            if let Some(b) = text.get_mut(at) { *b = byte; }
            let text = String::from_utf8_lossy(&text).into_owned();
            let _ = Ask::parse(&text);
            let _ = Ask::parse(text.get(..at).unwrap_or(""));
        }
    }
}
