//! Completes gdbstub's answers: features served beside it, the rest of a stop reply, the text of a refusal.

use super::reason::Reported;
use super::{Client, packet, procfs};
use crate::inferior::{Inferior, Refusal, Stop};
use alloc::format;
use alloc::vec::Vec;

/// The payload of the first frame in `raw`.
pub fn payload(raw: &[u8]) -> &[u8] {
    let start = raw
        .iter()
        .position(|b| *b == b'$')
        .map_or(raw.len(), |i| i + 1);
    let len = raw[start..].iter().position(|b| *b == b'#').unwrap_or(0);
    &raw[start..start + len]
}

/// gdbstub's feature list with what is served in `beside/` (and no-ack mode, the server's). Our
/// packet size replaces the size of gdbstub's buffer, and its stray comma goes.
pub fn features(reply: &[u8]) -> Vec<u8> {
    let mut all = format!("PacketSize={:x}", packet::PACKET_SIZE).into_bytes();
    for feature in reply.split(|b| *b == b';') {
        if !feature.starts_with(b"PacketSize=") && !feature.starts_with(b"QStartNoAckMode") {
            all.push(b';');
            all.extend(feature.iter().filter(|b| **b != b','));
        }
    }
    all.extend_from_slice(
        concat!(
            ";QStartNoAckMode+;QPassSignals+;QCatchSyscalls+;QProgramSignals+;ConditionalBreakpoints+",
            ";qXfer:features:read+;qXfer:threads:read+;qXfer:auxv:read+;qXfer:exec-file:read+",
            ";qXfer:siginfo:read+;qXfer:siginfo:write+",
            ";qXfer:libraries-svr4:read+;augmented-libraries-svr4-read+",
            ";QNonStop+;QThreadEvents+;no-resumed+",
            ";binary-upload+;error-message+"
        )
        .as_bytes(),
    );
    all
}

/// GDB 13 only sees "an error", newer versions and LLDB show the text.
pub fn refusal(r: &Refusal, client: Client) -> Vec<u8> {
    let mut text = Vec::new();
    for part in [&*r.what, ": ", &r.why, "; ", &r.what_to_do] {
        text.extend(
            part.bytes()
                .filter(|b| !matches!(b, b'#' | b'$' | b'}' | b'*')),
        );
    }
    let mut reply = Vec::new();
    match (client.lldb, client.error_strings) {
        (false, _) => {
            reply.extend_from_slice(b"E.");
            reply.extend_from_slice(&text);
        }
        (true, true) => {
            reply.extend_from_slice(b"E16;");
            packet::push_hex(&mut reply, &text);
        }
        (true, false) => reply.extend_from_slice(b"E16"),
    }
    reply
}

/// Appends the core, and for LLDB the reason and the list of threads.
pub fn stop_reply(
    reply: &mut Vec<u8>,
    inf: &mut dyn Inferior,
    stop: Stop,
    client: Client,
    pid: i32,
) {
    if let Some(core) = procfs::core_of(inf, pid, stop.tid) {
        reply.extend_from_slice(b"core:");
        packet::push_num(reply, u64::from(core));
        reply.push(b';');
    }
    let told = Reported::of(stop.reason, client);
    reply.extend_from_slice(&told.fields);
    if client.lldb {
        if !told.lldb.is_empty() {
            reply.extend_from_slice(b"reason:");
            reply.extend_from_slice(told.lldb);
            reply.push(b';');
        }
        if client.threads_in_stop {
            threads(reply, inf, pid, client.features.multiprocess);
        }
    }
}

/// `threads:TID,TID…;thread-pcs:PC,PC…;`
fn threads(reply: &mut Vec<u8>, inf: &mut dyn Inferior, pid: i32, multiprocess: bool) {
    let threads = inf.threads();
    reply.extend_from_slice(b"threads:");
    for (i, tid) in threads.iter().enumerate() {
        if i > 0 {
            reply.push(b',');
        }
        packet::thread_id(reply, pid, *tid, multiprocess);
    }
    reply.extend_from_slice(b";thread-pcs:");
    for (i, tid) in threads.iter().enumerate() {
        if i > 0 {
            reply.push(b',');
        }
        packet::push_num(reply, inf.gprs(*tid).map_or(0, |g| g.rip));
    }
    reply.push(b';');
}
