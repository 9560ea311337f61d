//! The side that asks.

use super::{Ask, name};
use crate::listing::Listing;
use serde_json::Value;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use ulpf_host::{process, sys};

/// A change needs the program to come to rest, which may take a while.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Nobody has so many watches that their list is longer.
const LONGEST_ANSWER: usize = 16 << 20;

/// Asks the ulpf `by` about process `pid`. The error is a sentence for the user.
pub fn ask(by: i32, pid: i32, ask: &Ask) -> Result<Value, String> {
    let failed = |e: io::Error| match e.kind() {
        ErrorKind::ConnectionRefused | ErrorKind::NotFound => {
            format!("ulpf ({by}) takes no requests: it is just beginning or ending")
        }
        ErrorKind::WouldBlock | ErrorKind::TimedOut => format!(
            "ulpf ({by}) has not answered for {} s: the program does not come to rest, perhaps; the request stays with it",
            TIMEOUT.as_secs()
        ),
        _ => format!("cannot ask ulpf ({by}): {e}"),
    };
    let end = Instant::now() + TIMEOUT;
    let stream = connect(&name(by)).map_err(failed)?;
    if !is_the_one(by, &stream) {
        return Err(format!(
            "somebody else answers in the place of ulpf ({by}); nothing was asked"
        ));
    }
    // Who is refused without having been heard (there are too many) finds the answer all the same.
    let sent = (&stream).write_all(ask.to_json(pid).as_bytes());
    let line = match (read_line(&stream, end, LONGEST_ANSWER), sent) {
        (Ok(line), Ok(())) => line,
        (Ok(line), Err(_)) if !line.is_empty() => line,
        (_, Err(e)) | (Err(e), _) => return Err(failed(e)),
    };
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

/// Anybody may have taken the name before, and may let whoever connects wait for ever.
fn connect(name: &str) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    socket.connect(&SockAddr::unix(format!("\0{name}"))?)?;
    Ok(OwnedFd::from(socket).into())
}

/// Is the process that listens the ulpf that is meant? The number alone does not say so: who had it before
/// may have left a socket to somebody else.
fn is_the_one(by: i32, stream: &UnixStream) -> bool {
    let owner = process::Status::of(by).ok().and_then(|s| s.user());
    let peer = sys::peer(stream).ok();
    peer.is_some_and(|(user, process)| process == by && Some(user) == owner)
}

/// Up to the end of the line, which is left out, or of what is said. However slowly it comes, `end` holds.
fn read_line(mut stream: &UnixStream, end: Instant, longest: usize) -> io::Result<Vec<u8>> {
    let (mut line, mut piece) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let n = stream.read(&mut piece)?;
        let text = &piece[..n];
        if let Some(at) = text.iter().position(|&b| b == b'\n') {
            line.extend_from_slice(&text[..at]);
            return Ok(line);
        }
        line.extend_from_slice(text);
        if n == 0 {
            return Ok(line);
        }
        if line.len() > longest {
            let why = format!("its answer has more than {longest} bytes");
            return Err(io::Error::new(ErrorKind::InvalidData, why));
        }
    }
}

/// The watches of process `pid`, as the ulpf `by` lists them. The error is a sentence for the user.
pub fn list(by: i32, pid: i32) -> Result<Listing, String> {
    let answer = ask(by, pid, &Ask::List)?;
    Listing::parse(&answer).ok_or_else(|| format!("ulpf ({by}) is of another version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after<T: Send + 'static>(
        said: impl FnOnce(UnixStream) -> T + Send + 'static,
    ) -> (UnixStream, std::thread::JoinHandle<T>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (ours, std::thread::spawn(move || said(theirs)))
    }

    #[test]
    fn an_answer_that_has_no_end() {
        let (stream, says) = after(|mut to| while to.write_all(&[b'x'; 4096]).is_ok() {});
        let end = Instant::now() + TIMEOUT;
        let error = read_line(&stream, end, 1 << 20).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        drop(stream);
        says.join().unwrap();
    }

    #[test]
    fn an_answer_that_comes_by_the_byte() {
        let (stream, says) = after(|mut to| {
            while to.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let end = Instant::now() + Duration::from_millis(200);
        let error = read_line(&stream, end, 1 << 20).unwrap_err();
        assert!(matches!(
            error.kind(),
            ErrorKind::TimedOut | ErrorKind::WouldBlock
        ));
        drop(stream);
        says.join().unwrap();
    }
}
