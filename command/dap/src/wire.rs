//! The protocol's frames: `Content-Length: N`, an empty line, N bytes of JSON.
//!
//! Malformed input is reported to the client, and reading continues after it.

use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

/// Longer messages are skipped. Ten thousand data breakpoints take about two megabytes.
pub const LONGEST: usize = 256 << 20;
/// The same limit for a client that has not given the token; a launch configuration has a few kilobytes.
pub const STRANGERS_LONGEST: usize = 1 << 20;
/// Limit of a header line, in bytes.
const HEADER: u64 = 8 << 10;

pub struct Reader<R> {
    source: R,
}

impl<R: AsyncBufRead + Unpin> Reader<R> {
    pub fn new(source: R) -> Reader<R> {
        Reader { source }
    }

    /// The next message, or an error in it; `None` if the client has disconnected.
    pub async fn next(&mut self, longest: usize) -> Option<Result<Value, String>> {
        let length = match self.header().await? {
            Ok(length) => length,
            Err(why) => return Some(Err(why)),
        };
        if length > longest {
            let mut rest = (&mut self.source).take(length as u64);
            tokio::io::copy(&mut rest, &mut tokio::io::sink())
                .await
                .ok()?;
            return Some(Err(format!(
                "a message of {length} bytes is too long (at most {longest}); it was left out"
            )));
        }
        let mut body = Vec::new();
        let read = (&mut self.source)
            .take(length as u64)
            .read_to_end(&mut body)
            .await
            .ok()?;
        if read < length {
            return None;
        }
        Some(serde_json::from_slice(&body).map_err(|e| format!("this is no JSON: {e}")))
    }

    /// Reads the length from a header.
    async fn header(&mut self) -> Option<Result<usize, String>> {
        let (mut length, mut wrong) = (None, None);
        loop {
            let mut line = Vec::new();
            let read = (&mut self.source)
                .take(HEADER)
                .read_until(b'\n', &mut line)
                .await
                .ok()?;
            if read == 0 {
                return None;
            }
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end_matches(['\r', '\n']);
            if text.is_empty() {
                match (length, wrong.take()) {
                    // After any garbage, reading can continue at a valid header.
                    (Some(length), _) => return Some(Ok(length)),
                    (None, Some(why)) => return Some(Err(why)),
                    (None, None) => continue,
                }
            }
            match content_length(text) {
                Some(Ok(n)) => length = Some(n),
                Some(Err(value)) => {
                    wrong = Some(format!("Content-Length: {value} is no length of a message"));
                }
                // Content-Type, for example.
                None if text.contains(": ") && !text.contains('{') => {}
                None => {
                    let start: String = text.chars().take(40).collect();
                    wrong = Some(format!(
                        "a message begins with \"Content-Length: N\" and an empty line, not with \"{start}\""
                    ));
                    // Text without a line end is not a header, and the end may never come.
                    if length.is_none() && text.starts_with('{') {
                        return wrong.map(Err);
                    }
                }
            }
        }
    }
}

fn content_length(line: &str) -> Option<Result<usize, String>> {
    const NAME: &str = "content-length:";
    let at = line.to_ascii_lowercase().find(NAME)?;
    let value = line[at + NAME.len()..].trim();
    Some(value.parse().map_err(|_| value.chars().take(40).collect()))
}

/// Writes messages until the client disconnects.
pub async fn write(mut out: impl AsyncWrite + Unpin, mut messages: mpsc::Receiver<Value>) {
    while let Some(message) = messages.recv().await {
        let body = message.to_string();
        let frame = format!("Content-Length: {}\r\n\r\n{body}", body.len());
        if out.write_all(frame.as_bytes()).await.is_err() || out.flush().await.is_err() {
            return;
        }
    }
}

/// Moves complete characters from `bytes` to the text. An incomplete one stays for the next call.
pub fn take_text(bytes: &mut Vec<u8>) -> String {
    let whole = match std::str::from_utf8(bytes) {
        Ok(_) => bytes.len(),
        // A character is incomplete at the end. (Invalid bytes in the middle are replaced.)
        Err(e) if e.error_len().is_none() => e.valid_up_to(),
        Err(_) => bytes.len(),
    };
    let text = String::from_utf8_lossy(&bytes[..whole]).into_owned();
    bytes.drain(..whole);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn all(text: &[u8]) -> Vec<Result<Value, String>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut reader = Reader::new(text);
            let mut found = Vec::new();
            while let Some(message) = reader.next(LONGEST).await {
                found.push(message);
            }
            found
        })
    }

    const GOOD: &[u8] = b"Content-Length: 7\r\n\r\n{\"a\":1}";

    #[test]
    fn frames() {
        let twice = [
            GOOD,
            b"content-length:7\nContent-Type: x; y\r\n\r\n{\"a\":1}",
        ]
        .concat();
        assert_eq!(all(&twice), [Ok(json!({"a": 1})), Ok(json!({"a": 1}))]);
    }

    /// Errors are reported, and the valid message after them is found.
    #[test]
    fn garbage() {
        for bad in [
            &b"hello\r\n\r\n"[..],
            b"Content-Length: -3\r\n\r\n",
            b"Content-Length: 99999999999999999999999\r\n\r\n",
            b"Content-Length: 3\r\n\r\n{x}",
            b"Content-Length: 4\r\n\r\n\xff\xfe\0\0",
            b"{\"seq\":1}\n",
            b"\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        ] {
            let found = all(&[bad, GOOD].concat());
            assert_eq!(found.len(), 2, "{}", String::from_utf8_lossy(bad));
            assert!(found[0].is_err());
            assert_eq!(found[1], Ok(json!({"a": 1})));
        }
        assert_eq!(all(b"Content-Length: 90\r\n\r\n{}").len(), 0);
        assert_eq!(all(b"noise, Content-Length: 2\r\n\r\n{}"), [Ok(json!({}))]);
    }

    #[test]
    fn characters_that_come_in_two_pieces() {
        let mut bytes = "aü".as_bytes()[..2].to_vec();
        assert_eq!(take_text(&mut bytes), "a");
        bytes.push(0xbc);
        assert_eq!(take_text(&mut bytes), "ü");
        let mut bytes = b"a\xffb".to_vec();
        assert_eq!(take_text(&mut bytes), "a\u{fffd}b");
    }

    proptest! {
        #[test]
        fn any_bytes(text: Vec<u8>) {
            all(&text);
        }
    }
}
