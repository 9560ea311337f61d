//! A program that uses syscall user dispatch itself (prctl(2), PR_SET_SYSCALL_USER_DISPATCH), as Wine does. The kernel
//! has one such setting for each thread, and ours brings all calls to us. So the program's setting is kept here, and a
//! call that its selector blocks raises its SIGSYS (as in kernel/entry/syscall_user_dispatch.c). A new thread and a
//! forked child start without it, as they do without us.

use linux_raw_sys::general as k;
use linux_raw_sys::prctl::{PR_SYS_DISPATCH_OFF, PR_SYS_DISPATCH_ON};
use ulpf_lib::addr::USER_END;

use super::call::{Args, EFAULT, EINVAL};
use super::seccomp;
use crate::runtime::frame::{SigInfo, UContext};
use crate::runtime::memory;
use crate::runtime::thread::Current;
use crate::signals::delivery::default_action;
use crate::signals::numbers::{SIGSEGV, SIGSYS};

const OFF: u64 = PR_SYS_DISPATCH_OFF as u64;
/// Calls from the range are exempt.
const ON: u64 = PR_SYS_DISPATCH_ON as u64;
/// Calls from outside the range are exempt (PR_SYS_DISPATCH_INCLUSIVE_ON, since Linux 6.16).
const INCLUSIVE: u64 = 2;

/// Values of the selector.
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;

/// Sets the program's dispatch.
pub fn set(t: Current, uc: &mut UContext, a: &Args) -> i64 {
    let [_, mode, start, len, selector, _] = *a;
    let end = start.wrapping_add(len);
    let wanted = match mode {
        OFF if (start, len, selector) == (0, 0, 0) => None,
        ON if start == 0 || end > start => Some([start, len, selector]),
        INCLUSIVE if len != 0 && end > start => Some([end, len.wrapping_neg(), selector]),
        _ => return EINVAL,
    };
    if selector >= USER_END {
        return EFAULT;
    }
    t.own().user_dispatch.set(wanted);
    if wanted.is_some() {
        seccomp::look_at_all(t, uc);
    }
    0
}

/// Raises the program's SIGSYS if its dispatch takes this call. Returns `true` if it does.
pub fn takes(t: Current, uc: &mut UContext, nr: u64, arch: u32) -> bool {
    let Some([start, len, selector]) = t.own().user_dispatch.get() else {
        return false;
    };
    if uc.gprs.rip.wrapping_sub(start) < len {
        return false;
    }
    let blocked = match selector {
        0 => Some(BLOCK),
        at => memory::get::<u8>(at),
    };
    match blocked {
        Some(ALLOW) => return false,
        Some(BLOCK) => seccomp::trap(t, uc, nr, arch, (k::SYS_USER_DISPATCH as i32, 0)),
        // No handler runs: the kernel ends the process (force_exit_sig).
        Some(_) => default_action(t, uc, SIGSYS, &SigInfo::zeroed()),
        None => default_action(t, uc, SIGSEGV, &SigInfo::zeroed()),
    }
    true
}
