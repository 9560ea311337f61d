//! The calling thread: its number, its stack pointer, its thread pointer, and signals to it.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_engine::frame::SigInfo;
use ulpf_lib::sys;

/// The processor lets programs read the base of fs (`AT_HWCAP2`).
static FSGSBASE: AtomicBool = AtomicBool::new(false);
const HWCAP2_FSGSBASE: u64 = 2;

/// Finds out how the thread pointer is to be had.
pub fn prepare() {
    // SAFETY: asks for a word.
    let hwcap2 = unsafe { libc::getauxval(libc::AT_HWCAP2) };
    FSGSBASE.store(hwcap2 & HWCAP2_FSGSBASE != 0, Relaxed);
}

/// As gettid(2).
pub fn id() -> i32 {
    // SAFETY: no arguments.
    unsafe { sys!(k::__NR_gettid) }.unwrap_or(0) as i32
}

/// The thread pointer tells threads apart without a system call.
pub fn pointer() -> u64 {
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

/// The stack pointer.
pub fn stack() -> u64 {
    let sp: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
    sp
}

/// Sends the calling thread this signal.
pub fn send(info: &SigInfo) {
    // SAFETY: a siginfo of our own for ourselves; the kernel copies it.
    unsafe {
        let pid = sys!(k::__NR_getpid).unwrap_or(0);
        let _ = sys!(
            k::__NR_rt_tgsigqueueinfo,
            pid,
            id(),
            info.signo,
            info as *const SigInfo
        );
    }
}

/// The kernel writes to a thread's area of restartable sequences (rseq(2)) whenever the thread has been preempted, and
/// kills it if it cannot. So if the calling thread's area lies in memory that is to be guarded, the thread goes
/// without. (Where the C library has put the area only the C library knows: near the thread pointer.)
pub fn go_without_rseq(start: u64, end: u64) {
    const NEAR: u64 = 8192;
    const AREA: u64 = 32;
    const UNREGISTER: u64 = 1;
    const SIGNATURE: u64 = 0x5305_3053;
    let page = |at: u64| at & !(ulpf_lib::PAGE_SIZE - 1);
    let tp = pointer() & !(AREA - 1);
    let from = page(start).max(tp.saturating_sub(NEAR));
    let to = end.saturating_add(ulpf_lib::PAGE_SIZE - 1).min(tp + NEAR);
    for at in (from..to).step_by(AREA as usize) {
        // SAFETY: the kernel refuses all but the thread's own area.
        if unsafe { sys!(k::__NR_rseq, at, AREA, UNREGISTER, SIGNATURE) }.is_ok() {
            return;
        }
    }
}
