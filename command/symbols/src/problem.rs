//! Why a watch cannot be had, as the user reads it.
#![forbid(unsafe_code)]

use std::fmt;
use ulpf_host::foreign::text::Text;

/// What cannot be had, why, and what to do: three sentences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub what: String,
    pub why: String,
    pub what_to_do: String,
    /// The name may appear when the program loads further libraries.
    pub not_yet: bool,
}

impl Problem {
    /// Three parts of one sentence.
    pub fn new(
        what: impl Into<String>,
        why: impl Into<String>,
        what_to_do: impl Into<String>,
    ) -> Problem {
        Problem {
            what: what.into(),
            why: why.into(),
            what_to_do: what_to_do.into(),
            not_yet: false,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [what, why, what_to_do] = [&self.what, &self.why, &self.what_to_do].map(|t| Text(t));
        write!(f, "{what}: {why}; {what_to_do}")
    }
}

impl std::error::Error for Problem {}
