//! Stop replies, and the notifications of non-stop mode, which have the same fields.
//!
//! gdbstub writes no stop reply here. It has no non-stop mode, no core, and no events of ulpf's own. It numbers the child
//! of a `fork:` as a thread of its parent.

use super::packet::push_thread_id;
use super::reason::Reported;
use super::{GdbSession, procfs, registers};
use crate::inferior::{Inferior, Stop, StopReason};
use alloc::vec::Vec;
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
        let told = Reported::of(stop.reason, self.client);
        out.push(b'T');
        push_hex(&mut out, &[told.signal]);
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
            out.extend_from_slice(b"core:");
            push_number(&mut out, u64::from(core));
            out.push(b';');
        }
        out.extend_from_slice(&told.fields);
        if self.client.lldb {
            if !told.lldb.is_empty() {
                out.extend_from_slice(b"reason:");
                out.extend_from_slice(told.lldb);
                out.push(b';');
            }
            if self.client.threads_in_stop {
                push_threads(&mut out, inf, pid, multiprocess);
            }
        }
        out
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
