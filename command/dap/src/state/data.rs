//! Data breakpoints: the client's settings, and their state. No I/O.
#![forbid(unsafe_code)]

use crate::protocol::DataBreakpoint;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// Breakpoint numbers in the protocol: GDB's numbers are unchanged, and those of watches are above this.
const FIRST: i64 = 1_000_000;
/// Numbers of watches that wait for their memory are above this.
pub const WAITING: i64 = 2_000_000;

#[derive(Default)]
pub struct Data {
    pub set: BTreeMap<DataBreakpoint, Placed>,
    pub by_number: HashMap<i64, DataBreakpoint>,
    pub waited: i64,
    pub progress: u64,
    /// There may be watches that the client does not know (`ulpf watch` in the console).
    pub others: bool,
}

#[derive(Clone)]
pub struct Placed {
    pub id: i64,
    pub number: Option<i64>,
    pub message: Option<String>,
}

impl Placed {
    pub fn description(&self) -> Value {
        let mut breakpoint = json!({"id": self.id, "verified": self.message.is_none()});
        if let Some(message) = &self.message {
            breakpoint["message"] = message.clone().into();
            breakpoint["reason"] = "failed".into();
        }
        breakpoint
    }
}

impl Data {
    /// Whether a watch waits for its memory, which may come with the program's libraries.
    pub fn waits(&self) -> bool {
        self.set.values().any(|s| s.number.is_none())
    }

    pub fn any(&self) -> bool {
        self.others || !self.set.is_empty()
    }
}

/// The protocol's number of the watch `number`.
pub fn id_of(number: i64) -> i64 {
    FIRST + number
}
