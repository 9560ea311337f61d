//! The asking side.

use super::{Ask, name};
use crate::listing::Listing;
use serde_json::Value;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use ulpf_host::{process, sys};

/// A change must stop the program, which may take a while.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Limits of an answer.
#[derive(Clone, Copy)]
struct Most {
    /// Bytes that are read.
    text: usize,
    /// Bytes of memory that its values may take, as [`weight`] estimates them.
    values: usize,
}

impl Most {
    /// Limit for an own session: no list of watches is that long.
    const OWN: Most = Most {
        text: 16 << 20,
        values: 512 << 20,
    };
    /// Limit for another user's session: some thousand watches. There may be hundreds of such sessions.
    const OF_OTHERS: Most = Most {
        text: 1 << 20,
        values: 32 << 20,
    };
}

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
    let Some(owner) = owner_of(by, &stream) else {
        return Err(format!(
            "somebody else answers in the place of ulpf ({by}); nothing was asked"
        ));
    };
    let most = match owner == sys::user() {
        true => Most::OWN,
        false => Most::OF_OTHERS,
    };
    // If the server has too many connections, it refuses without reading the request; its answer can be read all the
    // same.
    let sent = (&stream).write_all(ask.to_json(pid).as_bytes());
    let line = match (read_line(&stream, end, most.text), sent) {
        (Ok(line), Ok(())) => line,
        (Ok(line), Err(_)) if !line.is_empty() => line,
        (_, Err(e)) | (Err(e), _) => return Err(failed(e)),
    };
    if line.is_empty() {
        return Err(format!("ulpf ({by}) has ended meanwhile"));
    }
    let answer = parse(&line, most).map_err(|e| format!("ulpf ({by}) answers strangely: {e}"))?;
    drop(line);
    match answer["refused"].as_str() {
        Some(why) => Err(why.to_string()),
        None => Ok(answer),
    }
}

/// Connects with a time limit: another process may have taken the name, and never accept.
fn connect(name: &str) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    socket.connect(&SockAddr::unix(format!("\0{name}"))?)?;
    Ok(OwnedFd::from(socket).into())
}

/// The user of the listening process, if that is the intended ulpf. The process number alone is no proof: its previous
/// process may have left the socket to another one.
fn owner_of(by: i32, stream: &UnixStream) -> Option<u32> {
    let owner = process::Status::of(by).ok()?.user()?;
    let peer = sys::peer(stream).ok()?;
    (peer == (owner, by)).then_some(owner)
}

/// Parses an answer, one at a time. (serde_json limits the nesting of values to 127 levels.)
fn parse(line: &[u8], most: Most) -> Result<Value, String> {
    static ONE: Mutex<()> = Mutex::new(());
    let values = weight(line);
    if values > most.values {
        let most = most.values;
        return Err(format!(
            "its values would take {values} bytes, and {most} is the most"
        ));
    }
    let _one = ONE.lock();
    serde_json::from_slice(line).map_err(|e| e.to_string())
}

/// Estimated upper bound of the memory for the values of this JSON, before any is allocated.
fn weight(json: &[u8]) -> usize {
    /// An object has a node of a B-tree for up to eleven fields, at least half full; an array has room for four values.
    const OBJECT: usize = 720;
    const ARRAY: usize = 160;
    /// One more field or value.
    const VALUE: usize = 128;
    /// A text, besides its bytes.
    const TEXT: usize = 48;
    let (mut weight, mut in_text, mut escaped) = (VALUE, false, false);
    for byte in json {
        weight += match byte {
            _ if escaped => 1,
            b'"' if in_text => 0,
            b'"' => TEXT,
            _ if in_text => 1,
            b'{' => OBJECT,
            b'[' => ARRAY,
            b',' => VALUE,
            _ => 0,
        };
        let in_escape = in_text && *byte == b'\\' && !escaped;
        in_text ^= *byte == b'"' && !escaped;
        escaped = in_escape;
    }
    weight
}

/// Reads up to the end of the line (exclusive) or of the stream. However slowly it comes, `end` holds.
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
    fn what_values_take_is_known_before() {
        let refused = |text: &str| parse(text.as_bytes(), Most::OF_OTHERS).is_err();
        let many = |one: &str, n: usize| format!("[{}{one}]", format!("{one},").repeat(n - 1));
        for one in ["{}", "[[]]", r#"{"a":0}"#, r#"[{"":[]}]"#] {
            assert!(refused(&many(one, (1 << 20) / (one.len() + 1))), "{one}");
        }
        assert!(refused(&format!("{}{}", "[".repeat(200), "]".repeat(200))));
        // Some thousand watches, and texts with characters of all kinds.
        let entry = r#"{"watch":12,"spec":"tab[3]","kind":"w","addr":94123456789,"len":8,"state":"armed","why":"","ids":[12],"past":[]}"#;
        assert!(!refused(&many(entry, 8000)));
        let text = format!(r#"["{}\"[[{{{{,"]"#, "{[,".repeat(300_000));
        assert!(!refused(&text) && weight(text.as_bytes()) < (1 << 20));
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
