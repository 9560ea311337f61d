//! Words and figures for watches and hits, common to all parts of the command.

use serde::{Serialize, Serializer};
use std::fmt;
use ulpf_host::say::json;
use ulpf_lib::WatchKind;
use ulpf_lib::ring::listed;

/// The kind of a watch, from the `what` of its line in the shared table.
pub fn kind_of(what: u32) -> WatchKind {
    let is = |kind: WatchKind| what & listed::KIND == kind as u32;
    match () {
        _ if is(WatchKind::Read) => WatchKind::Read,
        _ if is(WatchKind::Write) => WatchKind::Write,
        _ => WatchKind::Access,
    }
}

/// Verb for the kind of a hit (`Hit::kind`).
pub(crate) fn verb(kind: u8) -> &'static str {
    match kind {
        1 => "read",
        2 => "write",
        _ => "update",
    }
}

/// `1 hit`, `2 hits`, `3 watches`.
pub fn count(n: u64, what: &str) -> String {
    match (n, what.ends_with("ch")) {
        (1, _) => format!("1 {what}"),
        (_, true) => format!("{n} {what}es"),
        _ => format!("{n} {what}s"),
    }
}

/// Nanoseconds, shown as seconds with six places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seconds(pub u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000 / 1000);
        f.pad(&format!("{seconds}.{micros:06}"))
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        json::number(self).serialize(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_numbers_of_json() {
        assert_eq!(json::line(&Seconds(1_000_002_999)), "1.000002\n");
    }
}
