//! Packets answered before gdbstub sees them, one file per group. For some gdbstub has no trait. For the others the head
//! of the file states the difference between gdbstub and gdbserver, and the test that shows it.

mod image;
pub mod large;
mod libraries;
mod lldb;
pub mod memory;
mod non_stop;
mod points;
mod queries;
mod resume;
mod tls;
pub mod xfer;

use super::{Event, GdbSession};
use crate::inferior::Inferior;
use alloc::vec::Vec;
use ulpf_lib::TargetAddr;
use ulpf_rsp::hex_number;

/// Features of this folder, for the answer to `qSupported`. (No-ack mode is the server's.)
pub const FEATURES: &[u8] = concat!(
    ";swbreak+;hwbreak+;QStartNoAckMode+;QPassSignals+;QProgramSignals+;ConditionalBreakpoints+",
    ";qXfer:features:read+;qXfer:threads:read+;qXfer:auxv:read+;qXfer:exec-file:read+",
    ";qXfer:siginfo:read+;qXfer:siginfo:write+",
    ";qXfer:libraries-svr4:read+;augmented-libraries-svr4-read+",
    ";QNonStop+;QThreadEvents+;no-resumed+",
    ";binary-upload+;error-message+"
)
.as_bytes();

pub enum Served {
    Ok,
    Reply(Vec<u8>),
    /// Notifications and the answer, as they are sent.
    Frames(Vec<u8>),
    /// Done; the protocol requires no answer (now).
    Silent,
    /// The program goes on; the answer is its next stop.
    Resumed,
    /// gdbstub's.
    Pass,
}

impl Served {
    fn error() -> Served {
        Served::Reply(b"E01".to_vec())
    }
    /// "No such packet."
    fn unknown() -> Served {
        Served::Reply(Vec::new())
    }
    fn ok_or_error(ok: bool) -> Served {
        if ok { Served::Ok } else { Served::error() }
    }
    fn text(s: &str) -> Served {
        Served::Reply(s.into())
    }
}

pub fn serve(session: &mut GdbSession, inf: &mut dyn Inferior, payload: &[u8]) -> Served {
    if session.event != Event::Stopped && !queries::allowed_while_running(payload) {
        // All-stop: only an interrupt is valid now, and `Inferior` must not be called.
        return Served::Reply(b"E.the program is running".to_vec());
    }
    if let Some(served) = non_stop::serve(session, inf, payload) {
        return served;
    }
    match payload {
        [b'm' | b'M' | b'X' | b'x', ..] => memory::serve(session, inf, payload),
        [b'Z' | b'z', ..] => points::serve(session, inf, payload),
        [b'c' | b's' | b'C' | b'S', ..] => resume::old(session, inf, payload),
        _ if payload.starts_with(b"vUlpfAhead;") => {
            session.prefetch.set(&payload[b"vUlpfAhead;".len()..]);
            Served::Silent
        }
        _ if payload.starts_with(b"vUlpfRenew;") => {
            let all = payload[b"vUlpfRenew;".len()..].split(|b| *b == b';');
            all.filter_map(hex_number)
                .for_each(|addr| inf.renew_breakpoint(TargetAddr(addr)));
            Served::Silent
        }
        _ if payload.starts_with(b"vCont") => resume::serve(session, inf, payload),
        _ if payload.starts_with(b"qXfer:") => xfer::serve(session, inf, payload),
        _ => match lldb::serve(session, inf, payload) {
            Some(served) => served,
            None => queries::serve(session, inf, payload),
        },
    }
}
