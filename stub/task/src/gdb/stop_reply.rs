//! Stop replies, and the notifications of non-stop mode, which have the same fields.
//!
//! gdbstub writes no stop reply here. It has no non-stop mode, no core, and no events of ulpf's own. It numbers the child
//! of a `fork:` as a thread of its parent.

use super::packet::push_thread_id;
use super::{Client, GdbSession, procfs, registers};
use crate::inferior::{Inferior, Stop, StopReason};
use alloc::vec::Vec;
use linux_raw_sys::general as k;
use ulpf_lib::{WatchKind, signals};
use ulpf_rsp::registers::{Place, RBP, RIP, RSP};
use ulpf_rsp::{push_hex, push_number};

impl GdbSession {
    /// `T05thread:…;…`, or `w00;…` for a thread that ends.
    pub(super) fn stop_reply(&self, inf: &mut dyn Inferior, stop: Stop) -> Vec<u8> {
        let pid = self.debuggee.pid;
        let multiprocess = self.client.features.multiprocess;
        let mut out = Vec::new();
        if let StopReason::Exits { status } = stop.reason {
            out.push(b'w');
            push_hex(&mut out, &[status as u8]);
            out.push(b';');
            push_thread_id(&mut out, pid, stop.tid, multiprocess);
            return out;
        }
        out.push(b'T');
        push_hex(&mut out, &[number_of(stop.reason, self.client.lldb)]);
        out.extend_from_slice(b"thread:");
        push_thread_id(&mut out, pid, stop.tid, multiprocess);
        out.push(b';');
        // The registers that every debugger asks for first. (A stop is reported even without them.)
        for number in [RBP, RSP, RIP] {
            let mut value = [0; 8];
            if registers::read(inf, stop.tid, Place::Gpr(number), &mut value).is_some() {
                push_hex(&mut out, &[number as u8]);
                out.push(b':');
                push_hex(&mut out, &value);
                out.push(b';');
            }
        }
        if let Some(core) = procfs::core_of(inf, pid, stop.tid) {
            push_field(&mut out, b"core:", u64::from(core));
        }
        push_reason(&mut out, stop.reason, self.client);
        if self.client.lldb {
            out.extend_from_slice(lldb_reason(stop.reason));
            if self.client.threads_in_stop {
                push_threads(&mut out, inf, pid, multiprocess);
            }
        }
        out
    }
}

/// `NAME:VALUE;`
fn push_field(out: &mut Vec<u8>, name: &[u8], value: u64) {
    out.extend_from_slice(name);
    push_number(out, value);
    out.push(b';');
}

fn push_reason(out: &mut Vec<u8>, reason: StopReason, client: Client) {
    let name: &[u8] = match reason {
        StopReason::Breakpoint if client.features.swbreak => b"swbreak:;",
        StopReason::Watch { kind, addr } => {
            let name: &[u8] = match kind {
                WatchKind::Write => b"watch:",
                WatchKind::Read => b"rwatch:",
                WatchKind::Access => b"awatch:",
            };
            return push_field(out, name, addr.0);
        }
        StopReason::Forked { child, vfork } => {
            out.extend_from_slice(if vfork { b"vfork:" } else { b"fork:" });
            push_thread_id(out, child, child, client.features.multiprocess);
            b";"
        }
        StopReason::VforkDone => b"vforkdone:;",
        StopReason::Traces { number } => {
            return push_field(out, b"ulpftraces:", u64::from(number as u32));
        }
        StopReason::HeapError { report } => return push_field(out, b"ulpfheap:", report.into()),
        StopReason::HeapEnd => b"ulpfheapend:;",
        StopReason::Created => b"create:;",
        StopReason::Syscall { nr, entry: true } => return push_field(out, b"syscall_entry:", nr),
        StopReason::Syscall { nr, entry: false } => return push_field(out, b"syscall_return:", nr),
        StopReason::Breakpoint
        | StopReason::Stepped
        | StopReason::Signal(_)
        | StopReason::Interrupted
        | StopReason::Halted
        | StopReason::Exits { .. } => b"",
    };
    out.extend_from_slice(name);
}

fn lldb_reason(reason: StopReason) -> &'static [u8] {
    match reason {
        StopReason::Breakpoint => b"reason:breakpoint;",
        StopReason::Stepped => b"reason:trace;",
        // LLDB makes its own "watchpoint" out of the watch: pair.
        StopReason::Watch { .. } | StopReason::Forked { .. } | StopReason::Traces { .. } => b"",
        StopReason::VforkDone => b"reason:vforkdone;",
        // (The server gives LLDB the description of the error.)
        StopReason::HeapError { .. } => b"reason:exception;",
        StopReason::Signal(_)
        | StopReason::HeapEnd
        | StopReason::Interrupted
        | StopReason::Syscall { .. }
        | StopReason::Halted
        | StopReason::Created
        | StopReason::Exits { .. } => b"reason:signal;",
    }
}

/// `threads:TID,TID…;thread-pcs:PC,PC…;`
fn push_threads(out: &mut Vec<u8>, inf: &mut dyn Inferior, pid: i32, multiprocess: bool) {
    let threads = inf.threads();
    out.extend_from_slice(b"threads:");
    for (i, tid) in threads.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        push_thread_id(out, pid, *tid, multiprocess);
    }
    out.extend_from_slice(b";thread-pcs:");
    for (i, tid) in threads.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        push_number(out, inf.gprs(*tid).map_or(0, |g| g.rip));
    }
    out.push(b';');
}

/// The signal of a stop in the protocol's numbering.
pub fn number_of(reason: StopReason, lldb: bool) -> u8 {
    const SIGINT: i32 = k::SIGINT as i32;
    const SIGTRAP: i32 = k::SIGTRAP as i32;
    signals::to_gdb(match reason {
        // LLDB knows no such number, and takes the reason.
        StopReason::HeapError { .. } if !lldb => return signals::EXC_BAD_ACCESS,
        StopReason::Signal(n) => n,
        StopReason::Interrupted => SIGINT,
        StopReason::Halted | StopReason::Exits { .. } => 0,
        _ => SIGTRAP,
    })
}
