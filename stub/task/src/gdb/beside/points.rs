//! `Z z`: breakpoints and watches. gdbstub cuts conditions off (`breakpoints_with_and_without_conditions` in
//! `stub/host-tests`), and cannot carry the text of a refusal (`watches_of_any_size_and_refusals`). It also takes over a
//! microsecond for a packet, and GDB sends two packets per watch and stop.
//!
//! ```text
//! Z0,ADDR,KIND[;CONDITIONS]   software breakpoint      Z2,ADDR,LEN   write watch
//! Z1,ADDR,KIND[;CONDITIONS]   "hardware" breakpoint    Z3,ADDR,LEN   read watch
//!                                                      Z4,ADDR,LEN   access watch
//! ```

use super::Served;
use crate::gdb::{Client, GdbSession, packet};
use crate::inferior::{Inferior, Refusal, no_range};
use alloc::vec::Vec;
use ulpf_lib::{TargetAddr, WatchKind, WatchRange};
use ulpf_rsp::push_hex;

pub fn serve(session: &mut GdbSession, inf: &mut dyn Inferior, payload: &[u8]) -> Served {
    let [verb, kind, b',', rest @ ..] = payload else {
        return Served::error();
    };
    let insert = *verb == b'Z';
    let result = match kind {
        // A hardware breakpoint is an int3, too, but may be set where no memory is.
        b'0' | b'1' if insert => insert_breakpoint(inf, rest, *kind == b'1'),
        b'0' | b'1' => packet::addr_len(rest).map(|(addr, _)| {
            // As in gdbserver, removing a breakpoint that does not exist is no error.
            inf.remove_breakpoint(TargetAddr(addr));
            Ok(())
        }),
        b'2' => watch(session, inf, insert, WatchKind::Write, rest),
        b'3' => watch(session, inf, insert, WatchKind::Read, rest),
        b'4' => watch(session, inf, insert, WatchKind::Access, rest),
        _ => return Served::unknown(),
    };
    match result {
        Some(Ok(())) => Served::Ok,
        Some(Err(refusal)) => Served::Reply(refusal_text(&refusal, session.client)),
        None => Served::error(),
    }
}

fn insert_breakpoint(
    inf: &mut dyn Inferior,
    rest: &[u8],
    hardware: bool,
) -> Option<Result<(), Refusal>> {
    let point = packet::breakpoint(rest)?;
    if point.commands {
        return None; // BreakpointCommands is not announced
    }
    Some(inf.insert_breakpoint(TargetAddr(point.addr), point.conditions, hardware))
}

fn watch(
    session: &mut GdbSession,
    inf: &mut dyn Inferior,
    insert: bool,
    kind: WatchKind,
    rest: &[u8],
) -> Option<Result<(), Refusal>> {
    let (addr, len) = packet::addr_len(rest)?;
    let range = match WatchRange::new(TargetAddr(addr), len) {
        Some(range) => range,
        None if insert => {
            session.debuggee.refusal = Some(no_range(addr, len));
            return Some(Err(no_range(addr, len)));
        }
        None => return None,
    };
    session.debuggee.refusal = None;
    if insert {
        session.large.inserted(range);
        return Some(inf.insert_watch(range, kind));
    }
    inf.remove_watch(range, kind).then_some(Ok(()))
}

/// GDB 13 only sees "an error", newer versions and LLDB show the text.
fn refusal_text(r: &Refusal, client: Client) -> Vec<u8> {
    let parts = [&*r.what, ": ", &r.why, "; ", &r.what_to_do];
    let all = parts.iter().flat_map(|part| part.bytes());
    let text: Vec<u8> = all
        .filter(|b| !matches!(b, b'#' | b'$' | b'}' | b'*'))
        .collect();
    match (client.lldb, client.error_strings) {
        (false, _) => [b"E.", &text[..]].concat(),
        (true, true) => {
            let mut reply = b"E16;".to_vec();
            push_hex(&mut reply, &text);
            reply
        }
        (true, false) => b"E16".to_vec(),
    }
}
