//! Raises a signal on a thread: for the library by which the program watches itself, for the debugger, or for the
//! program.

use core::cell::Cell;
use core::sync::atomic::Ordering::*;

use super::delivery::deliver;
use super::kernel;
use super::masks::close;
use super::numbers::{SIG_DFL, SIG_IGN, SIGSEGV, SIGTRAP};
use crate::global::g;
use crate::library::{self, Whose};
use crate::patches;
use crate::runtime::events::Event;
use crate::runtime::frame::{SigInfo, UContext};
use crate::runtime::park::{self, park};
use crate::runtime::thread::{Current, DEFERRED};
use crate::runtime::tracer;
use linux_raw_sys::general as k;

const TRAP_TRACE: i32 = k::TRAP_TRACE as i32;

/// As `ulpf_late` (`entry.rs`), in a handler that has blocked signals.
pub fn late(t: Current, uc: &mut UContext) {
    if t.own().own_step.get().is_some() {
        // The world is stopped for its step, so it must not park itself, and the frame is not the program's:
        // `own_step_made` comes back here.
        return;
    }
    t.attention.store(0, SeqCst);
    // A thread on the way to a copy lands again.
    patches::leave(t, uc);
    if t.own().deferred_len.get() > 0 {
        deliver_deferred(t, uc);
    }
    if t.gate().must_rest(&g().world) && !tracer::holds(t) {
        park(t, uc, Event::None);
    }
}

/// Raises a signal on this thread: for the debugger first, if it wants to be notified, then for the program.
pub fn raise(t: Current, uc: &mut UContext, sig: i32, info: &SigInfo) {
    close(t, uc);
    match library::whose(t, uc, sig, info) {
        Whose::Program => {}
        Whose::Library => return library::deliver(t, uc, sig, info),
        Whose::Nobody => return,
    }
    let i = t.own();
    // In the middle of a step the debugger wants every signal: it decides whether the step continues behind the handler
    // (as in gdbserver's linux-low.cc, wait_1).
    let within_step = t.stepping.load(Relaxed);
    let ordered = t
        .ordered_signal
        .compare_exchange(sig, 0, SeqCst, SeqCst)
        .is_ok();
    let made_up = park::sent_by_debugger(t, sig);
    let info = if ordered { &made_up } else { info };
    // A breakpoint where no code can be executed (the return address of a called function, on the stack): GDB
    // recognises it by this signal, whatever other signals it wants.
    let breakpoint = info.by_kernel()
        && sig == SIGSEGV
        && info.addr() == uc.gprs.rip
        && g().breakpoint_at(uc.gprs.rip).is_some();
    let wanted = g().wants_stop(sig) || within_step || breakpoint;
    if wanted && !ordered && t.is_debugged() {
        i.info.set(*info);
        park::end_step(t, uc);
        park(t, uc, Event::Signal(sig));
        return;
    }
    if within_step {
        park::set_tf(uc, false); // not in the frame that the program returns to
    }
    if deliver(t, uc, sig, info) && within_step {
        t.stepping.store(false, Relaxed);
        park(t, uc, Event::Stepped);
    } else if within_step {
        park::set_tf(uc, true);
    }
}

/// True if signals have arrived while our own code ran, and the program has no handler for any of them.
pub fn none_is_handled(t: Current) -> bool {
    let i = t.own();
    let n = i.deferred_len.get().min(DEFERRED);
    let of = |info: &Cell<SigInfo>| kernel::actions(t).get(info.get().signo).handler;
    let mut arrived = i.deferred.iter().take(n);
    n > 0 && arrived.all(|info| matches!(of(info), SIG_DFL | SIG_IGN))
}

/// Delivers signals that arrived while our own code ran.
pub fn deliver_deferred(t: Current, uc: &mut UContext) {
    let i = t.own();
    let n = i.deferred_len.get().min(DEFERRED);
    i.deferred_len.set(0);
    // Raising one signal may take others.
    let batch = i.deferred.each_ref().map(|info| info.get());
    for info in batch.iter().take(n) {
        raise(t, uc, info.signo, info);
    }
}

/// Delivers signals that the program has unblocked meanwhile.
pub fn deliver_waiting(t: Current, uc: &mut UContext) {
    while !t.leaving.load(Relaxed) {
        let Some(info) = t.own().waiting.take(!t.own().hidden.get()) else {
            return;
        };
        raise(t, uc, info.signo, &info);
    }
}

/// We have performed an instruction of a program that steps itself: raises its trap.
pub fn own_trap(t: Current, uc: &mut UContext) {
    let mut info = SigInfo {
        signo: SIGTRAP,
        code: TRAP_TRACE,
        ..SigInfo::zeroed()
    };
    info.data[0] = uc.gprs.rip;
    raise(t, uc, SIGTRAP, &info);
}

/// Reports the end of the debugger's step.
pub fn step_done(t: Current, uc: &mut UContext) {
    park::end_step(t, uc);
    park(t, uc, Event::Stepped);
}
