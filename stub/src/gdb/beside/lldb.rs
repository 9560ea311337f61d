//! LLDB's extensions (lldb/docs/resources/lldbgdbremote.md).

use super::Served;
use crate::gdb::{GdbSession, packet};
use crate::inferior::Inferior;
use alloc::format;
use alloc::vec::Vec;

/// Marks the client as LLDB at its first own packet.
pub fn serve(session: &mut GdbSession, _inf: &mut dyn Inferior, payload: &[u8]) -> Option<Served> {
    let served = match payload {
        b"qHostInfo" => Served::Reply(host_info()),
        b"qProcessInfo" => Served::Reply(process_info(session.debuggee.pid)),
        b"QListThreadsInStopReply" => {
            session.client.threads_in_stop = true;
            Served::ok()
        }
        b"QEnableErrorStrings" => {
            session.client.error_strings = true;
            Served::ok()
        }
        _ => return None,
    };
    session.client.lldb = true;
    session.debuggee.linux_signals = true;
    Some(served)
}

const TRIPLE: &[u8] = b"x86_64-unknown-linux-gnu";

fn host_info() -> Vec<u8> {
    let mut reply = b"triple:".to_vec();
    packet::push_hex(&mut reply, TRIPLE);
    reply.extend_from_slice(b";ptrsize:8;watchpoint_exceptions_received:after;endian:little;");
    reply
}

fn process_info(pid: i32) -> Vec<u8> {
    let mut reply = format!("pid:{pid:x};triple:").into_bytes();
    packet::push_hex(&mut reply, TRIPLE);
    reply.extend_from_slice(b";ostype:linux;endian:little;ptrsize:8;");
    reply
}
