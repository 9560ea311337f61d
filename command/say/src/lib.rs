//! What the command says to the user on standard error: [`say!`] where it is about a watched program (`ulpf run`,
//! `top`, `last`, `export`), [`message!`] in the words of gdbserver (`ulpf server`, `gdb`, `bridge`); and JSON as the
//! command writes it ([`json`]).
#![forbid(unsafe_code)]

pub mod json;
pub mod lines;

use serde::Serialize;
use std::fmt;
use std::io::stderr;
use std::sync::atomic::{AtomicBool, Ordering};
use ulpf_host::foreign::text;

/// Tells the user something, as `println!`.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::say(&format!($($text)*)) };
}

/// `eprintln!` in one write, so that whoever reads our stderr never sees half a line.
#[macro_export]
macro_rules! message {
    ($($text:tt)*) => { $crate::message(format_args!($($text)*)) };
}

/// Standard error carries JSON lines: whatever else is said there must be one as well.
static JSON_ON_STDERR: AtomicBool = AtomicBool::new(false);

#[derive(Serialize)]
struct Message<'a> {
    r#type: &'static str,
    text: &'a str,
}

/// Tells the user something on standard error. (Not `eprintln!`, which panics when nobody listens.)
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

/// What [`message!`] does.
pub fn message(what: fmt::Arguments<'_>) {
    put(&text::lines(&format!("{what}\n")));
}

/// Lines on standard error, which the program may share. That nobody listens is no reason to fail.
pub fn put(text: &str) {
    let _ = lines::put_pieces(&mut stderr(), text);
}

/// Decides how [`say()`] says it; before anything is said.
pub fn say_json(json: bool) {
    JSON_ON_STDERR.store(json, Ordering::Relaxed);
}

/// An error whose details the user has been told: it has no text of its own.
pub fn told() -> anyhow::Error {
    anyhow::Error::msg("")
}
