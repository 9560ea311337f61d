//! Answers to monitor commands.

use core::fmt::Write;

use ulpf_lib::Refusal;
use ulpf_lib::command::reply::Reply;

pub fn tell(out: &mut dyn Write, done: Result<Reply, Refusal>) {
    let reply = done.unwrap_or_else(Reply::Refused);
    let _ = writeln!(out, "{reply}");
}

pub fn refused(out: &mut dyn Write, r: &Refusal) {
    tell(out, Err(r.clone()));
}
