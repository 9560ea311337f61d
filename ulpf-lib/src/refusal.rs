//! A request that cannot be met, said in three sentences.

use alloc::string::String;
use core::fmt;

/// What was asked for, why it cannot be, and what the user can do about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What was asked for, as the beginning of a sentence: "cannot set a write watch on 0x1000 (4 bytes)".
    pub what: String,
    /// The reason.
    pub why: String,
    /// What the user can do: an order ("raise the limit").
    pub what_to_do: String,
}

impl Refusal {
    /// The three parts, none of which ends with a full stop.
    pub fn new(
        what: impl Into<String>,
        why: impl Into<String>,
        what_to_do: impl Into<String>,
    ) -> Refusal {
        Refusal {
            what: what.into(),
            why: why.into(),
            what_to_do: what_to_do.into(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.what, self.why, self.what_to_do)
    }
}
