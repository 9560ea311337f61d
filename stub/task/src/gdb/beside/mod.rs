//! Packets answered before gdbstub sees them, one file per group.

mod image;
pub mod large;
mod libraries;
mod lldb;
pub mod memory;
mod monitor;
mod non_stop;
mod points;
mod queries;
mod resume;
mod tls;
pub mod xfer;
mod xml;

use super::{Event, GdbSession, packet};
use crate::inferior::Inferior;
use alloc::string::String;
use alloc::vec::Vec;
use ulpf_lib::TargetAddr;

pub enum Served {
    Ok,
    Reply(Vec<u8>),
    /// Text for the user.
    Output(String),
    /// Notifications and the answer, as they are sent.
    Frames(Vec<u8>),
    /// Done; the protocol requires no answer (now).
    Silent,
    /// gdbstub's.
    Pass,
    /// A packet for gdbstub, in another form.
    PassAs(Vec<u8>),
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
            all.filter_map(packet::hex_u64)
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
