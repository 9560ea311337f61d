//! Handles one fault: finds its owner and the accesses, performs the instruction, and calls the watches' handlers.
//!
//! ```text
//! fault ─▶ a guard of ours? ─▶ the thesis's handler ─▶ accesses ─▶ old values ─▶ perform through
//!            │ no                (before the access)                             the alias ─▶ hits
//!            ▼                                                                    ─▶ watches' handlers
//!   the program's own handler                                                        (after it)
//! ```
//! Rules of this file and of those that it calls: `callbacks.rs`, `change.rs`, `code.rs`, `hits.rs`, `memory.rs`,
//! `registers.rs`, `slow.rs`, `stub_link.rs`, `stub_report.rs`.
//! * No allocation, no lock but `enter`, no thread-local storage, no panics.
//! * libc is used only around the program's own functions.
//! * errno is kept.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_engine::access::AccessList;
use ulpf_engine::exec::{FaultInfo, Outcome};
use ulpf_engine::frame::{SigInfo, UContext};
use ulpf_lib::TargetAddr;
use ulpf_lib::guard::Fault;
use ulpf_lib::sys;

use crate::backend::{self, Backend};
use crate::callbacks::{after_access, before_access};
use crate::change;
use crate::code::{code_at, gs_base};
use crate::exception_stacks::OwnBlock;
use crate::hits::Pending;
use crate::keys;
use crate::mask::{self, SIGSEGV, SIGTRAP};
use crate::registers;
use crate::shared::{Engine, S, Unchanging};
use crate::signals::{self, chain, raise};
use crate::slow;
use crate::stub_link::Map;
use crate::stub_report;
use crate::thread;

/// `si_code` of a fault that a protection has caused.
const SEGV_ACCERR: i32 = k::SEGV_ACCERR as i32;
const SEGV_MAPERR: i32 = k::SEGV_MAPERR as i32;
/// Iterations of a string instruction that one fault may serve, so that signals get their turn.
const MAX_REPEATS: u32 = 1 << 16;

pub fn handle(signo: i32, info: &mut SigInfo, uc: &mut UContext) {
    let Some(own) = OwnBlock::here() else {
        // Without a stack only signals that are not ours can be handled.
        return chain(signo, info, uc);
    };
    let (sp, size) = own.signal_stack();
    if uc.stack.sp != sp {
        own.install();
        (uc.stack.sp, uc.stack.size, uc.stack.flags) = (sp, size, 0);
    }
    if !own.contains(uc.gprs.rsp) {
        own.outermost();
    }
    if own.puts_off(signo, info) {
        return;
    }
    let what = FaultInfo::of(info, uc);
    let Some(engine) = S.engine() else {
        return chain(signo, info, uc);
    };
    if info.by_kernel() && engine.thunks.recover(&mut uc.gprs, what) {
        return;
    }
    if signo == SIGTRAP && own.is_stepping() {
        return slow::finish(own, uc);
    }
    if signo == SIGTRAP && registers::trapped(own, uc, info) {
        return;
    }
    let guard = match info.code {
        SEGV_ACCERR | keys::SEGV_PKUERR => true,
        // For accesses that the device's mapping refuses the kernel reports SEGV_MAPERR.
        SEGV_MAPERR => backend::is(Backend::Device),
        _ => false,
    };
    if signo == SIGSEGV && guard && !uc.fetches() {
        if own.block().performing.load(Relaxed) != 0 && own.contains(uc.gprs.rsp) {
            overrun();
        }
        if serve(own, engine, uc, info) {
            return;
        }
    }
    slow::cancel(own, uc);
    chain(signo, info, uc);
}

/// We have met a guard ourselves: in a static program our data lies among the program's.
fn overrun() -> ! {
    let text = b"libulpf: a watch covers the library's own data, so a fault cannot be served; \
        link with libulpf.so instead of libulpf.a\n";
    // SAFETY: writes a constant, then ends the process.
    unsafe {
        let _ = sys!(k::__NR_write, k::STDERR_FILENO, text.as_ptr(), text.len());
        let _ = kill_self();
    }
    loop {
        core::hint::spin_loop();
    }
}

/// # Safety
/// Ends the process.
unsafe fn kill_self() -> Result<u64, sys::Errno> {
    const SIGABRT: i32 = k::SIGABRT as i32;
    let default = signals::Action::default();
    let _ = signals::kernel_action(SIGABRT, Some(&default));
    mask::set(0);
    // SAFETY: the caller's wish.
    unsafe { sys!(k::__NR_kill, sys!(k::__NR_getpid).unwrap_or(0), SIGABRT) }
}

