//! LLDB's extensions (lldb/docs/resources/lldbgdbremote.md). gdbstub has traits for two of them, which lack fields.
//! `qHostInfo` cannot say that a watchpoint reports after the access. `qProcessInfo` has no system, and a decimal process
//! number. Tests: `tests/lldb`.

use super::{Served, libraries};
use crate::gdb::{GdbSession, procfs};
use crate::inferior::Inferior;
use alloc::format;
use alloc::vec::Vec;
use ulpf_lib::guard::{PROT_EXEC, PROT_READ, PROT_WRITE};
use ulpf_lib::mapping::{Mapping, mappings};
use ulpf_lib::{PAGE_SIZE, TargetAddr};
use ulpf_rsp::{hex_number, push_hex, push_number};

/// Marks the client as LLDB at its first own packet.
pub fn serve(session: &mut GdbSession, inf: &mut dyn Inferior, payload: &[u8]) -> Option<Served> {
    let pid = session.debuggee.pid;
    let served = match payload {
        b"qHostInfo" => Served::Reply(host_info()),
        b"qProcessInfo" => Served::Reply(process_info(pid)),
        b"QListThreadsInStopReply" => {
            session.client.threads_in_stop = true;
            Served::Ok
        }
        b"QEnableErrorStrings" => {
            session.client.error_strings = true;
            Served::Ok
        }
        b"qShlibInfoAddr" => match libraries::r_debug_location(inf) {
            Some(at) => {
                let mut reply = Vec::new();
                push_number(&mut reply, at);
                Served::Reply(reply)
            }
            None => Served::error(),
        },
        // Any large number: LLDB sets no more watches than this.
        b"qWatchpointSupportInfo:" | b"qWatchpointSupportInfo" => Served::text("num:65536;"),
        b"qMemoryRegionInfo:" => Served::Ok,
        _ => match payload.strip_prefix(b"qMemoryRegionInfo:") {
            Some(addr) => memory_region(inf, addr).map_or_else(Served::error, Served::Reply),
            None => return None,
        },
    };
    session.client.lldb = true;
    Some(served)
}

const TRIPLE: &[u8] = b"x86_64-unknown-linux-gnu";

fn host_info() -> Vec<u8> {
    let mut reply = b"triple:".to_vec();
    push_hex(&mut reply, TRIPLE);
    reply.extend_from_slice(b";ptrsize:8;watchpoint_exceptions_received:after;endian:little;");
    reply
}

fn process_info(pid: i32) -> Vec<u8> {
    let mut reply = format!("pid:{pid:x};triple:").into_bytes();
    push_hex(&mut reply, TRIPLE);
    reply.extend_from_slice(b";ostype:linux;endian:little;ptrsize:8;");
    reply
}

/// The mapping that holds the address, or the hole around it, with the program's own permissions.
fn memory_region(inf: &mut dyn Inferior, addr: &[u8]) -> Option<Vec<u8>> {
    let addr = hex_number(addr)?;
    let maps = procfs::read(inf.pid(), "maps")?;
    let mut hole = 0;
    let mut reply = Vec::new();
    for map in mappings(&maps) {
        if addr < map.start {
            region(&mut reply, hole, map.start);
            return Some(reply);
        }
        if addr < map.end {
            mapped(inf, &mut reply, addr, &map);
            return Some(reply);
        }
        hole = map.end;
    }
    region(&mut reply, hole, 0);
    Some(reply)
}

/// Guarded memory has the name of our memory file and the permissions of its guards in the kernel's
/// table; what the debugger should see differs page by page.
fn mapped(inf: &mut dyn Inferior, reply: &mut Vec<u8>, addr: u64, map: &Mapping<'_>) {
    let Some(own) = inf.page_protection(TargetAddr(addr)) else {
        region(reply, map.start, map.end);
        permissions(reply, map.prot);
        if !map.name.is_empty() {
            reply.extend_from_slice(b"name:");
            push_hex(reply, map.name);
            reply.push(b';');
        }
        return;
    };
    let same = |page: u64| inf.page_protection(TargetAddr(page)) == Some(own);
    let page = TargetAddr(addr).page().0;
    let (mut start, mut end) = (page, page + PAGE_SIZE);
    while start > map.start && same(start - PAGE_SIZE) {
        start -= PAGE_SIZE;
    }
    while end < map.end && same(end) {
        end += PAGE_SIZE;
    }
    region(reply, start, end);
    permissions(reply, own);
}

/// `permissions:rw;`
fn permissions(reply: &mut Vec<u8>, prot: u8) {
    const RWX: [(u8, u8); 3] = [(PROT_READ, b'r'), (PROT_WRITE, b'w'), (PROT_EXEC, b'x')];
    reply.extend_from_slice(b"permissions:");
    reply.extend(
        RWX.iter()
            .filter(|(bit, _)| prot & bit != 0)
            .map(|(_, letter)| letter),
    );
    reply.push(b';');
}

/// `start:…;size:…;`; an `end` of 0 is the end of the address space.
fn region(reply: &mut Vec<u8>, start: u64, end: u64) {
    reply.extend_from_slice(b"start:");
    push_number(reply, start);
    reply.extend_from_slice(b";size:");
    push_number(reply, end.wrapping_sub(start));
    reply.push(b';');
}
