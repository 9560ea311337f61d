//! Messages to the user on standard error: [`say!`] about a watched program (`ulpf run`, `top`, `last`, `export`),
//! [`message!`] in gdbserver's words (`ulpf server`, `gdb`, `bridge`); lines on standard output: [`outln!`]. [`json`] writes
//! JSON.
#![forbid(unsafe_code)]

pub mod atomic_lines;
pub mod json;
mod writer;

use crate::foreign::text;
use serde::Serialize;
use std::fmt;
use std::io::{Write, stderr, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

/// Prints a message, formatted as by `println!`.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::say::say(&format!($($text)*)) };
}

/// Prints a message in one write, so that a reader of our stderr never sees half a line.
#[macro_export]
macro_rules! message {
    ($($text:tt)*) => { $crate::say::message(format_args!($($text)*)) };
}

/// Prints a line on standard output, formatted as by `println!` (which panics if the reader has closed it).
#[macro_export]
macro_rules! outln {
    ($($text:tt)*) => { $crate::say::outln(format_args!($($text)*)) };
}

pub use crate::{message, outln, say};
pub use writer::{Writer, of_stderr};

/// Standard error carries JSON lines, so each message must be one as well.
static JSON_ON_STDERR: AtomicBool = AtomicBool::new(false);

#[derive(Serialize)]
struct Message<'a> {
    r#type: &'static str,
    text: &'a str,
}

/// Prints a message on standard error. (`eprintln!` would panic if the reader has closed it.)
pub fn say(what: &str) {
    let line = match JSON_ON_STDERR.load(Ordering::Relaxed) {
        true => json::line(&Message {
            r#type: "message",
            text: what,
        }),
        false => format!("ulpf: {}\n", text::lines(what)),
    };
    put(&line);
}

/// Implements [`message!`].
pub fn message(what: fmt::Arguments<'_>) {
    put(&text::lines(&format!("{what}\n")));
}

/// Implements [`outln!`]. A closed reader is no error.
pub fn outln(what: fmt::Arguments<'_>) {
    let _ = stdout().write_all(format!("{what}\n").as_bytes());
}

/// Writes lines to standard error, which the program may share. A closed reader is no error, and one that takes nothing
/// delays the caller by 100 ms at most ([`Writer`]).
pub fn put(text: &str) {
    match of_stderr() {
        Some(writer) => writer.write(text),
        None => drop(atomic_lines::put_pieces(&mut stderr(), text)),
    }
}

/// Waits until standard error has taken all messages.
pub fn finish() {
    if let Some(writer) = of_stderr() {
        writer.finish();
    }
}

/// Sets the form of [`say()`]; call it before the first message.
pub fn say_json(json: bool) {
    JSON_ON_STDERR.store(json, Ordering::Relaxed);
}

/// An error whose details have already been printed; it has no text of its own.
pub fn already_printed() -> anyhow::Error {
    anyhow::Error::msg("")
}
