//! Sets of signals, and the set that the calling thread blocks.

use linux_raw_sys::general as k;
use ulpf_lib::sys;

pub const SIGILL: i32 = k::SIGILL as i32;
pub const SIGTRAP: i32 = k::SIGTRAP as i32;
pub const SIGBUS: i32 = k::SIGBUS as i32;
pub const SIGFPE: i32 = k::SIGFPE as i32;
pub const SIGSEGV: i32 = k::SIGSEGV as i32;
/// Signals that an instruction can raise, and that we handle.
pub const OURS: [i32; 5] = [SIGSEGV, SIGBUS, SIGTRAP, SIGFPE, SIGILL];

pub const ALL: u64 = u64::MAX;
pub const SYNCHRONOUS: u64 = bit(SIGILL) | bit(SIGTRAP) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGSEGV);
/// Blocked in our handlers, which raise no SIGTRAP themselves, so that sent signals do not nest.
pub const INSIDE: u64 = ALL & !SYNCHRONOUS | bit(SIGTRAP);

pub const fn bit(signo: i32) -> u64 {
    1 << (signo - 1)
}

/// Blocks asynchronous signals; returns the mask before.
pub fn block_asynchronous() -> u64 {
    set(ALL & !SYNCHRONOUS)
}

/// Adds these signals to the blocked ones.
pub fn block(mask: u64) {
    change(k::SIG_BLOCK, mask);
}

/// Blocks exactly these signals; returns the mask before.
pub fn set(mask: u64) -> u64 {
    change(k::SIG_SETMASK, mask)
}

fn change(how: u32, mask: u64) -> u64 {
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
