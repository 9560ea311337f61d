//! `monitor …` (qRcmd). gdbstub supports it, but takes input byte by byte, and lists of a million watches come this
//! way.

use super::Served;
use crate::gdb::{GdbSession, packet};
use crate::inferior::Inferior;
use alloc::format;
use alloc::string::String;

pub fn serve(session: &GdbSession, inf: &mut dyn Inferior, hex: &[u8]) -> Served {
    let Some(command) = packet::unhex(hex) else {
        return Served::error();
    };
    let command = String::from_utf8_lossy(&command);
    let command = command.trim();
    if let ("ulpf why", Some(r)) = (command, &session.debuggee.refusal) {
        return Served::Output(format!("{}: {}; {}.\n", r.what, r.why, r.what_to_do));
    }
    let mut out = String::new();
    if !inf.monitor(command, &mut out) {
        out += &format!(
            "Unknown monitor command \"{command}\"; \"monitor help\" lists what there is.\n"
        );
    }
    Served::Output(out)
}
