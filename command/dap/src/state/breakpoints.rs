//! Breakpoints in code as sent to GDB, and the client's settings of each. No I/O.
#![forbid(unsafe_code)]

use serde_json::Value;
use std::collections::BTreeMap;

/// An ignore count that is never reached.
pub const NEVER: i64 = i32::MAX as i64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Source,
    Function,
    Instruction,
    Exception(&'static str),
}

#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Stop,
    GoOn,
}

#[derive(Default)]
pub struct Breakpoints {
    /// Keyed by GDB's numbers.
    pub set: BTreeMap<i64, Breakpoint>,
    /// The temporary breakpoint at main.
    pub entry: Option<i64>,
    pub signals: Option<bool>,
}

pub struct Breakpoint {
    pub kind: Kind,
    pub wanted: Wanted,
    pub stops: i64,
    /// The description sent to the client.
    pub reported: Value,
}

/// The client's settings of a breakpoint. Equal settings mean the same breakpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    /// The file, for breakpoints at lines.
    pub group: String,
    pub place: String,
    pub condition: Option<String>,
    pub hit: Option<(&'static str, i64)>,
    pub log: Option<String>,
}

impl Breakpoints {
    pub fn kind(&self, number: i64) -> Option<Kind> {
        self.set.get(&number).map(|b| b.kind)
    }
}

/// Parses a hit condition: `5` (the fifth hit), `>= 5`, `> 5`, `< 5`, `<= 5`, `% 5` (every fifth).
pub fn hit_condition(text: Option<&str>) -> Result<Option<(&'static str, i64)>, String> {
    let Some(text) = text.map(str::trim).filter(|t| !t.is_empty()) else {
        return Ok(None);
    };
    let digits = text.trim_start_matches(['=', '<', '>', '%']);
    let operator = &text[..text.len() - digits.len()];
    let wrong = || {
        format!(
            "The hit condition \"{text}\" is not understood: write 5, >= 5, > 5, < 5, <= 5, or % 5."
        )
    };
    let number: i64 = digits.trim().parse().map_err(|_| wrong())?;
    let (operator, number) = match operator {
        "" | "=" | "==" | "===" => ("==", number),
        ">=" => (">=", number),
        ">" => (">=", number.saturating_add(1)),
        "<=" => ("<=", number),
        "<" => ("<=", number.saturating_sub(1)),
        "%" => ("%", number),
        _ => return Err(wrong()),
    };
    if !(1..=NEVER / 2).contains(&number) {
        return Err(wrong());
    }
    Ok(Some((operator, number)))
}

/// Number of hits that GDB ignores before the first stop.
pub fn ignored(hit: Option<(&'static str, i64)>) -> i64 {
    match hit {
        Some(("==" | ">=" | "%", n)) => n - 1,
        _ => 0,
    }
}

/// Trims a text; an empty one becomes `None`.
pub fn some(text: &Option<String>) -> Option<String> {
    text.as_ref()
        .filter(|t| !t.trim().is_empty())
        .map(|t| t.trim().to_string())
}

pub fn wanted(
    group: &str,
    place: String,
    condition: &Option<String>,
    hit: &Option<String>,
    log: &Option<String>,
) -> Result<Wanted, String> {
    Ok(Wanted {
        group: group.into(),
        place,
        condition: some(condition),
        hit: hit_condition(hit.as_deref())?,
        log: some(log),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hit_conditions() {
        for (text, wanted) in [
            ("5", ("==", 5)),
            ("== 5", ("==", 5)),
            (">5", (">=", 6)),
            (">= 5 ", (">=", 5)),
            ("<5", ("<=", 4)),
            ("% 5", ("%", 5)),
        ] {
            assert_eq!(hit_condition(Some(text)), Ok(Some(wanted)), "{text}");
        }
        assert_eq!(hit_condition(Some(" ")), Ok(None));
        for bad in ["x", "-1", "0", "< 1", "5 5", "!= 5", "99999999999999999999"] {
            assert!(hit_condition(Some(bad)).is_err(), "{bad}");
        }
    }
}
