//! Watches that the stub has refused, for a debugger that would not show the reason: after any failed insertion GDB
//! only says that there may be too many watches. The server therefore acknowledges the insertion. When the debugger
//! resumes the program, the program stays stopped and the server prints the reasons.
#![forbid(unsafe_code)]

use super::watches::watch;
use std::collections::BTreeMap;

/// The refused watches of one program.
#[derive(Default)]
pub struct RefusedWatches {
    /// Reason by packet without its first letter (`2,ADDR,LEN`).
    reasons: BTreeMap<Box<[u8]>, String>,
}

impl RefusedWatches {
    /// Notes the stub's reply to a packet if it is a refusal, and returns whether it is one.
    pub fn takes(&mut self, packet: &[u8], reply: &[u8]) -> bool {
        let (Some((true, key)), Some(why)) = (watch(packet), reply.strip_prefix(b"E.")) else {
            return false;
        };
        let why = String::from_utf8_lossy(why).into_owned();
        self.reasons.insert(key.into(), why);
        true
    }

    /// Returns true if the packet removes a refused watch.
    pub fn settles(&mut self, packet: &[u8]) -> bool {
        matches!(watch(packet), Some((false, key)) if self.reasons.remove(key).is_some())
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
