//! The protocol layer's (`gdb/`) interface to the running program; `control/` provides it.
//!
//! All-stop: between a reported [`Stop`] and the next [`Inferior::resume`] every thread of the program is parked, and
//! only then may the other methods be called. Non-stop ([`Inferior::set_non_stop`]): a reported [`Stop`] is that of one
//! thread, while the others run. Then the methods may be called at any time; a method that needs all threads stopped
//! stops them for a moment. Everything here runs on the stub's own task, which may allocate (own arena) but never calls
//! libc.

use alloc::string::String;
use alloc::vec::Vec;
use ulpf_engine::cpu::Gprs;
use ulpf_lib::sys::Errno;
use ulpf_lib::{TargetAddr, WatchKind, WatchRange};

pub use ulpf_stub_handlers::runtime::events::{Resume, Tid};
pub use ulpf_stub_tables::breakpoints::AgentExpr;

/// Why the program has stopped. `Tid` is the thread that the debugger should select.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    pub tid: Tid,
    pub reason: StopReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Software breakpoint; PC already points at the breakpoint's address.
    Breakpoint,
    /// A requested single step (or range step) is complete.
    Stepped,
    /// `addr` lies inside the watched range, which begins at `start`; PC is after the instruction.
    Watch {
        kind: WatchKind,
        addr: TargetAddr,
        start: TargetAddr,
    },
    /// A signal is about to be delivered to the thread (Linux numbering). It is delivered when the
    /// thread is resumed with `Resume::signal == Some(signo)`, and discarded when with `None`.
    Signal(i32),
    /// An error of the checked heap: the number of its report among the findings.
    HeapError {
        report: u32,
    },
    /// The program ends, and what its checked heap has come to is known.
    HeapEnd,
    /// The debugger's interrupt request (0x03) was served.
    Interrupted,
    /// The thread has made a child process, which waits; a vfork child shares our memory.
    Forked {
        child: Tid,
        vfork: bool,
    },
    VforkDone,
    /// The thread is about to take hold of this process or thread (ptrace), or to be taken hold of by its parent (0).
    Traces {
        number: Tid,
    },
    /// A system call that is caught.
    Syscall {
        nr: u64,
        entry: bool,
    },
    /// Non-stop: the debugger has asked for it (`vCont;t`).
    Halted,
    /// Non-stop: the thread is new (`QThreadEvents`).
    Created,
    /// Non-stop: the thread ends, and does not wait for the debugger (`QThreadEvents`).
    Exits {
        status: i32,
    },
}

pub use ulpf_lib::Refusal;

pub trait Inferior {
    fn pid(&self) -> i32;
    /// All live program threads, oldest first.
    fn threads(&self) -> Vec<Tid>;

    /// General registers, with the original PC even when the thread is stopped inside stub code.
    fn gprs(&mut self, tid: Tid) -> Option<&mut Gprs>;
    /// Standard-format XSAVE image of the thread (see `ulpf_engine::cpu::Cpu::xsave`).
    fn xsave(&mut self, tid: Tid) -> Option<&mut [u8]>;
    fn fs_gs_base(&self, tid: Tid) -> Option<(u64, u64)>;
    fn set_fs_gs_base(&mut self, tid: Tid, fs: u64, gs: u64) -> Result<(), Errno>;
    /// System call number while the thread is stopped in a system call, else -1 (GDB's orig_rax).
    fn orig_rax(&self, tid: Tid) -> i64;
    /// siginfo_t (128 bytes) of the signal that stopped the thread.
    fn siginfo(&mut self, tid: Tid) -> Option<&mut [u8; 128]>;
    /// Thread name (comm).
    fn thread_name(&self, tid: Tid) -> String;

    /// The processor that the thread ran on last, if that is known without asking the kernel.
    fn core(&self, _tid: Tid) -> Option<u32> {
        None
    }

    /// Reads what the program would read with all breakpoints and patches hidden; guards do not
    /// matter. Returns the number of bytes read before the first unreadable one.
    fn read_memory(&mut self, addr: TargetAddr, buf: &mut [u8]) -> usize;
    fn write_memory(&mut self, addr: TargetAddr, data: &[u8]) -> Result<(), Errno>;

    /// Returns whether each of the program's threads is parked, and none is in a system call. Then only the debugger
    /// changes its registers, threads and private memory while it is stopped.
    fn is_steady(&self) -> bool {
        false
    }
    /// Returns whether no other process has mapped `[addr, addr + len)`.
    fn is_private(&mut self, _addr: TargetAddr, _len: u64) -> bool {
        false
    }

