//! A request that cannot be met, in three sentences. `symbols::Problem` wraps it: names from other sources,
//! which may appear later.

use alloc::string::String;
use core::fmt;

/// The request, the reason of its failure, and a remedy.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
pub struct Refusal {
    /// The request, as the beginning of a sentence: "cannot set a write watch on 0x1000 (4 bytes)".
    pub what: String,
    /// The reason.
    pub why: String,
    /// The remedy for the user: an order ("raise the limit").
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

impl Refusal {
    /// As `Display` writes it, each part shown in some way.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn write<'a, S: fmt::Display>(
        &'a self,
        f: &mut fmt::Formatter<'_>,
        shown: impl Fn(&'a str) -> S,
    ) -> fmt::Result {
        let (what, why) = (shown(&self.what), shown(&self.why));
        write!(f, "{what}: {why}; {}", shown(&self.what_to_do))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, |part| part)
    }
}
