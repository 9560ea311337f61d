//! The stub's task has failed: a fault in its own code, a signal that a process has sent to it, or a panic. The program
//! is left, as at a detach: its threads go on without watches, and the command reports it.
//!
//! The task's unfinished work is lost, and its stack with it. Requests that threads wait for are not served, and
//! threads make no more ([`Control::leave_unserved`]). A second failure during this ends the program: its memory may be
//! anywhere.

use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_engine::frame::{SigInfo, UContext};
use ulpf_lib::{arena, sys};

use super::{Control, notices};
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::runtime::asm::ulpf_restorer;
use ulpf_stub_handlers::say::{fatal, fatal_fault, fault};
use ulpf_stub_handlers::signals::actions::KernelAction;
use ulpf_stub_handlers::signals::kernel::raw_sigaction;
use ulpf_stub_handlers::signals::numbers::{SIGBUS, SIGFPE, SIGILL, SIGSEGV};

/// Room for a whole detach.
const STACK: usize = 1 << 20;
const FAULTS: [i32; 4] = [SIGSEGV, SIGBUS, SIGILL, SIGFPE];

/// Functions of the image to call before and after ([`prepare`]).
static UNLOCK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static END: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static CONTROL: AtomicPtr<Control> = AtomicPtr::new(core::ptr::null_mut());
static BEGUN: AtomicBool = AtomicBool::new(false);

/// On the stub's task, before it does anything for the program. `unlock` frees the lock of the image's heap, which the task
/// may hold; `end` ends the task after it has let go of the program.
pub fn prepare(unlock: fn(), end: fn() -> !) {
    UNLOCK.store(unlock as *mut (), SeqCst);
    END.store(end as *mut (), SeqCst);
    let stack = arena::map_anonymous(STACK);
    if stack.is_null() {
        return;
    }
    let alternate = [stack as u64, 0, STACK as u64];
    // SAFETY: a stack of this task's alone.
    let set = unsafe { sys!(k::__NR_sigaltstack, alternate.as_ptr(), 0) };
    if set.is_err() {
        return;
    }
    let action = KernelAction {
        handler: failed as *const () as u64,
        flags: u64::from(k::SA_SIGINFO | k::SA_ONSTACK | k::SA_NODEFER | k::SA_RESTORER),
        restorer: ulpf_restorer as *const () as u64,
        mask: 0,
    };
    let mut mask = 0u64;
    for signal in FAULTS {
        if raw_sigaction(signal, &action).is_ok() {
            mask |= 1 << (signal - 1);
        }
    }
    // SAFETY: this task's own mask. (The others stay blocked.)
    let _ = unsafe {
        sys!(
            k::__NR_rt_sigprocmask,
            k::SIG_UNBLOCK,
            &raw const mask,
            0,
            8
        )
    };
}

/// The session to leave. `control` outlives the task's work.
pub(super) fn of(control: &mut Control) {
    CONTROL.store(control, SeqCst);
}

/// The calling task is the stub's, not a thread of the program or the reader.
pub fn is_task() -> bool {
    // SAFETY: asks for a number.
    let me = unsafe { sys!(k::__NR_gettid) };
    me == Ok(g().stub_tid.load(Relaxed) as u64)
}

unsafe extern "C" fn failed(_signal: i32, info: *const SigInfo, context: *const UContext) {
    // SAFETY: the kernel has put both on this stack.
    let (info, context) = unsafe { (&*info, &*context) };
    let (pc, addr) = (context.gprs.rip, info.addr());
    if !is_task() || BEGUN.load(SeqCst) {
        fatal_fault("the stub's own task has failed", pc, addr);
    }
    // A code of zero or below: a process has sent it.
    match info.code > 0 {
        true => {
            fault(pc, addr);
            notices::tell(
                "ulpf: ulpf's own task has failed there; please report this as a bug of ulpf\n",
            );
        }
        false => notices::tell("ulpf: ulpf's own task was sent a signal that ends it\n"),
    }
    leave()
}

/// After a failure of the calling task, which was reported to the user.
pub fn leave() -> ! {
    let control = CONTROL.load(SeqCst);
    let (unlock, end) = (UNLOCK.load(SeqCst), END.load(SeqCst));
    if BEGUN.swap(true, SeqCst) || control.is_null() || unlock.is_null() || end.is_null() {
        fatal("the stub's own task has failed");
    }
    // SAFETY: `prepare` has put both there; the code that used the session before never continues.
    let control = unsafe {
        core::mem::transmute::<*mut (), fn()>(unlock)();
        &mut *control
    };
    control.leave_unserved();
    // SAFETY: as above.
    unsafe { core::mem::transmute::<*mut (), fn() -> !>(end)() }
}
