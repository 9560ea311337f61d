//! Refusals of watches, for the user.
#![forbid(unsafe_code)]

use std::fmt;
use std::ops::Deref;
use ulpf_host::foreign::text::Text;
use ulpf_lib::Refusal;

/// A refusal with names from other sources (symbols, files, a stub's messages), which are shown as plain text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub refusal: Refusal,
    /// The name may appear when the program loads further libraries.
    pub not_yet: bool,
}

impl Problem {
    /// As [`Refusal::new`].
    pub fn new(
        what: impl Into<String>,
        why: impl Into<String>,
        what_to_do: impl Into<String>,
    ) -> Problem {
        Refusal::new(what, why, what_to_do).into()
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        Problem {
            refusal,
            not_yet: false,
        }
    }
}

impl Deref for Problem {
    type Target = Refusal;

    fn deref(&self) -> &Refusal {
        &self.refusal
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.refusal.write(f, Text)
    }
}

impl std::error::Error for Problem {}
