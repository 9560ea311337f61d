//! One changer at a time, while no handler looks.
//!
//! ```text
//!  changer                          handler of a fault
//!  changer ← me                     performing ← 1
//!  wait until nobody performs       changer ≠ 0?  performing ← 0, wait, again
//!  change                           look, perform through the alias
//!  generation + 1, changer ← 0      performing ← 0
//! ```
//! A handler performs for microseconds and calls nothing of the program meanwhile, so both waits are
//! short; a callback runs outside, so that it may change watches itself. The changer runs on its
//! exception stack with signals blocked: its own stack may be what moves.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_lib::sys;

use crate::error::Failure;
use crate::shared::S;
use crate::signals::{ALL, SYNCHRONOUS};
use crate::stacks::{self, Block};

/// The processor lets programs read the base of fs (`AT_HWCAP2`).
static FSGSBASE: AtomicBool = AtomicBool::new(false);
const HWCAP2_FSGSBASE: u64 = 2;

/// Finds out how the thread pointer is to be had.
pub fn prepare() {
    // SAFETY: asks for a word.
    let hwcap2 = unsafe { libc::getauxval(libc::AT_HWCAP2) };
    FSGSBASE.store(hwcap2 & HWCAP2_FSGSBASE != 0, Relaxed);
}

/// The thread pointer tells threads apart without a system call.
pub fn thread_pointer() -> u64 {
    let tp: u64;
    // SAFETY: the instruction is there.
    unsafe {
        if FSGSBASE.load(Relaxed) {
            // The thread's own block may be guarded: that of a static program lies in the heap.
            asm!("rdfsbase {}", out(reg) tp, options(nomem, nostack, preserves_flags));
        } else {
            // System V ABI, thread-local storage: the word at %fs:0 is its own address.
            asm!("mov {}, fs:0", out(reg) tp, options(nostack, readonly, preserves_flags));
        }
    }
    tp
}

/// The kernel writes to a thread's area of restartable sequences (rseq(2)) whenever it has been preempted, and kills
/// it if it cannot. So if the calling thread's own lies in memory that is to be guarded, it goes without. (Where the C
/// library has put it only the C library knows: near the thread pointer.)
pub fn go_without_rseq(start: u64, end: u64) {
    const NEAR: u64 = 8192;
    const AREA: u64 = 32;
    const UNREGISTER: u64 = 1;
    const SIGNATURE: u64 = 0x5305_3053;
    let page = |at: u64| at & !(ulpf_lib::PAGE_SIZE - 1);
    let tp = thread_pointer() & !(AREA - 1);
    let from = page(start).max(tp.saturating_sub(NEAR));
    let to = end.saturating_add(ulpf_lib::PAGE_SIZE - 1).min(tp + NEAR);
    for at in (from..to).step_by(AREA as usize) {
        // SAFETY: the kernel refuses all but the thread's own area.
        if unsafe { sys!(k::__NR_rseq, at, AREA, UNREGISTER, SIGNATURE) }.is_ok() {
            return;
        }
    }
}

/// Waits a little, and longer when it has been long.
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
pub fn enter(b: &Block) {
    let me = thread_pointer();
    let mut wait = Wait(0);
    loop {
        b.performing.store(1, SeqCst);
        let changer = S.door.changer.load(SeqCst);
        if changer == 0 || changer == me {
            return;
        }
        b.performing.store(0, SeqCst);
        wait.a_little();
    }
}

pub fn leave(b: &mut Block) {
    b.performing.store(0, SeqCst);
    b.send_again();
}

/// Is the calling thread the changer?
pub fn is_mine() -> bool {
    let changer = S.door.changer.load(Relaxed);
    changer != 0 && changer == thread_pointer()
}

/// Becomes the changer; `false`: this thread already is.
pub fn begin() -> bool {
    let me = thread_pointer();
    let mut wait = Wait(0);
    while let Err(other) = S.door.changer.compare_exchange(0, me, SeqCst, SeqCst) {
        if other == me {
            return false;
        }
        wait.a_little();
    }
    stacks::each(|b| {
        let mut wait = Wait(0);
        while b.performing.load(SeqCst) != 0 && b.thread.load(Acquire) != stacks::thread_id() {
            wait.a_little();
        }
    });
    true
}

pub fn end(b: &mut Block) {
    S.door.generation.fetch_add(1, SeqCst);
    S.door.changer.store(0, SeqCst);
    b.send_again();
}

/// Blocks what is asynchronous; the mask before.
pub fn block_signals() -> u64 {
    set_mask(ALL & !SYNCHRONOUS)
}

/// Blocks these, too.
pub fn block(mask: u64) {
    change_mask(k::SIG_BLOCK, mask);
}

pub fn set_mask(mask: u64) -> u64 {
    change_mask(k::SIG_SETMASK, mask)
}

fn change_mask(how: u32, mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: two words.
    let _ = unsafe {
        sys!(
            k::__NR_rt_sigprocmask,
            how,
            &raw const mask,
            &raw mut old,
            8
        )
    };
    old
}

/// Runs `f` on the calling thread's exception stack.
pub fn aside(block: &Block, mut f: impl FnMut()) {
    if block.contains(here()) {
        f();
    } else {
        on_stack(block.top(), &mut f);
    }
}

/// Runs `f` as the changer.
pub fn change<R>(f: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
    let block = Block::claim().ok_or_else(|| {
        Failure::new(
            libc::EAGAIN,
            "too many threads have exception stacks; end some of them",
        )
    })?;
    let mask = block_signals();
    let inside = block.contains(here());
    if !inside {
        block.install();
    }
    let mut f = Some(f);
    let mut result = None;
    let record = core::ptr::from_mut(block);
    {
        let mut run = || {
            if !begin() {
                result = Some(Err(Failure::new(
                    libc::EDEADLK,
                    "this thread is already changing watches; a handler inside must not",
                )));
                return;
            }
            result = f.take().map(|f| f());
            // SAFETY: the thread's own record.
            end(unsafe { &mut *record });
        };
        aside(block, &mut run);
    }
    set_mask(mask);
    result.unwrap_or_else(|| Err(Failure::new(libc::EFAULT, "")))
}

pub fn here() -> u64 {
    let sp: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
    sp
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
