//! The five signals that an instruction can raise: our handlers, and the program's actions for them.
//!
//! The library installs its handlers once, when the first handler or watch is registered, and keeps the program's
//! actions. From then on it replaces the C library's `sigaction`, `signal`, `sigprocmask` and `pthread_sigmask`
//! (`interpose.rs`). A handler that the program installs later is kept beside ours and called for signals that are not
//! ours. These five are never blocked.

use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_engine::frame::{SigInfo, UContext};
use ulpf_lib::sys;
use ulpf_lib::sys::uapi::{SIG_DFL, SIG_IGN};

use crate::error::Failure;
use crate::exception_stacks::OwnBlock;
use crate::mask::{self, INSIDE, OURS, SIGSEGV, SYNCHRONOUS, bit};
use crate::thread;

unsafe extern "C" {
    fn ulpf_signal_return();
}

// Return address of our handlers: rt_sigreturn(2).
global_asm!(
    r#"
    .pushsection .text.libulpf,"ax",@progbits
    .hidden ulpf_signal_return
    .globl ulpf_signal_return
ulpf_signal_return:
    mov eax, 15
    syscall
    .popsection
"#
);

const RESTORER: u64 = k::SA_RESTORER as u64;

/// In the kernel's layout (`struct kernel_sigaction`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Action {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: u64,
}

/// The program's action for one of our signals. Handlers read it without a lock. A change that races with a signal of the
/// same number may be seen half done, as with the kernel between two threads.
struct Wanted {
    handler: AtomicU64,
    flags: AtomicU64,
    mask: AtomicU64,
}

#[allow(clippy::declare_interior_mutable_const)]
const NOTHING: Wanted = Wanted {
    handler: AtomicU64::new(0),
    flags: AtomicU64::new(0),
    mask: AtomicU64::new(0),
};
static WANTED: [Wanted; 5] = [NOTHING; 5];
static INSTALLED: AtomicBool = AtomicBool::new(false);

pub fn installed() -> bool {
    INSTALLED.load(Acquire)
}

fn index(signo: i32) -> Option<usize> {
    OURS.iter().position(|&s| s == signo)
}

/// rt_sigaction(2).
pub fn kernel_action(signo: i32, new: Option<&Action>) -> Result<Action, ulpf_lib::sys::Errno> {
    let mut old = Action::default();
    let new = new.map_or(core::ptr::null(), |a| a as *const Action);
    // SAFETY: both structures are the kernel's.
    unsafe { sys!(k::__NR_rt_sigaction, signo, new, &mut old as *mut Action, 8) }?;
    Ok(old)
}

/// Installs `entry` as the handler of the five signals.
pub fn install(entry: u64) -> Result<(), Failure> {
    if installed() {
        return Ok(());
    }
    let ours = Action {
        handler: entry,
        flags: (k::SA_SIGINFO | k::SA_ONSTACK | k::SA_NODEFER) as u64 | RESTORER,
        restorer: ulpf_signal_return as *const () as u64,
        mask: INSIDE,
    };
    for signo in OURS {
        let old = kernel_action(signo, Some(&ours))
            .map_err(|e| Failure::os(e, "the kernel does not let us handle SIGSEGV"))?;
        want(signo, &old);
    }
    INSTALLED.store(true, Release);
    Ok(())
}

/// Stores the program's action for one of our signals.
pub fn want(signo: i32, action: &Action) {
    if let Some(w) = index(signo).and_then(|i| WANTED.get(i)) {
        w.mask.store(action.mask, Relaxed);
        w.flags.store(action.flags | action.restorer_bit(), Relaxed);
        w.handler.store(action.handler, Release);
    }
}

impl Action {
    fn restorer_bit(&self) -> u64 {
        self.flags & RESTORER
    }
}

/// The program's action, in the kernel's form.
pub fn wanted(signo: i32) -> Option<Action> {
    let w = index(signo).and_then(|i| WANTED.get(i))?;
    Some(Action {
        handler: w.handler.load(Acquire),
        flags: w.flags.load(Relaxed) | RESTORER,
        restorer: ulpf_signal_return as *const () as u64,
        mask: w.mask.load(Relaxed),
    })
}

/// Performs the program's action for a signal that is not ours.
pub fn chain(signo: i32, info: &SigInfo, uc: &mut UContext) {
    let Some(action) = wanted(signo) else { return };
    match action.handler {
        SIG_IGN if !info.by_kernel() => {}
        SIG_DFL | SIG_IGN => by_default(signo, info, uc),
        handler => {
            if action.flags & k::SA_RESETHAND as u64 != 0 {
                want(
                    signo,
                    &Action {
                        handler: SIG_DFL,
                        ..action
                    },
                );
            }
            let itself = if action.flags & k::SA_NODEFER as u64 != 0 {
                0
            } else {
                bit(signo)
            };
            // Our signals stay unblocked, because the program's handler may touch guarded pages. Sent ones wait.
            let masked = action.mask | itself;
            let own = OwnBlock::here();
            let before = own.map_or(0, |own| own.blocked.replace(own.blocked.get() | masked));
            mask::set((uc.sigmask | masked) & !SYNCHRONOUS);
            let mut info = *info;
            // SAFETY: the program has installed this function for this signal; all three arguments
            // are there with or without SA_SIGINFO.
            unsafe {
                let call: extern "C" fn(i32, *mut SigInfo, *mut UContext) =
                    core::mem::transmute(handler);
                call(signo, &mut info, uc);
            }
            mask::set(INSIDE);
            if let Some(own) = own {
                own.blocked.set(before);
                own.send_again();
            }
        }
    }
}

/// Performs the kernel's default action, with the right signal and, for a fault, at the right address.
fn by_default(signo: i32, info: &SigInfo, uc: &mut UContext) {
    let default = Action {
        restorer: 0,
        ..Action::default()
    };
    let _ = kernel_action(signo, Some(&default));
    uc.sigmask &= !bit(signo);
    if signo == SIGSEGV && info.by_kernel() {
        return; // the instruction faults again
    }
    thread::send(info);
}

/// Raises a fault of the program's own, inside an instruction that we have performed in its place.
pub fn raise(signo: i32, info: &SigInfo, uc: &mut UContext) {
    uc.cr2 = info.addr();
    chain(signo, info, uc);
}