    /// Protection (`PROT_*` bits) that the program believes the page to have, where the kernel's
    /// own tables say something else because of us.
    fn page_protection(&self, _addr: TargetAddr) -> Option<u8> {
        None
    }

    /// Inserts an int3 (kept hidden from `read_memory`). With conditions, the program stops only if
    /// one of them is nonzero or fails to evaluate. Inserting again replaces the conditions. A `hardware`
    /// breakpoint is taken where no memory is, and waits for code.
    fn insert_breakpoint(
        &mut self,
        addr: TargetAddr,
        conditions: Vec<AgentExpr>,
        hardware: bool,
    ) -> Result<(), Refusal>;
    /// Sees to it that one that is inserted is in place: the program may have written to it since.
    fn renew_breakpoint(&mut self, _addr: TargetAddr) {}
    fn remove_breakpoint(&mut self, addr: TargetAddr) -> bool;

    /// Stages a watch. Guards follow at the next resume, all at once, and only where the set differs from what is
    /// armed. (GDB removes and inserts every watch at every stop.)
    fn insert_watch(&mut self, range: WatchRange, kind: WatchKind) -> Result<(), Refusal>;
    fn remove_watch(&mut self, range: WatchRange, kind: WatchKind) -> bool;

    /// System calls to stop at, before and after them: none, all (an empty list), or these.
    fn set_catch_syscalls(&mut self, _on: bool, _numbers: &[u64]) {}

    /// Signals (bit n-1 = signal n, Linux numbering) that are delivered without a stop.
    fn set_pass_signals(&mut self, mask: u64);

    /// Resumes: `action(tid)` says how each thread goes on (new threads continue).
    fn resume(&mut self, action: &dyn Fn(Tid) -> Resume);
    /// Asks for a stop (0x03); a [`Stop`] with `Interrupted` follows unless another comes first.
    fn interrupt(&mut self);

    /// Begins non-stop mode, with every thread stopped, or ends it, which stops every thread.
    fn set_non_stop(&mut self, _on: bool) {}
    /// Non-stop: the thread is stopped. (One whose stop is still to be reported is not.)
    fn is_stopped(&self, _tid: Tid) -> bool {
        true
    }
    /// Non-stop: stopped threads go on as `how` says; the others, and those that it does not name, are left as they
    /// are.
    fn resume_some(&mut self, _how: &dyn Fn(Tid) -> Option<Resume>) {}
    /// Non-stop: stops running threads, and returns those that have stopped. A thread that has an event is left out:
    /// its own [`Stop`] follows.
    fn stop_some(&mut self, _which: &dyn Fn(Tid) -> bool) -> Vec<Tid> {
        Vec::new()
    }
    /// Non-stop: this stop has not reached a debugger, and is to be reported again.
    fn report_again(&mut self, _stop: Stop) {}
    /// Threads that begin and end are reported ([`StopReason::Created`], [`StopReason::Exits`]).
    fn set_thread_events(&mut self, _on: bool) {}
    /// A thread runs alone; no other thread may go on, or stop, before it is done.
    fn is_busy(&self) -> bool {
        false
    }

    /// Sets the events that the command offers to follow: a list of `exec`, `fork`, `vfork`.
    fn follow(&mut self, _what: &[u8]) {}
    /// A forked child that waits may go on.
    fn release_child(&mut self, _child: Tid) {}
    /// Sets whether a thread that has forked returns from fork when it goes on (`vUlpfForkHold`).
    fn hold_fork(&mut self, _yes: bool) {}
    /// Counts a stopped vfork child among the threads, or no longer. `false`: there is no such child.
    fn adopt_child(&mut self, _child: Tid, _yes: bool) -> bool {
        false
    }
    /// Passes the command's message to a thread that waits to exec (`vUlpfExec;…`).
    fn exec_word(&mut self, _word: &[u8]) {}
    /// Removes everything of ours and lets the program go on. `is_woken`: the client sends SIGCONT if a signal has stopped
    /// the program.
    fn detach(&mut self, is_woken: bool);
    /// Kills the program (SIGKILL).
    fn kill(&mut self);

    /// `monitor …`: the text of the command to `out` (what GDB prints). `false`: unknown command.
    fn monitor(&mut self, command: &str, out: &mut dyn core::fmt::Write) -> bool;
}

/// Of a watch on bytes that are no range.
pub fn no_range(addr: u64, len: u64) -> Refusal {
    Refusal {
        what: alloc::format!("cannot watch {len} bytes at {addr:#x}"),
        why: match len {
            0 => "the range is empty".into(),
            _ => "the range ends above the address space".into(),
        },
        what_to_do: "watch an object that has a size and an address".into(),
    }
}
