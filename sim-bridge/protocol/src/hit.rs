//! A hit, as a back end tells of it.

use crate::bytes::Bytes;
use serde::{Deserialize, Serialize};
use ulpf_lib::AccessKind;
use ulpf_lib::filter::{Candidate, Filter};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hit {
    /// Hits are numbered from 1.
    pub sequence: u64,
    pub watch: u64,
    /// The instruction that made the access (not the one behind it).
    pub pc: u64,
    pub thread: u64,
    /// A write; else a read.
    pub write: bool,
    /// A write that has read the same bytes as well (since version 2; a back end that does not know says nothing).
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub read: bool,
    /// First accessed byte of the watch. For a long access `old` and `new` have the beginning.
    pub addr: u64,
    pub len: u64,
    pub old: Bytes,
    pub new: Bytes,
    /// By the kernel, in a system call.
    #[serde(default)]
    pub system_call: bool,
}

impl Hit {
    pub fn access(&self) -> AccessKind {
        match (self.write, self.read) {
            (true, true) => AccessKind::ReadWrite,
            (true, false) => AccessKind::Write,
            (false, _) => AccessKind::Read,
        }
    }

    /// A write that left the value as it was, as far as that is known.
    pub fn is_silent(&self) -> bool {
        self.write && !self.old.0.is_empty() && self.old == self.new
    }

    /// The `number`th hit of a watch on `len` bytes at `addr`, for its filter.
    pub fn candidate(&self, filter: &Filter, addr: u64, len: u64, number: u64) -> Candidate<'_> {
        Candidate {
            pc: self.pc,
            thread: self.thread,
            kind: self.access(),
            start: self.addr,
            len: self.len,
            watch: addr..addr.saturating_add(len),
            old: Some(&self.old.0),
            silent: self.is_silent(),
            number,
            unit: filter.unit_of(Some(len)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: &str = r#"{"sequence":1,"watch":1,"pc":16,"thread":3,"write":true,"addr":4096,"len":1,"old":"09","new":"01","system_call":false}"#;

    #[test]
    fn reads_beside_writes_are_said_only_where_they_are_known() {
        let mut hit: Hit = serde_json::from_str(WRITE).unwrap();
        assert_eq!(hit.access(), AccessKind::Write);
        assert_eq!(serde_json::to_string(&hit).unwrap(), WRITE);
        hit.read = true;
        let told = serde_json::to_string(&hit).unwrap();
        assert!(told.contains(r#""write":true,"read":true,"#), "{told}");
        let again: Hit = serde_json::from_str(&told).unwrap();
        assert_eq!(again.access(), AccessKind::ReadWrite);
        hit.write = false;
        assert_eq!(hit.access(), AccessKind::Read);
    }

    #[test]
    fn what_is_not_known_is_not_silent() {
        let mut hit: Hit = serde_json::from_str(WRITE).unwrap();
        hit.new = hit.old.clone();
        assert!(hit.is_silent());
        (hit.old, hit.new) = (Bytes::default(), Bytes::default());
        assert!(!hit.is_silent());
    }
}
