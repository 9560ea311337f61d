//! Blocks of a heap by place of allocation, in the form that one ulpf sends another.

use super::error::Error;
use super::kind::word;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::atomic::Ordering::Relaxed;
use ulpf_lib::ring::findings::{Report, Wrong};
use ulpf_symbols::Program;

/// Blocks in use that were allocated at one place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Blocks {
    /// `reachable`, `lost`, `indirectly-lost`, `possibly-lost`
    pub how: String,
    pub count: u64,
    pub bytes: u64,
    /// Callers, innermost first.
    pub allocated_by: Vec<String>,
}

/// The answer to a request for the blocks; `reports` come from the stub.
pub fn answer(reports: &[Report], program: &Program) -> String {
    let all: Vec<Blocks> = reports.iter().filter_map(|r| of(r, program)).collect();
    serde_json::json!({ "blocks": all }).to_string()
}

fn of(report: &Report, program: &Program) -> Option<Blocks> {
    // (The program may have written anything there.)
    let wrong = Wrong::of(report.wrong.load(Relaxed)).filter(|w| w.is_leak())?;
    let error = Error::of(wrong, report, program);
    Some(Blocks {
        how: word(wrong).into(),
        count: error.count,
        bytes: error.len,
        allocated_by: error
            .allocated_by
            .iter()
            .map(|p| p.caller.clone())
            .collect(),
    })
}

/// Reads the answer of [`answer`] and skips entries that do not parse.
pub fn heard(value: &Value) -> Vec<Blocks> {
    let all = value["blocks"].as_array().into_iter().flatten();
    all.filter_map(|one| Blocks::deserialize(one).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_answer() {
        let one = Blocks {
            how: "lost".into(),
            count: 3,
            bytes: 72,
            allocated_by: vec!["main at a.c:3".into()],
        };
        let value = serde_json::json!({ "blocks": [one, 7, {"how": 3}, {}] });
        assert_eq!(heard(&value), [one, Blocks::default()]);
        assert_eq!(heard(&serde_json::json!({"blocks": 1})), []);
    }
}
