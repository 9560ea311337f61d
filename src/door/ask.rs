//! The side that asks.

use super::{Ask, Listing, address};
use crate::inject::sys;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A change needs the program to come to rest, which may take a while.
const PATIENCE: Duration = Duration::from_secs(10);

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
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    stream
        .write_all(ask.to_json(pid).as_bytes())
        .map_err(failed)?;
    let mut line = String::new();
    BufReader::new(stream)
        .read_line(&mut line)
        .map_err(failed)?;
    if line.is_empty() {
        return Err(format!("ulpf ({by}) has ended meanwhile"));
    }
    let answer: Value =
        serde_json::from_str(&line).map_err(|e| format!("ulpf ({by}) answers strangely: {e}"))?;
    match answer["refused"].as_str() {
        Some(why) => Err(why.to_string()),
        None => Ok(answer),
    }
}

pub fn list(by: i32, pid: i32) -> Result<Listing, String> {
    let answer = ask(by, pid, &Ask::List)?;
    Listing::parse(&answer).ok_or_else(|| format!("ulpf ({by}) is of another version"))
}
