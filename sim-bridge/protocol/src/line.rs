//! Framing: a message is a line. A line that is too long ends the connection, because its meaning is
//! lost. A line that is no valid message is answered with a refusal, and reading continues with the
//! next one.

use serde::Serialize;

/// Bytes of a line at most, its end included.
pub const MAX_LINE: usize = 4 << 20;

/// Why bytes are no line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Bad {
    TooLong,
    NotText,
}

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Bad::TooLong => write!(f, "a line has more than {MAX_LINE} bytes"),
            Bad::NotText => write!(f, "a line is not UTF-8"),
        }
    }
}

/// A message as a line.
pub fn line(message: &impl Serialize) -> Vec<u8> {
    // Nothing of ours has keys that are no strings.
    let mut bytes = serde_json::to_vec(message).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// Cuts a stream into lines.
#[derive(Default)]
pub struct Lines {
    held: Vec<u8>,
    /// Bytes of `held` that were searched.
    seen: usize,
}

impl Lines {
    pub fn feed(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The next whole line without its end; empty ones are skipped. `Ok(None)` if none is complete yet.
    pub fn take(&mut self) -> Result<Option<String>, Bad> {
        loop {
            let end = self.held[self.seen..].iter().position(|&b| b == b'\n');
            let Some(end) = end.map(|n| n + self.seen) else {
                self.seen = self.held.len();
                return match self.held.len() < MAX_LINE {
                    true => Ok(None),
                    false => Err(Bad::TooLong),
                };
            };
            let mut text: Vec<u8> = self.held.drain(..=end).collect();
            self.seen = 0;
            if text.len() > MAX_LINE {
                return Err(Bad::TooLong);
            }
            text.pop();
            if text.last() == Some(&b'\r') {
                text.pop();
            }
            if !text.is_empty() {
                return String::from_utf8(text).map(Some).map_err(|_| Bad::NotText);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(bytes: &[u8], piece: usize) -> Vec<Result<Option<String>, Bad>> {
        let (mut lines, mut out) = (Lines::default(), vec![]);
        for part in bytes.chunks(piece) {
            lines.feed(part);
            while let Some(line) = lines.take().transpose() {
                out.push(line.map(Some));
            }
        }
        out
    }

    #[test]
    fn lines_and_what_is_none() {
        let text = |s: &str| Ok(Some(s.to_owned()));
        assert_eq!(all(b"a\n\r\n\nb\r\nc", 100), [text("a"), text("b")]);
        assert_eq!(
            all(b"\xff\nb\n", 100),
            [Err(Bad::NotText), text("b")],
            "the next line is one again"
        );
    }

    #[test]
    fn too_long() {
        let mut lines = Lines::default();
        lines.feed(&vec![b'x'; MAX_LINE - 1]);
        assert_eq!(lines.take(), Ok(None));
        lines.feed(b"x");
        assert_eq!(lines.take(), Err(Bad::TooLong));
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(bytes: Vec<u8>, piece in 1usize..20) {
            prop_assert_eq!(all(&bytes, piece), all(&bytes, bytes.len().max(1)));
        }
    }
}
