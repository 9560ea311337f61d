//! Names to addresses, addresses to names, bytes to values.
//!
//! ```text
//! "tab[2].next->x:rw" ── spec ──> Spec ── resolve ──> Watched { address, length, kind, type }
//!                                            │
//!                 maps ── Program, Module ───┤ index   variables of the debug information, by name
//!                        (what is loaded)    ├ types   sizes, members, elements
//!                                            └ object  ELF file, symbol table, separate debug file
//! "if $new > 3 from f" ── filter, condition ──> words and bytecode for the stub
//! PC      ── pc ──> Location { function + offset, file:line, object }
//! bytes   ── value ──> "tab[2].x", "41"
//! ```
//!
//! Files may be hostile: image says how much of them is read, meter what that may cost, demangle how long names
//! become.
//!
//! Nothing here touches the program except through [`Memory`], and nothing here is unsafe.

mod condition;
mod demangle;
mod filter;
#[cfg(fuzzing)]
pub mod fuzzing;
mod image;
mod index;
mod maps;
mod meter;
mod object;
mod pc;
mod resolve;
mod spec;
mod types;
mod value;

pub use demangle::demangle;
pub use maps::{Module, Program};
pub use pc::Location;
pub use resolve::Watched;
pub use spec::{Scope, Spec};
pub use value::Part;

use crate::foreign::text::Text;
use std::fmt;

/// The program's memory, as far as resolving needs it.
pub trait Memory {
    /// Fills `buf` from `addr`, or returns `false`.
    fn read(&self, addr: u64, buf: &mut [u8]) -> bool;
    /// The main thread's thread pointer (fs base); `None` while it has none.
    fn thread_pointer(&self) -> Option<u64>;
}

/// Why a watch cannot be had, in three sentences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub what: String,
    pub why: String,
    pub what_to_do: String,
    /// The name may appear when the program loads further libraries.
    pub not_yet: bool,
}

impl Problem {
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

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
