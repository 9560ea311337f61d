//! Findings in SARIF 2.1.0 (Static Analysis Results Interchange Format, OASIS): code hosts show them beside the source
//! lines. One document, written at the end.

use super::sink::Sink;
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use ulpf_heap::error::Error;
use ulpf_heap::kind::{kind, word};
use ulpf_host::foreign::text::shown;
use ulpf_lib::ring::findings::Wrong;
use ulpf_session::hit::place::Place;

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";
/// Name of the base of relative paths.
const ROOT: &str = "SRCROOT";

pub struct Sarif {
    file: Sink,
    command: Vec<String>,
    /// The folder where the command was started.
    root: PathBuf,
    /// Each with the number of its report.
    results: Vec<(usize, Value)>,
}

/// A path as a part of a URI.
fn quoted(path: &str) -> String {
    let mut out = String::new();
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' | b'+' => {
                out.push(byte.into());
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

impl Sarif {
    pub fn new(file: Arc<File>, command: &[String]) -> Sarif {
        Sarif {
            file: Sink(Some(file)),
            command: command.to_vec(),
            root: std::env::current_dir().unwrap_or_default(),
            results: Vec::new(),
        }
    }

    /// Below the folder where the command was started, a name is relative to it, so that it fits a checkout elsewhere.
    fn artifact(&self, file: &str) -> Value {
        match Path::new(file).strip_prefix(&self.root) {
            Ok(inside) => json!({ "uri": quoted(&inside.to_string_lossy()), "uriBaseId": ROOT }),
            Err(_) if file.starts_with('/') => json!({ "uri": format!("file://{}", quoted(file)) }),
            Err(_) => json!({ "uri": quoted(file) }),
        }
    }

    fn location(&self, place: &Place) -> Value {
        let mut location = json!({});
        if let Some(file) = &place.file {
            let mut physical = json!({ "artifactLocation": self.artifact(file) });
            if let Some(line) = place.line {
                physical["region"] = json!({ "startLine": line });
            }
            location["physicalLocation"] = physical;
        }
        if let Some(function) = place.inlined.as_ref().or(place.function.as_ref()) {
            location["logicalLocations"] =
                json!([{ "fullyQualifiedName": shown(function), "kind": "function" }]);
        }
        location
    }

    fn stack<'a>(&self, what: &str, places: impl Iterator<Item = &'a Rc<Place>>) -> Option<Value> {
        let frame = |place: &Rc<Place>| {
            let mut location = self.location(place);
            location["message"] = json!({ "text": shown(&place.caller) });
            let mut frame = json!({ "location": location });
            if let Some(module) = &place.object {
                frame["module"] = json!(shown(module));
            }
            frame
        };
        let frames: Vec<Value> = places.map(frame).collect();
        (!frames.is_empty()).then(|| json!({ "message": { "text": what }, "frames": frames }))
    }

    /// Adds an error; `suppressed`: the name of the suppression that hides it.
    pub fn add(&mut self, error: &Error, number: usize, suppressed: Option<&str>) {
        let leak = error.wrong.is_leak();
        let own = [&error.place].into_iter().filter(|_| error.is_at_place());
        let here: Vec<&Rc<Place>> = match leak {
            true => error.allocated_by.iter().collect(),
            false => own.chain(&error.callers).collect(),
        };
        // A line that the user can change.
        let meant = here.iter().find(|p| p.file.is_some() && !p.is_runtime());
        let meant = meant.or(here.first());
        let id = word(error.wrong);
        let mut result = json!({
            "ruleId": id,
            "ruleIndex": Wrong::ALL.iter().position(|w| *w == error.wrong),
            "level": kind(error.wrong).level,
            "message": { "text": shown(&error.what()) },
            "locations": meant.map(|p| vec![self.location(p)]).unwrap_or_default(),
        });
        let first = match leak {
            true => "allocated by",
            false => "the error",
        };
        let freed = self.stack("freed by", error.freed_by.iter());
        let allocated = match leak {
            true => None,
            false => self.stack("allocated by", error.allocated_by.iter()),
        };
        let other = self.stack(
            "the other one allocated by",
            error.other_allocated_by.iter(),
        );
        let first = self.stack(first, here.into_iter());
        let stacks = [first, freed, allocated, other];
        result["stacks"] = stacks.into_iter().flatten().collect();
        if let Some(name) = suppressed {
            result["suppressions"] = json!([{ "kind": "external", "justification": shown(name) }]);
        }
        self.results.push((number, result));
    }

    /// Writes the document. `counts`: the number of errors of each report.
    pub fn end(mut self, counts: &[u64]) {
        let results = std::mem::take(&mut self.results)
            .into_iter()
            .map(|(number, mut result)| {
                // (The count of a leak is a number of blocks.)
                let count = counts.get(number).copied().unwrap_or(1);
                result["occurrenceCount"] = json!(count.clamp(1, i64::MAX as u64));
                result
            });
        let rule = |wrong: &Wrong| {
            json!({
                "id": word(*wrong),
                "shortDescription": { "text": kind(*wrong).rule },
                "defaultConfiguration": { "level": kind(*wrong).level },
            })
        };
        let arguments: Vec<_> = self.command.iter().skip(1).map(|a| shown(a)).collect();
        let root = format!("file://{}/", quoted(&self.root.to_string_lossy()));
        let document = json!({
            "$schema": SCHEMA,
            "version": "2.1.0",
            "runs": [{
                "tool": { "driver": {
                    "name": "ulpf check",
                    "version": env!("CARGO_PKG_VERSION"),
                    "rules": Wrong::ALL.iter().map(rule).collect::<Vec<_>>(),
                } },
                "invocations": [{
                    "executableLocation": { "uri": quoted(self.command.first().map_or("", String::as_str)) },
                    "arguments": arguments,
                    "executionSuccessful": true,
                }],
                "originalUriBaseIds": { ROOT: { "uri": root } },
                "columnKind": "utf16CodeUnits",
                "results": results.collect::<Vec<_>>(),
            }],
        });
        self.file.write(&ulpf_host::say::json::line(&document));
    }
}
