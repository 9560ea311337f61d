//! The side that asks.

use super::{Ask, Listing, address};
use crate::inject::sys;
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A change needs the program to come to rest, which may take a while.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longer answers are not taken: some hundred thousand watches.
const LONGEST: usize = 16 << 20;

/// Asks the ulpf `by` about process `pid`. The error is a sentence for the user.
pub fn ask(by: i32, pid: i32, ask: &Ask) -> Result<Value, String> {
    let failed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound => {
            format!("ulpf ({by}) takes no requests: it is just beginning or ending")
        }
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => format!(
            "ulpf ({by}) has not answered for {} s: the program does not come to rest, perhaps; the request stays with it",
            PATIENCE.as_secs()
        ),
        _ => format!("cannot ask ulpf ({by}): {e}"),
    };
    let mut stream = UnixStream::connect_addr(&address(by).map_err(failed)?).map_err(failed)?;
    // Anybody may have taken the name.
    match sys::peer(&stream) {
        Ok((user, process)) if process == by || user == 0 || user == sys::user() => {}
        _ => {
            return Err(format!(
                "somebody else answers in the place of ulpf ({by}); nothing was asked"
            ));
        }
    }
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    stream
        .write_all(ask.to_json(pid).as_bytes())
        .map_err(failed)?;
    let line = line(stream, Instant::now() + PATIENCE, LONGEST).map_err(failed)?;
    if line.is_empty() {
        return Err(format!("ulpf ({by}) has ended meanwhile"));
    }
    let answer: Value =
        serde_json::from_slice(&line).map_err(|e| format!("ulpf ({by}) answers strangely: {e}"))?;
    match answer["refused"].as_str() {
        Some(why) => Err(why.to_string()),
        None => Ok(answer),
    }
}

/// One line, which neither takes longer nor is longer than that, whoever writes it.
fn line(mut from: UnixStream, until: Instant, longest: usize) -> std::io::Result<Vec<u8>> {
    let (mut line, mut piece) = (Vec::new(), [0; 16 << 10]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        from.set_read_timeout(Some(left))?;
        let n = from.read(&mut piece)?;
        let new = piece.get(..n).unwrap_or_default();
        let end = new.iter().position(|b| *b == b'\n');
        line.extend_from_slice(new.get(..end.unwrap_or(n)).unwrap_or_default());
        if n == 0 || end.is_some() {
            return Ok(line);
        }
        if line.len() > longest {
            let why = "the answer is longer than any that ulpf gives";
            return Err(std::io::Error::new(ErrorKind::InvalidData, why));
        }
    }
}

pub fn list(by: i32, pid: i32) -> Result<Listing, String> {
    let answer = ask(by, pid, &Ask::List)?;
    Listing::parse(&answer).ok_or_else(|| format!("ulpf ({by}) is of another version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends() {
        let soon = || Instant::now() + Duration::from_millis(200);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"{}\nmore").unwrap();
        assert_eq!(line(ours, soon(), 10).unwrap(), b"{}");
        // Without an end of line, and without an end.
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || while theirs.write_all(&[b'x'; 4096]).is_ok() {});
        let refused = line(ours, Instant::now() + PATIENCE, 1 << 20).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidData);
        writer.join().unwrap();
        // A byte now and then.
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let writer = std::thread::spawn(move || {
            while theirs.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        assert!(line(ours, soon(), 1 << 20).is_err());
        writer.join().unwrap();
    }
}
