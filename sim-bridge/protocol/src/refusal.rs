//! Why something is refused, as the bridge says it.

use serde::{Deserialize, Serialize};

/// A refusal as the bridge says it: sentences, of which only the first has to be there.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "Parts", into = "Parts")]
pub struct Refusal(pub ulpf_lib::Refusal);

/// Its names on the wire.
#[derive(Serialize, Deserialize)]
struct Parts {
    what: String,
    #[serde(default)]
    why: String,
    #[serde(default)]
    todo: String,
}

impl From<Parts> for Refusal {
    fn from(p: Parts) -> Refusal {
        Refusal::new(p.what, p.why, p.todo)
    }
}

impl From<Refusal> for Parts {
    fn from(Refusal(r): Refusal) -> Parts {
        Parts {
            what: r.what,
            why: r.why,
            todo: r.what_to_do,
        }
    }
}

impl Refusal {
    /// Sentences; the last two may be empty.
    pub fn new(
        what: impl Into<String>,
        why: impl Into<String>,
        what_to_do: impl Into<String>,
    ) -> Refusal {
        Refusal(ulpf_lib::Refusal::new(what, why, what_to_do))
    }
}

impl std::ops::Deref for Refusal {
    type Target = ulpf_lib::Refusal;

    fn deref(&self) -> &ulpf_lib::Refusal {
        &self.0
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(&self.what)?;
        if !self.why.is_empty() {
            write!(f, ": {}", self.why)?;
        }
        match self.what_to_do.as_str() {
            "" => f.write_str("."),
            todo => write!(f, ". {todo}"),
        }
    }
}
