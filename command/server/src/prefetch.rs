//! Answers in advance the questions that the debugger asks at every stop. GDB asks the same at each stop: the values of
//! its watches, the list of threads. So the relay sends the stub the list of questions of the last stop. The stub
//! answers them at the next stop unasked (`stub/task/src/gdb/prefetch.rs`), and the relay serves the debugger from these
//! answers.
//!
//! ```text
//!     relay ─▶ stub  vUlpfAhead;m601040,8;qXfer:threads:read::0,1000    before a resume, if the list has changed
//!     stub ─▶ relay  T05watch:601040;…                                  the stop reply, as ever
//!     stub ─▶ relay  %UlpfAhead:0;10:2a00000000000000;…                 number of the first question; lengths, answers
//! ```
//! The stub answers only questions whose answers cannot change while the program is stopped. The answers hold until the
//! debugger sends a packet that is not a query; then all are forgotten.
#![forbid(unsafe_code)]

use std::collections::HashMap;

/// Limit of questions: more than a debugger with thousands of watches asks at a stop.
const MOST: usize = 8192;
/// Limit of the list in bytes. It goes to the stub in one packet.
const LONGEST: usize = 48 << 10;
/// Longest memory read that is answered in advance, in bytes. A longer read comes from a user browsing memory.
const MOST_MEMORY: u64 = 256;

pub const ANSWERS: &[u8] = b"UlpfAhead:";

#[derive(Default)]
pub struct Prefetch {
    /// Questions since the last stop, in the order in which they were asked.
    asked: Vec<Box<[u8]>>,
    /// Length of `asked` as a list, in bytes.
    length: usize,
    /// The questions that the stub answers at each stop.
    sent: Vec<Box<[u8]>>,
    /// The state of each question at this stop.
    known: HashMap<Box<[u8]>, Known>,
    /// The program has stopped, and since then the stub has received queries only: its answers hold.
    holds: bool,
}

#[derive(Default)]
struct Known {
    asked: bool,
    answer: Option<Box<[u8]>>,
}

/// Whether this question is worth an answer in advance.
fn is_regular(packet: &[u8]) -> bool {
    if let Some(length) = packet.strip_prefix(b"qXfer:threads:read::0,") {
        return ulpf_rsp::hex_number(length).is_some();
    }
    let Some(range) = packet.strip_prefix(b"m") else {
        return false;
    };
    let mut numbers = range.split(|&b| b == b',').map(ulpf_rsp::hex_number);
    let (start, length) = (numbers.next().flatten(), numbers.next().flatten());
    start.is_some() && length.is_some_and(|n| n <= MOST_MEMORY) && numbers.next().is_none()
}

/// Whether this packet leaves all answers valid. Breakpoints and watches take effect at a resume and do not show in
/// memory.
fn changes_nothing(packet: &[u8]) -> bool {
    match packet {
        [b'm' | b'x' | b'g' | b'p' | b'H' | b'T' | b'Z' | b'z', ..] | b"qC" => true,
        _ => {
            let reads = packet.windows(6).any(|w| w == b":read:");
            packet.starts_with(b"qXfer:") && reads || packet.starts_with(b"qThreadExtraInfo,")
        }
    }
}

impl Prefetch {
    /// The stub's answer to this question, if it has given one in advance.
    pub fn answer(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let known = self.known.get_mut(packet)?;
        let answer = known.answer.as_ref()?.to_vec();
        if !std::mem::replace(&mut known.asked, true) {
            self.note(packet);
        }
        Some(answer)
    }

    /// Notes that the stub has answered this packet on request.
    pub fn was_asked(&mut self, packet: &[u8], reply: &[u8]) {
        let answered = !reply.is_empty() && reply[0] != b'E';
        // The table is bounded, whatever the debugger asks.
        let room = self.known.len() < 2 * MOST;
        if self.holds && room && answered && is_regular(packet) {
            let known = self.known.entry(packet.into()).or_default();
            if !std::mem::replace(&mut known.asked, true) {
                self.note(packet);
            }
        }
    }

    fn note(&mut self, packet: &[u8]) {
        if self.asked.len() < MOST && self.length + packet.len() < LONGEST {
            self.length += packet.len() + 1;
            self.asked.push(packet.into());
        }
    }

    /// Call before this packet is sent to the stub.
    pub fn sending(&mut self, packet: &[u8]) {
        if !changes_nothing(packet) {
            self.forget();
        }
    }

    /// Drops all answers.
    pub fn forget(&mut self) {
        self.holds = false;
        // Questions of this stop will be asked again.
        self.known.clear();
    }

    /// The stub has reported a stop. Its answers in advance follow.
    pub fn stopped(&mut self) {
        self.holds = true;
        self.known.clear();
        self.asked.clear();
        self.length = 0;
    }

    /// The program is about to run. Returns the packet that the stub needs first: the list of questions, if it has
    /// changed.
    pub fn resuming(&mut self) -> Option<Vec<u8>> {
        self.forget();
        if self.sent == self.asked {
            return None;
        }
        self.sent = std::mem::take(&mut self.asked);
        Some([b"vUlpfAhead;", &self.sent.join(&b';')[..]].concat())
    }

