//! One changer at a time, while no handler reads.
//!
//! ```text
//!  changer                          handler of a fault
//!  changer ← me                     performing ← 1
//!  wait until no handler performs   changer ≠ 0?  performing ← 0, wait, again
//!  change                           look, perform through the alias
//!  generation + 1, changer ← 0      performing ← 0
//! ```
//! A handler performs for microseconds and calls none of the program's functions meanwhile, so both waits are short. A
//! callback runs outside, so that it may change watches itself. The changer runs on its exception stack with signals
//! blocked, because its own stack may be moved.

use core::arch::asm;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::sys;

use crate::error::Failure;
use crate::exception_stacks::{self, OwnBlock};
use crate::mask;
use crate::shared::{Changer, S, Unchanging};
use crate::thread;

/// Waits with increasing pauses.
struct Wait(u32);

impl Wait {
    fn a_little(&mut self) {
        self.0 += 1;
        let time = [0u64, 20_000];
        // SAFETY: two words are a `timespec`.
        let _ = unsafe {
            if self.0 < 16 {
                sys!(k::__NR_sched_yield)
            } else {
                sys!(k::__NR_nanosleep, time.as_ptr(), 0)
            }
        };
    }
}

/// From here to [`leave`] nothing changes.
pub fn enter(own: OwnBlock) -> Unchanging {
    let me = thread::pointer();
    let mut wait = Wait(0);
    loop {
        own.block().performing.store(1, SeqCst);
        let changer = S.table.changer.load(SeqCst);
        if changer == 0 || changer == me {
            // SAFETY: a new changer waits for us; a caller of `leave` gives up the value and performs no more.
            return unsafe { Unchanging::new() };
        }
        own.block().performing.store(0, SeqCst);
        wait.a_little();
    }
}

pub fn leave(own: OwnBlock, _: Unchanging) {
    own.block().performing.store(0, SeqCst);
    own.send_again();
}

/// Becomes the changer; `None`: this thread already is.
fn begin() -> Option<Changer> {
    let me = thread::pointer();
    let mut wait = Wait(0);
    while let Err(other) = S.table.changer.compare_exchange(0, me, SeqCst, SeqCst) {
        if other == me {
            return None;
        }
        wait.a_little();
    }
    exception_stacks::each(|b| {
        let mut wait = Wait(0);
        while b.performing.load(SeqCst) != 0 && b.thread.load(Acquire) != thread::id() {
            wait.a_little();
        }
    });
    // SAFETY: this thread has just become the changer.
    Some(unsafe { Changer::new(false) })
}

/// Becomes the changer, or joins the change that this thread has interrupted. Ends with [`end`].
pub fn join() -> Changer {
    // SAFETY: the interrupted change continues after the caller's part.
    begin().unwrap_or_else(|| unsafe { Changer::new(true) })
}

pub fn end(own: OwnBlock, changer: Changer) {
    if !changer.joined {
        S.table.generation.fetch_add(1, SeqCst);
        S.table.changer.store(0, SeqCst);
    }
    own.send_again();
}

/// Runs `f` on the calling thread's exception stack.
pub fn aside(own: OwnBlock, mut f: impl FnMut()) {
    if own.contains(thread::stack()) {
        f();
    } else {
        on_stack(own.top(), &mut f);
    }
}

/// Runs `f` as the changer.
pub fn change<R>(f: impl FnOnce(&mut Changer) -> Result<R, Failure>) -> Result<R, Failure> {
    let own = OwnBlock::claim().ok_or_else(|| {
        Failure::new(
            libc::EAGAIN,
            "too many threads have exception stacks; end some of them",
        )
    })?;
    let mask = mask::block_asynchronous();
    if !own.contains(thread::stack()) {
        own.install();
    }
    let mut f = Some(f);
    let mut result = None;
    aside(own, || {
        let Some(mut changer) = begin() else {
            result = Some(Err(Failure::new(
                libc::EDEADLK,
                "this thread is already changing watches; a handler inside must not",
            )));
            return;
        };
        result = f.take().map(|f| f(&mut changer));
        end(own, changer);
    });
    mask::set(mask);
    result.unwrap_or_else(|| Err(Failure::new(libc::EFAULT, "")))
}

/// Calls `f` with the stack pointer at `top`.
fn on_stack<F: FnMut()>(top: u64, f: &mut F) {
    extern "C" fn call<F: FnMut()>(f: *mut F) {
        // SAFETY: passed through below.
        unsafe { (*f)() }
    }
    // SAFETY: `top` is the end of this thread's exception stack, on which nothing runs now; it is
    // aligned to 64 bytes.
    unsafe {
        asm!(
            "xchg rsp, r12",
            "call rax",
            "mov rsp, r12",
            inout("r12") top => _,
            inout("rax") (call::<F> as extern "C" fn(*mut F)) => _,
            inout("rdi") f as *mut F => _,
            clobber_abi("C"),
        );
    }
}
