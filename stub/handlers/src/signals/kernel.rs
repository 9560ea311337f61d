//! The actions that the kernel gets: our handlers, or the program's own if we need not see the signal.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_lib::boot::PARK_SIGNAL;
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;
use ulpf_lib::sys::failure::{EFAULT, EINVAL};

use super::actions::{ActionTable, KernelAction};
use super::numbers::*;
use crate::global::g;
use crate::runtime::asm::{
    ulpf_on_fault, ulpf_on_park, ulpf_on_signal, ulpf_on_sys, ulpf_on_trap, ulpf_restorer,
};
use crate::runtime::library_link;
use crate::runtime::memory;
use crate::runtime::thread::Current;

pub fn actions(t: Current) -> &'static ActionTable {
    t.own().actions.get()
}

/// True if the program uses the kernel's default action.
pub fn is_default(t: Current, sig: i32) -> bool {
    actions(t).get(sig).handler == SIG_DFL
}

pub fn raw_sigaction(sig: i32, new: &KernelAction) -> Result<u64, Errno> {
    // SAFETY: sets a handler of ours or the program's own disposition.
    unsafe { sys!(k::__NR_rt_sigaction, sig, new as *const KernelAction, 0, 8) }
}

pub fn default_is_ignore(sig: i32) -> bool {
    matches!(sig, SIGCHLD | SIGCONT | 23 | 28) // SIGURG, SIGWINCH
}
pub fn default_is_stop(sig: i32) -> bool {
    matches!(sig, 20..=22) // SIGTSTP, SIGTTIN, SIGTTOU
}

/// True if a debugger is notified of the signal although the program ignores it, as a tracer is. It is not notified of
/// signals that the kernel forces even if they are ignored. Nor of those of a terminal to background processes: the
/// kernel does not send these if they are ignored. The C library sends itself 32 and 33, and debuggers pass them on
/// silently.
fn is_heard(sig: i32) -> bool {
    g().wants_stop(sig) && !matches!(sig, SIGILL | SIGFPE | SIGTTIN | SIGTTOU | 32 | 33)
}

/// The action that the kernel gets for `sig`, given the program's action.
fn kernel_action(sig: i32, want: &KernelAction) -> Option<KernelAction> {
    if sig == SIGKILL || sig == SIGSTOP {
        return None;
    }
    let handler = match sig {
        SIGSEGV | SIGBUS => ulpf_on_fault as *const () as u64,
        SIGTRAP => ulpf_on_trap as *const () as u64,
        SIGSYS => ulpf_on_sys as *const () as u64,
        PARK_SIGNAL => ulpf_on_park as *const () as u64,
        _ => match want.handler {
            SIG_IGN if !is_heard(sig) => return Some(*want),
            SIG_DFL if default_is_ignore(sig) && !is_heard(sig) => return Some(*want),
            // (Signals caused by an instruction are noted before they end the program, see `crash`.)
            SIG_DFL
                if g().pass_signals.load(Relaxed) & bit(sig) != 0
                    && !matches!(sig, SIGILL | SIGFPE) =>
            {
                return Some(*want);
            }
            _ => ulpf_on_signal as *const () as u64,
        },
    };
    let restart = match want.handler {
        SIG_DFL | SIG_IGN => SA_RESTART,
        _ => want.flags & SA_RESTART,
    };
    let restart = if sig == PARK_SIGNAL { 0 } else { restart };
    // Children of a program that ignores SIGCHLD do not become zombies.
    let alone = match (sig, want.handler) {
        (SIGCHLD, SIG_IGN) => SA_NOCLDWAIT,
        _ => 0,
    };
    // An access to the program's memory may fault again while a fault is served.
    let nested = if matches!(sig, SIGSEGV | SIGBUS) {
        SA_NODEFER
    } else {
        0
    };
    Some(KernelAction {
        handler,
        flags: SA_SIGINFO
            | SA_ONSTACK
            | SA_RESTORER
            | restart
            | nested
            | alone
            | (want.flags & (SA_NOCLDSTOP | SA_NOCLDWAIT)),
        restorer: ulpf_restorer as *const () as u64,
        // A guarded access is served under the program's own mask, so that the mask need not be
        // restored after it (`asm::ulpf_restorer`).
        mask: if sig == SIGSEGV { 0 } else { HANDLER_MASK },
    })
}

