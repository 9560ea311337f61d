//! The C library's functions for signals, replaced so that our handlers stay installed and unblocked.
//!
//! They precede the C library in the search order of a program that links us. Until a handler is registered they do what
//! the C library does.

use core::ffi::c_int;

use linux_raw_sys::general as k;
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;

use crate::mask::{OURS, SYNCHRONOUS};
use crate::signals::{self, Action};

unsafe extern "C" {
    fn __sigaction(signo: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
}

fn set_errno(e: i32) {
    // SAFETY: the calling thread's errno.
    unsafe { *libc::__errno_location() = e };
}

fn mask_of(set: &libc::sigset_t) -> u64 {
    // SAFETY: its first word holds signals 1 to 64.
    unsafe { (set as *const libc::sigset_t).cast::<u64>().read() }
}

/// # Safety
/// As sigaction(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signo: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !signals::installed() || !OURS.contains(&signo) {
        // SAFETY: the caller's arguments; the program's handlers never block our signals.
        unsafe {
            if signals::installed() && !new.is_null() {
                let mut open = *new;
                OURS.iter().for_each(|&s| {
                    libc::sigdelset(&mut open.sa_mask, s);
                });
                return __sigaction(signo, &open, old);
            }
            return __sigaction(signo, new, old);
        }
    }
    let before = signals::wanted(signo);
    // SAFETY: the caller's structures.
    unsafe {
        if !new.is_null() {
            let new = &*new;
            let action = Action {
                handler: new.sa_sigaction as u64,
                flags: new.sa_flags as u32 as u64,
                restorer: 0,
                mask: mask_of(&new.sa_mask),
            };
            signals::want(signo, &action);
        }
        if let (Some(old), Some(was)) = (old.as_mut(), before) {
            old.sa_sigaction = was.handler as usize;
            old.sa_flags = was.flags as c_int & !0x0400_0000;
            libc::sigemptyset(&mut old.sa_mask);
            (&raw mut old.sa_mask).cast::<u64>().write(was.mask);
        }
    }
    0
}

/// # Safety
/// As signal(2), with the semantics of BSD that the C libraries have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(signo: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: zeroes are valid structures.
    unsafe {
        let mut new: libc::sigaction = core::mem::zeroed();
        let mut old: libc::sigaction = core::mem::zeroed();
        new.sa_sigaction = handler;
        new.sa_flags = libc::SA_RESTART;
        if sigaction(signo, &new, &mut old) == 0 {
            old.sa_sigaction
        } else {
            libc::SIG_ERR
        }
    }
}

/// Signals that the C library keeps for itself (cancellation, setuid): never blocked.
const INTERNAL: u64 = 1 << 31 | 1 << 32;

/// # Safety
/// `set` and `old` are null or valid.
unsafe fn change_mask(how: c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) -> i32 {
    // SAFETY: the caller's promise.
    let new = unsafe { set.as_ref() }.map(|s| {
        let mut mask = mask_of(s) & !INTERNAL;
        if signals::installed() && how != libc::SIG_UNBLOCK {
            mask &= !SYNCHRONOUS;
        }
        mask
    });
    let at = new.as_ref().map_or(core::ptr::null(), |m| m as *const u64);
    // SAFETY: the kernel's word each; the rest of the old set is the C library's and stays empty.
    unsafe {
        if !old.is_null() {
            libc::sigemptyset(old);
        }
        match sys!(k::__NR_rt_sigprocmask, how, at, old, 8) {
            Ok(_) => 0,
            Err(Errno(e)) => e,
        }
    }
}

/// # Safety
/// As sigprocmask(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigprocmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    match unsafe { change_mask(how, set, old) } {
        0 => 0,
        e => {
            set_errno(e);
            -1
        }
    }
}

/// # Safety
/// As pthread_sigmask(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { change_mask(how, set, old) }
}
