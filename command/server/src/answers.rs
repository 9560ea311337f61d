//! Requests of GDB's plugin that need the program's names and types, or the grammar of watches. The stub has none of
//! them.
//!
//! ```text
//!     monitor ulpf parse TEXT     a watch as its user has typed it ─▶ its parts (ulpf_symbols::ParsedWatch)
//!     monitor ulpf places JSON    where GDB has found its beginning ─▶ its places, or a refusal (ulpf_symbols::Head)
//!     monitor ulpf tell JSON      hits as the plugin knows them ─▶ the same with the places of their code (hit::completed)
//! ```
//! Each answer is a line of JSON, or a line for each hit.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};
use ulpf_host::say::json;
use ulpf_lib::command::Reply;
use ulpf_session::hit::completed;
use ulpf_symbols::{Head, Memory, ParsedWatch, Problem, Program, Spec};

/// A request.
pub enum Request {
    Parse(String),
    Places(Places),
    Tell(completed::Request),
    /// Text that the plugin would not send.
    Malformed(String),
}

/// A watch, without its filter.
#[derive(Deserialize)]
pub struct Places {
    /// In the grammar of `ulpf run`, with [`ulpf_symbols::HEAD`] in place of the head.
    watch: String,
    head: Option<Head>,
    /// It follows its pointers.
    follow: bool,
    /// Limit of its places.
    most: Option<u64>,
}

#[derive(Serialize)]
struct Answer<T> {
    places: T,
    decided: bool,
}

impl Request {
    /// The request in a monitor command; `None` for any other command.
    pub fn of(command: &[u8]) -> Option<Request> {
        let text = std::str::from_utf8(command).ok()?.trim();
        let (word, rest) = text
            .strip_prefix("ulpf ")?
            .split_once(' ')
            .unwrap_or_default();
        let malformed = |e: serde_json::Error| Request::Malformed(e.to_string());
        Some(match word {
            _ if text == "ulpf parse" => Request::Parse(String::new()),
            "parse" => Request::Parse(rest.into()),
            "places" => serde_json::from_str(rest).map_or_else(malformed, Request::Places),
            "tell" => serde_json::from_str(rest).map_or_else(malformed, Request::Tell),
            _ => return None,
        })
    }

    /// The answer about this program. `memory`: `None` if it cannot be read.
    pub fn answer(&self, program: &Program, memory: Option<&dyn Memory>) -> String {
        match self {
            Request::Parse(text) => match ParsedWatch::parse(text) {
                Ok(parts) => json::line(&parts),
                Err(problem) => refused(problem),
            },
            Request::Places(asked) => asked.answer(program, memory),
            Request::Tell(hits) => hits.answer(program),
            Request::Malformed(why) => refused(Problem::new(
                "monitor ulpf",
                format!("the request is not understood: {why}"),
                "use the plugin of the same ulpf",
            )),
        }
    }

    /// Whether the program's memory is read for it.
    pub fn reads(&self) -> bool {
        matches!(self, Request::Places(_))
    }
}

fn refused(problem: Problem) -> String {
    format!("{}\n", Reply::Refused(problem.refusal))
}

impl Places {
    fn answer(&self, program: &Program, memory: Option<&dyn Memory>) -> String {
        let spec = Spec::parse(&self.watch).map(|mut spec| {
            spec.filter.most = self.most;
            spec.filter.snapshot = !self.follow;
            spec
        });
        let Some(memory) = memory else {
            return refused(Problem::new(
                "the places are not found",
                "the program's memory cannot be read from here",
                "name one place by its address",
            ));
        };
        let found = spec.map(|spec| program.locate_watch(&spec, self.head.as_ref(), memory));
        let (places, decided) = match found {
            Ok(found) => (found.places, found.decided),
            Err(problem) => (Err(problem), false),
        };
        match places {
            Ok(places) => json::line(&Answer { places, decided }),
            Err(problem) => format!(
                "{{\"problem\":{},\"decided\":{decided}}}\n",
                Reply::Refused(problem.refusal)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(command: &str) -> serde_json::Value {
        let request = Request::of(command.as_bytes()).unwrap();
        serde_json::from_str(&request.answer(&Program::default(), None)).unwrap()
    }

    #[test]
    fn which_are_the_plugins() {
        for other in ["ulpf stats", "ulpf", "parse x", "ulpf tellers x", "help"] {
            assert!(Request::of(other.as_bytes()).is_none(), "{other}");
        }
        assert_eq!(answer("ulpf parse total :rw log")["kind"], "rw");
        assert_eq!(answer("ulpf parse")["refused"]["what"], "ulpf watch");
        assert_eq!(answer("ulpf tell {")["refused"]["what"], "monitor ulpf");
        let places = answer(r#"ulpf places {"watch":"it","follow":true}"#);
        assert!(
            places["refused"]["why"]
                .as_str()
                .unwrap()
                .contains("memory")
        );
    }
}