    /// Takes the stub's answers (the text after [`ANSWERS`]). Malformed answers are skipped: the debugger's question
    /// then goes to the stub.
    pub fn answers(&mut self, text: &[u8]) {
        if self.holds {
            let _ = self.take(text);
        }
    }

    fn take(&mut self, text: &[u8]) -> Option<()> {
        let at = text.iter().position(|&b| b == b';')?;
        let mut number = usize::try_from(ulpf_rsp::hex_number(&text[..at])?).ok()?;
        let mut rest = &text[at + 1..];
        while let Some(at) = rest.iter().position(|&b| b == b':') {
            let length = usize::try_from(ulpf_rsp::hex_number(&rest[..at])?).ok()?;
            let answer = rest[at + 1..].get(..length)?;
            rest = &rest[at + 1 + length..];
            let question = self.sent.get(number)?;
            number += 1;
            if !answer.is_empty() {
                let known = self.known.entry(question.clone()).or_default();
                known.answer = Some(answer.into());
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// State after one stop at which these questions were asked, a resume, and a second stop.
    fn after_two_stops(questions: &[&[u8]]) -> Prefetch {
        let mut a = Prefetch::default();
        a.stopped();
        questions.iter().for_each(|q| a.was_asked(q, b"00"));
        a.resuming().expect("there is something to tell");
        a.stopped();
        a
    }

    #[test]
    fn the_same_is_answered_at_the_next_stop() {
        let mut a = Prefetch::default();
        a.stopped();
        a.was_asked(b"m10,4", b"00000000");
        a.was_asked(b"m10,4", b"00000000");
        a.was_asked(b"qXfer:threads:read::0,1000", b"l<threads/>");
        assert_eq!(a.answer(b"m10,4"), None);
        let list = b"vUlpfAhead;m10,4;qXfer:threads:read::0,1000".to_vec();
        assert_eq!(a.resuming(), Some(list));
        a.stopped();
        a.answers(b"0;8:2a000000c:l<a:b;c></a>");
        assert_eq!(a.answer(b"m10,4"), Some(b"2a000000".to_vec()));
        assert_eq!(
            a.answer(b"qXfer:threads:read::0,1000"),
            Some(b"l<a:b;c></a>".to_vec())
        );
        assert_eq!(a.answer(b"m20,4"), None);
        assert_eq!(a.resuming(), None, "the stub knows");
        assert_eq!(a.answer(b"m10,4"), None);
    }

    #[test]
    fn whatever_may_change_something_ends_it() {
        for packet in [
            &b"M10,4:00000000"[..],
            b"X10,4:0000",
            b"G00",
            b"P10=00",
            b"qRcmd,75",
            b"vCont;c",
            b"qXfer:siginfo:write::0:00",
            b"QPassSignals:",
            b"D",
            b"vUlpfHalt",
        ] {
            let mut a = after_two_stops(&[b"m10,4"]);
            a.answers(b"0;8:2a000000");
            a.sending(packet);
            assert_eq!(a.answer(b"m10,4"), None, "{packet:?}");
            // Answers on their way were made before the packet.
            a.answers(b"0;8:2a000000");
            assert_eq!(a.answer(b"m10,4"), None, "{packet:?}");
        }
    }

    #[test]
    fn questions_leave_it() {
        for packet in [
            &b"m20,4"[..],
            b"g",
            b"Hgp1.1",
            b"z2,10,4",
            b"qXfer:auxv:read::0,1000",
        ] {
            let mut a = after_two_stops(&[b"m10,4"]);
            a.answers(b"0;8:2a000000");
            a.sending(packet);
            assert!(a.answer(b"m10,4").is_some(), "{packet:?}");
        }
    }

    #[test]
    fn nonsense_is_passed_over() {
        for text in [
            &b""[..],
            b"0",
            b"0;",
            b"0;5:2a",
            b"1;2:2a",
            b"ffffffffffffffff;2:2a",
            b"0;ffffffffffffffff:2a",
            b"0;0:",
        ] {
            let mut a = after_two_stops(&[b"m10,4"]);
            a.answers(text);
            assert_eq!(a.answer(b"m10,4"), None, "{text:?}");
        }
    }

    #[test]
    fn what_has_not_been_asked_at_a_stop_is_not_answered_at_the_next_but_one() {
        let mut a = after_two_stops(&[b"m10,4", b"m20,4"]);
        a.answers(b"0;2:002:00");
        a.answer(b"m20,4");
        assert_eq!(a.resuming(), Some(b"vUlpfAhead;m20,4".to_vec()));
    }

    #[test]
    fn large_memory_is_somebody_looking_around() {
        assert!(is_regular(b"m601040,8"));
        assert!(!is_regular(b"m601040,1000"));
        assert!(!is_regular(b"m601040"));
        assert!(!is_regular(b"m601040,8;D"));
        assert!(!is_regular(b"qXfer:threads:read::0,1000;D"));
        assert!(!is_regular(b"g"));
    }
}
