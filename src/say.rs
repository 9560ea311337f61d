//! What the command says to the user on standard error: `say!` where it is about a watched program (`ulpf run`,
//! `top`, `last`, `export`), `message!` in the words of gdbserver (`ulpf server`, `gdb`, `bridge`).
#![forbid(unsafe_code)]

use crate::foreign::text::lines;
use crate::session::json;
use serde_json::json;
use std::io::{Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering};

/// Tells the user something, as `println!`.
macro_rules! say {
    ($($text:tt)*) => { $crate::say::say(&format!($($text)*)) };
}

/// `eprintln!` in one write, so that whoever reads our stderr never sees half a line.
macro_rules! message {
    ($($text:tt)*) => {{
        use std::io::Write;
        let text = format!("{}\n", format_args!($($text)*));
        let _ = std::io::stderr().write_all($crate::foreign::text::lines(&text).as_bytes());
    }};
}

/// Standard error carries JSON lines: whatever else is said there must be one as well.
static JSON_ON_STDERR: AtomicBool = AtomicBool::new(false);

/// Tells the user something on standard error. (Not `eprintln!`, which panics when nobody listens.)
pub fn say(text: &str) {
    let line = match JSON_ON_STDERR.load(Ordering::Relaxed) {
        true => json::line(&json!({"type": "message", "text": text})),
        false => format!("ulpf: {}\n", lines(text)),
    };
    let _ = stderr().write_all(line.as_bytes());
}

/// Decides how [`say`] says it; before anything is said.
pub fn say_json(json: bool) {
    JSON_ON_STDERR.store(json, Ordering::Relaxed);
}

/// An error whose details the user has been told: it has no text of its own.
pub fn told() -> anyhow::Error {
    anyhow::Error::msg("")
}