/// Reads the program's actions (they may be set already when we attach) and puts ours in place.
pub fn take_over() {
    for sig in 1..=64 {
        let mut old = KernelAction::default();
        // SAFETY: reads the present action.
        if unsafe {
            sys!(
                k::__NR_rt_sigaction,
                sig,
                0,
                &mut old as *mut KernelAction,
                8
            )
        }
        .is_ok()
        {
            g().actions.set(sig, old);
        }
    }
    refresh();
    library_link::look(g().actions.get(SIGSEGV).handler);
}

/// Installs the kernel's actions; called again whenever the debugger's pass set changes.
pub fn refresh() {
    install(&g().actions, |_| true);
}

/// Installs the kernel's actions for those actions of `table` that are `meant`.
fn install(table: &ActionTable, meant: impl Fn(&KernelAction) -> bool) {
    for sig in 1..=64 {
        let want = table.get(sig);
        if meant(&want)
            && let Some(a) = kernel_action(sig, &want)
        {
            let _ = raw_sigaction(sig, &a);
        }
    }
}

/// The pass set has changed: the next program thread that continues calls [`refresh`].
pub static REFRESH: AtomicBool = AtomicBool::new(false);

/// Threads that are in [`refresh_if_due`].
pub static REFRESHING: AtomicU32 = AtomicU32::new(0);

/// Called by a thread that continues. (A vfork child has dispositions of its own while it lives.)
pub fn refresh_if_due(t: Current) {
    if REFRESH.load(SeqCst) && t.tgid() == g().pid.load(Relaxed) {
        REFRESHING.fetch_add(1, SeqCst);
        // Another thread may be giving the program its own actions back just now.
        if !actions(t).left.load(SeqCst) && REFRESH.swap(false, SeqCst) {
            refresh();
        }
        REFRESHING.fetch_sub(1, SeqCst);
    }
}

/// Called before exec: the new program inherits ignored signals, but no handler.
pub fn ignore_again(t: Current) {
    for sig in 1..=64 {
        let a = actions(t).get(sig);
        if a.handler == SIG_IGN && bit(sig) & HIDDEN == 0 {
            let _ = raw_sigaction(sig, &a);
        }
    }
}

/// Called when exec has failed.
pub fn hear_again(t: Current) {
    install(actions(t), |want| want.handler == SIG_IGN);
}

/// Called in a forked child, which starts without handlers if `clear`.
pub fn take_away(t: Current, clear: bool) {
    actions(t).let_go();
    if clear {
        actions(t).clear_handlers();
    }
    give_back(t, true);
}

/// Gives the kernel the program's own actions. `alone`: no park signal can be on its way.
pub fn give_back(t: Current, alone: bool) {
    for sig in 1..=64 {
        let mut a = actions(t).get(sig);
        if sig == PARK_SIGNAL && a.handler == SIG_DFL && !alone {
            a.handler = SIG_IGN; // until the last thread has left
        }
        if sig != SIGKILL && sig != SIGSTOP {
            let _ = raw_sigaction(sig, &a);
        }
    }
}

/// rt_sigaction(2).
pub fn sigaction(t: Current, sig: i32, new: u64, old: u64, size: u64) -> i64 {
    if size != 8 || !(1..=64).contains(&sig) || (new != 0 && (sig == SIGKILL || sig == SIGSTOP)) {
        return EINVAL;
    }
    let wanted = if new == 0 {
        None
    } else {
        match memory::get::<KernelAction>(new) {
            Some(a) => Some(a),
            None => return EFAULT,
        }
    };
    let table = actions(t);
    let previous = table.get(sig);
    if let Some(mut a) = wanted {
        a.mask &= !UNBLOCKABLE;
        table.set(sig, a);
        if sig == SIGSEGV {
            library_link::look(a.handler);
        }
        if let Some(ka) = kernel_action(sig, &a) {
            let _ = raw_sigaction(sig, &ka);
        }
    }
    if old != 0 && !memory::put(old, &previous) {
        return EFAULT;
    }
    0
}
