//! Watches that the stub has refused, for a debugger that would not show the reason: after any failed insertion GDB
//! only says that there may be too many watches. The server therefore acknowledges the insertion. When the debugger
//! resumes the program, the program stays stopped and the server prints the reasons.
//!
//! A watch from before an exec is about the former program. If the new program has code at its address, for example, it runs
//! on without that watch, as under other servers. The server prints the reason once.
#![forbid(unsafe_code)]

use super::watches::watch;
use std::collections::{BTreeMap, BTreeSet};

/// The refused watches of one program.
#[derive(Default)]
pub struct RefusedWatches {
    /// Reason by packet without its first letter (`2,ADDR,LEN`).
    reasons: BTreeMap<Box<[u8]>, String>,
    /// Watches of the program that has executed this one.
    former: BTreeSet<Box<[u8]>>,
    /// Those of them that are refused here.
    elsewhere: BTreeSet<Box<[u8]>>,
    /// Reasons that have not been printed yet.
    notes: Vec<String>,
}

impl RefusedWatches {
    /// For a program that another one has executed, which had these watches.
    pub fn after_exec(former: impl Iterator<Item = Box<[u8]>>) -> RefusedWatches {
        RefusedWatches {
            former: former.collect(),
            ..RefusedWatches::default()
        }
    }

    /// All watches of the program that are not set.
    pub fn keys(&self) -> impl Iterator<Item = &Box<[u8]>> {
        self.reasons.keys().chain(&self.elsewhere)
    }

    /// Notes the stub's reply to a packet if it is a refusal, and returns whether it is one.
    pub fn takes(&mut self, packet: &[u8], reply: &[u8]) -> bool {
        let (Some((true, key)), Some(why)) = (watch(packet), reply.strip_prefix(b"E.")) else {
            return false;
        };
        let why = String::from_utf8_lossy(why).into_owned();
        if self.former.remove(key) {
            self.notes.push(format!("ulpf: after the exec: {why}.\n"));
            self.elsewhere.insert(key.into());
        }
        if self.elsewhere.contains(key) {
            return true;
        }
        self.reasons.insert(key.into(), why);
        true
    }

    /// Returns true if the packet removes a refused watch.
    pub fn settles(&mut self, packet: &[u8]) -> bool {
        matches!(watch(packet), Some((false, key)) if self.elsewhere.contains(key) || self.reasons.remove(key).is_some())
    }

    /// Text to print once, while the program goes on.
    pub fn take_notes(&mut self) -> Option<String> {
        let notes = std::mem::take(&mut self.notes).concat();
        (!notes.is_empty()).then_some(notes)
    }

    /// The text to print instead of resuming the program.
    pub fn text(&self) -> Option<String> {
        if self.reasons.is_empty() {
            return None;
        }
        let mut text: String = self
            .reasons
            .values()
            .map(|why| format!("ulpf: {why}.\n"))
            .collect();
        text += match self.reasons.len() {
            1 => "ulpf: The program does not go on before this watch is deleted or disabled.\n",
            _ => "ulpf: The program does not go on before these watches are deleted or disabled.\n",
        };
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_from_before_an_exec_holds_nothing_up() {
        let mut refused = RefusedWatches::after_exec([b"2,10,4".to_vec().into()].into_iter());
        assert!(refused.takes(b"Z2,10,4", b"E.cannot: why; do"));
        assert_eq!(refused.text(), None);
        let said = refused.take_notes();
        assert_eq!(
            said.as_deref(),
            Some("ulpf: after the exec: cannot: why; do.\n")
        );
        // GDB removes and inserts it at each stop.
        assert!(refused.settles(b"z2,10,4"));
        assert!(refused.takes(b"Z2,10,4", b"E.cannot: why; do"));
        assert_eq!((refused.text(), refused.take_notes()), (None, None));
        assert!(refused.takes(b"Z2,20,4", b"E.cannot: why; do"));
        assert!(refused.text().is_some());
    }

    #[test]
    fn a_refusal_is_kept_until_the_watch_is_taken_away() {
        let mut refused = RefusedWatches::default();
        assert!(!refused.takes(b"Z2,10,4", b"OK"));
        assert!(!refused.takes(b"Z0,10,1", b"E.no"));
        assert_eq!(refused.text(), None);
        assert!(refused.takes(b"Z2,10,4", b"E.cannot: why; do"));
        assert!(refused.takes(b"Z2,10,4", b"E.cannot: why; do"));
        let text = refused.text().unwrap();
        assert!(text.starts_with("ulpf: cannot: why; do.\n"), "{text}");
        assert!(text.contains("this watch"), "{text}");
        assert!(!refused.settles(b"z2,20,4"));
        assert!(refused.settles(b"z2,10,4"));
        assert!(!refused.settles(b"z2,10,4"));
        assert_eq!(refused.text(), None);
    }
}