/// Returns `false` if the fault is the program's own.
fn serve(own: OwnBlock, engine: &'static Engine, uc: &mut UContext, info: &SigInfo) -> bool {
    let mut at = TargetAddr(info.addr());
    let kind = uc.access();
    for repeat in 0..MAX_REPEATS {
        let still = change::enter(own);
        if repeat == 0 {
            let verdict = S.table.pages.fault(at, kind);
            // Pages in the middle of our own change may already be guarded without an entry that says so.
            let ours = verdict == Fault::Stale && S.is_changer();
            if verdict != Fault::Guarded && !ours {
                change::leave(own, still);
                if info.code == keys::SEGV_PKUERR && keys::set_frame(uc, false) {
                    return true; // the thread's PKRU did not have our keys
                }
                return again(own, uc.gprs.rip, at.0);
            }
            S.faults.fetch_add(1, Relaxed);
        }
        match one(own, still, engine, uc, &mut at, repeat) {
            Next::Done => return true,
            Next::Again => {}
            Next::Fault(what) => {
                uc.err = what.error;
                slow::cancel(own, uc);
                raise(what.signo, &what.siginfo(), uc);
                return true;
            }
        }
    }
    true
}

/// A fault that no guard explains may come from a guard that has just been lifted. It is the program's own only if it
/// recurs while nothing has changed.
fn again(own: OwnBlock, pc: u64, addr: u64) -> bool {
    let now = (pc, addr, S.table.generation.load(SeqCst));
    let seen = own.foreign.get() == now;
    own.foreign.set(if seen { (0, 0, 0) } else { now });
    !seen
}

enum Next {
    Done,
    Again,
    Fault(FaultInfo),
}

/// The instruction, or one iteration of it; between `enter` and (on return) `leave`.
fn one(
    own: OwnBlock,
    mut still: Unchanging,
    engine: &'static Engine,
    uc: &mut UContext,
    at: &mut TargetAddr,
    repeat: u32,
) -> Next {
    let pc = uc.gprs.rip;
    let mut bytes = [0u8; 15];
    let n = code_at(pc, &mut bytes);
    let code = bytes.get(..n).unwrap_or(&[]);
    let Ok(site) = engine.thunks.site(&engine.decoder, pc, code) else {
        slow::begin(own, still, uc, *at, None);
        return Next::Done;
    };
    let (fs_base, gs_base) = (thread::pointer(), gs_base(code));
    let mut list = AccessList::new();
    // SAFETY: the frame's own image.
    let mut cpu = unsafe { uc.cpu(fs_base, gs_base) };
    site.insn.accesses(&cpu, &mut list);
    if list.overflowed() || !site.insn.accesses_known() {
        slow::begin(own, still, uc, *at, None);
        return Next::Done;
    }
    if repeat > 0 {
        let Some(guarded) = list.first_guarded(&S.table.pages) else {
            change::leave(own, still);
            return Next::Done; // the rest runs by itself
        };
        *at = guarded;
        S.faults.fetch_add(1, Relaxed);
    }
    let mut pending = Pending::new(pc);
    pending.collect(&still, &list);
    if !pending.watched {
        S.false_positives.fetch_add(1, Relaxed);
    }
    if S.user_handler.load(Acquire) != 0 {
        if own.depth.get() > 0 {
            S.nested.fetch_add(1, Relaxed);
        } else {
            change::leave(own, still);
            before_access(own, uc, at.0, pending.watched);
            still = change::enter(own);
            if list.first_guarded(&S.table.pages).is_none() {
                // The handler has opened the page.
                change::leave(own, still);
                return Next::Done;
            }
            // The handler may have written to the bytes that the access is about to change.
            pending = Pending::new(pc);
            pending.collect(&still, &list);
            // SAFETY: as above.
            cpu = unsafe { uc.cpu(fs_base, gs_base) };
        }
    }
    let kept = stub_report::save_old(own, &still, &list);
    match engine.thunks.execute(site, &mut cpu, &Map) {
        Outcome::NeedSlow(_) => {
            slow::begin(own, still, uc, *at, Some(&list));
            Next::Done
        }
        Outcome::Fault(what) => {
            change::leave(own, still);
            Next::Fault(what)
        }
        done => {
            pending.made(&still);
            change::leave(own, still);
            let due = stub_report::instruction(own, pc, &raw const *uc as u64, &list, kept);
            let stop = after_access(own, uc.sigmask, uc, &pending) || due;
            if matches!(done, Outcome::Repeat) && !stop {
                Next::Again
            } else {
                Next::Done
            }
        }
    }
}
