//! One attempt of a call, which signals may interrupt.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::syscalls::row::Blocks;
use ulpf_lib::{sys, syscalls};

use super::call::{ABANDONED, Args, EINTR, RESTART, raw};
use crate::global::g;
use crate::runtime::asm::ulpf_blocking;
use crate::runtime::frame::UContext;
use crate::runtime::park::{enter_syscall, leave_syscall};
use crate::runtime::thread::Current;
use crate::runtime::tracer;
use crate::signals::{numbers, raise};

pub fn attempt(t: Current, uc: &mut UContext, nr: u64, args: &Args) -> i64 {
    let never = syscalls::row(nr).is_some_and(|row| row.blocks == Blocks::Never);
    if never && !t.own().judged.get() {
        raw(nr, args)
    } else {
        blocking(t, uc, nr, args)
    }
}

/// True if only we made the call end: it is made again.
pub fn interrupted_by_us(t: Current, result: i64) -> bool {
    !t.leaving.load(Relaxed)
        && t.own().deferred_len.get() == 0
        && t.kicked.load(SeqCst)
        && (result == RESTART || result == EINTR)
}

/// One call under the program's signal mask.
pub fn blocking(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> i64 {
    let mask = uc.sigmask & !numbers::HIDDEN;
    let args = [nr, a[0], a[1], a[2], a[3], a[4], a[5]];
    // The debugger sees the thread at the instruction itself. If it sends the thread elsewhere and back (a call by
    // hand), the system call is made again.
    uc.gprs.rip = uc.gprs.rip.wrapping_sub(2);
    enter_syscall(t, uc);
    let result = if g().world.load(SeqCst) != 0 && !tracer::holds(t) {
        RESTART
    } else {
        // SAFETY: the program's own call.
        let r = unsafe { ulpf_blocking(&args, &mask, t.own().judged.get().into()) };
        if t.own().deferred_len.get() == 0 {
            // SAFETY: blocks asynchronous signals again for the rest of the handler.
            let _ = unsafe {
                sys!(
                    k::__NR_rt_sigprocmask,
                    0,
                    &numbers::HANDLER_MASK as *const u64,
                    0,
                    8
                )
            };
        }
        r
    };
    if result == RESTART && t.own().deferred_len.get() == 0 {
        t.kicked.store(true, SeqCst);
    }
    let at = uc.gprs.rip;
    leave_syscall(t, uc);
    if t.dirty.swap(false, SeqCst) {
        return ABANDONED;
    }
    uc.gprs.rip = at.wrapping_add(2);
    if (result == EINTR || result == RESTART)
        && raise::none_is_handled(t)
        && !t.leaving.load(Relaxed)
    {
        return end_without_handler(t, uc);
    }
    result
}

/// Ends a call that was interrupted by signals for which the program has no handler. The debugger is notified of them.
/// Unless they end the program, the kernel would let the call continue.
#[inline(never)]
fn end_without_handler(t: Current, uc: &mut UContext) -> i64 {
    let place = |uc: &UContext| (uc.gprs.rip, uc.gprs.rsp, uc.gprs.rax);
    let rax = uc.gprs.rax;
    uc.gprs.rax = EINTR as u64;
    let shown = place(uc);
    raise::deliver_deferred(t, uc);
    if place(uc) != shown {
        return ABANDONED; // the debugger has moved the thread, or a handler with another signal has
    }
    uc.gprs.rax = rax;
    t.kicked.store(true, SeqCst);
    RESTART
}
