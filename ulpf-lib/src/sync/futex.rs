//! futex(2).
//!
//! Never FUTEX_PRIVATE: since Linux 6.16 an address space gets a private futex table when its first thread is created,
//! and the kernel then loses existing waiters. The kernel considers threads of one process only. But the stub's task is
//! another process in the same address space, and creates a thread while the program's threads wait. Other processes also
//! share some of the words.
#![allow(unsafe_code)]

use core::sync::atomic::AtomicU32;

use linux_raw_sys::errno::ETIMEDOUT;
use linux_raw_sys::general::{
    __NR_futex, __NR_sched_yield, __kernel_timespec, FUTEX_WAIT, FUTEX_WAKE,
};

use crate::sys;
use crate::sys::Errno;

/// Waits until the word is woken, unless it holds another value than `seen`. May return early.
pub fn wait(word: &AtomicU32, seen: u32) {
    // SAFETY: a live word, and no time limit.
    let _ = unsafe { sys!(__NR_futex, word as *const _, FUTEX_WAIT, seen, 0) };
}

/// As [`wait`], for `ns` nanoseconds at most. Returns whether they are over.
pub fn wait_for(word: &AtomicU32, seen: u32, ns: i64) -> bool {
    const SECOND: i64 = 1_000_000_000;
    let limit = __kernel_timespec {
        tv_sec: ns / SECOND,
        tv_nsec: ns % SECOND,
    };
    // SAFETY: a live word, and a time that lives through the call.
    let woken = unsafe {
        sys!(
            __NR_futex,
            word as *const _,
            FUTEX_WAIT,
            seen,
            &raw const limit
        )
    };
    woken == Err(Errno(ETIMEDOUT as i32))
}

/// Lets other threads run.
pub fn yield_now() {
    // SAFETY: no pointers.
    let _ = unsafe { sys!(__NR_sched_yield) };
}

/// Wakes one thread that waits for the word.
pub fn wake_one(word: &AtomicU32) {
    wake(word, 1);
}

/// Wakes all threads that wait for the word.
pub fn wake_all(word: &AtomicU32) {
    wake(word, i32::MAX);
}

fn wake(word: &AtomicU32, most: i32) {
    // SAFETY: a live word.
    let _ = unsafe { sys!(__NR_futex, word as *const _, FUTEX_WAKE, most) };
}
