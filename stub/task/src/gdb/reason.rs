//! Reasons of stops in the protocol's words. A new kind of stop has its row here.

use super::Client;
use super::packet::push_thread_id;
use crate::inferior::StopReason;
use alloc::vec::Vec;
use linux_raw_sys::general as k;
use ulpf_lib::{WatchKind, signals};
use ulpf_rsp::push_number;

const SIGINT: i32 = k::SIGINT as i32;
const SIGTRAP: i32 = k::SIGTRAP as i32;
const SI_KERNEL: i32 = k::SI_KERNEL as i32;
const TRAP_TRACE: i32 = k::TRAP_TRACE as i32;
const TRAP_HWBKPT: i32 = k::TRAP_HWBKPT as i32;

/// The debugger's view of a reason.
pub struct Reported {
    /// Signal in the protocol's numbering.
    pub signal: u8,
    /// The signal that the kernel would have sent a tracer, and its `si_code`. `None`: the thread's own siginfo.
    pub sent: Option<(i32, i32)>,
    /// Fields of the stop reply.
    pub fields: Vec<u8>,
    /// LLDB's word for the reason; empty: LLDB finds one itself.
    pub lldb: &'static [u8],
}

impl Reported {
    pub fn of(reason: StopReason, client: Client) -> Reported {
        let trap = signals::to_gdb(SIGTRAP);
        let by_kernel = Some((SIGTRAP, SI_KERNEL));
        let mut fields = Vec::new();
        let mut field = |name: &[u8], number: u64| {
            fields.extend_from_slice(name);
            push_number(&mut fields, number);
            fields.push(b';');
        };
        let (signal, sent, lldb): (u8, Option<(i32, i32)>, &[u8]) = match reason {
            StopReason::Breakpoint => {
                if client.features.swbreak {
                    fields.extend_from_slice(b"swbreak:;");
                }
                (trap, by_kernel, b"breakpoint")
            }
            StopReason::Stepped => (trap, Some((SIGTRAP, TRAP_TRACE)), b"trace"),
            // LLDB makes its own "watchpoint" out of the watch: pair, whose address has to be that of its request.
            StopReason::Watch { kind, addr, start } => {
                let name: &[u8] = match kind {
                    WatchKind::Write => b"watch:",
                    WatchKind::Read => b"rwatch:",
                    WatchKind::Access => b"awatch:",
                };
                field(name, if client.lldb { start.0 } else { addr.0 });
                (trap, Some((SIGTRAP, TRAP_HWBKPT)), b"")
            }
            StopReason::Signal(n) => (signals::to_gdb(n), None, b"signal"),
            StopReason::HeapError { report } => {
                field(b"ulpfheap:", report.into());
                // LLDB knows no such number, and takes the reason. (The server gives it the description of the error.)
                let signal = if client.lldb {
                    trap
                } else {
                    signals::EXC_BAD_ACCESS
                };
                (signal, None, b"exception")
            }
            StopReason::HeapEnd => {
                fields.extend_from_slice(b"ulpfheapend:;");
                (trap, None, b"signal")
            }
            StopReason::Interrupted => (
                signals::to_gdb(SIGINT),
                Some((SIGINT, SI_KERNEL)),
                b"signal",
            ),
            StopReason::Forked { child, vfork } => {
                let name: &[u8] = if vfork { b"vfork:" } else { b"fork:" };
                fields.extend_from_slice(name);
                push_thread_id(&mut fields, child, child, client.features.multiprocess);
                fields.push(b';');
                (trap, by_kernel, b"")
            }
            StopReason::VforkDone => {
                fields.extend_from_slice(b"vforkdone:;");
                (trap, by_kernel, b"vforkdone")
            }
            StopReason::Traces { number } => {
                field(b"ulpftraces:", u64::from(number as u32));
                (trap, by_kernel, b"")
            }
            StopReason::Syscall { nr, entry } => {
                let name: &[u8] = match entry {
                    true => b"syscall_entry:",
                    false => b"syscall_return:",
                };
                field(name, nr);
                (trap, by_kernel, b"signal")
            }
            StopReason::Created => {
                fields.extend_from_slice(b"create:;");
                (trap, None, b"signal")
            }
            // Non-stop only.
            StopReason::Halted | StopReason::Exits { .. } => (0, None, b"signal"),
        };
        Reported {
            signal,
            sent,
            fields,
            lldb,
        }
    }
}
