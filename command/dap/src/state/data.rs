//! Data breakpoints: what the client wants watched, and what has become of it. No I/O.
#![forbid(unsafe_code)]

use crate::protocol::DataBreakpoint;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// Breakpoints' numbers in the protocol: GDB's own as they are, those of watches above this.
const FIRST: i64 = 1_000_000;
/// Those that wait for their memory.
pub const WAITING: i64 = 2_000_000;

#[derive(Default)]
pub struct Data {
    pub set: BTreeMap<DataBreakpoint, Placed>,
    pub by_number: HashMap<i64, DataBreakpoint>,
    pub waited: i64,
    pub progress: u64,
    /// There may be watches that the client does not know of (`ulpf watch` in the console).
    pub others: bool,
}

#[derive(Clone)]
pub struct Placed {
    pub id: i64,
    pub number: Option<i64>,
    pub message: Option<String>,
}

impl Placed {
    pub fn told(&self) -> Value {
        let mut told = json!({"id": self.id, "verified": self.message.is_none()});
        if let Some(message) = &self.message {
            told["message"] = message.clone().into();
            told["reason"] = "failed".into();
        }
        told
    }
}

impl Data {
    /// Is there one whose memory may come with the program's libraries?
    pub fn waits(&self) -> bool {
        self.set.values().any(|s| s.number.is_none())
    }

    pub fn any(&self) -> bool {
        self.others || !self.set.is_empty()
    }
}

/// The breakpoint's number in the protocol of a watch that ulpf knows by `number`.
pub fn id_of(number: i64) -> i64 {
    FIRST + number
}
