//! Signal masks: the program's view of its mask, and the signals blocked while our handlers run.

use linux_raw_sys::general as k;
use ulpf_lib::sys;
use ulpf_lib::sys::failure::{EFAULT, EINVAL};

use super::numbers::*;
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::thread::Current;
use crate::upcall;

/// The mask in the program's view.
pub fn virtual_mask(t: Current, uc: &UContext) -> u64 {
    (uc.sigmask & !HIDDEN) | t.own().hidden.get()
}

pub fn set_virtual_mask(t: Current, uc: &mut UContext, mask: u64) {
    let mask = mask & !UNBLOCKABLE;
    t.own().hidden.set(mask & HIDDEN);
    uc.sigmask = mask & !HIDDEN;
}

/// rt_sigprocmask(2): takes effect when our handler returns.
pub fn sigprocmask(t: Current, uc: &mut UContext, how: u64, set: u64, old: u64, size: u64) -> i64 {
    if size != 8 {
        return EINVAL;
    }
    let present = virtual_mask(t, uc);
    if set != 0 {
        let Some(m) = memory::get::<u64>(set) else {
            return EFAULT;
        };
        let next = match how {
            0 => present | m,
            1 => present & !m,
            2 => m,
            _ => return EINVAL,
        };
        set_virtual_mask(t, uc, next);
    }
    if old != 0 && !memory::put(old, &present) {
        return EFAULT;
    }
    0
}

/// After a successful rt_sigpending(2): adds the signals that wait here.
pub fn pending(t: Current, set: u64) {
    let waiting = t.own().waiting.set();
    if let Some(seen) = memory::get::<u64>(set).filter(|_| waiting != 0) {
        memory::put(set, &(seen | waiting));
    }
}

/// Blocks asynchronous signals for the rest of a handler that has run under the program's mask so far. It is about to
/// wait, or to change the program's view of signals.
pub fn close(t: Current, uc: &mut UContext) {
    if t.own().open.replace(false) {
        block(t, uc);
    }
}

/// Blocks asynchronous signals for the rest of a handler.
pub fn block(t: Current, uc: &mut UContext) {
    let mut old = 0u64;
    // SAFETY: blocks asynchronous signals; the frame holds the program's mask, or gets it now.
    let _ = unsafe {
        sys!(
            k::__NR_rt_sigprocmask,
            0,
            &HANDLER_MASK as *const u64,
            &mut old as *mut u64,
            8
        )
    };
    upcall::mask_known(t, uc, old);
}

/// As [`block`], and unblocks all other signals: after a call that was made under another mask.
pub fn only_ours() {
    // SAFETY: the mask of our handlers.
    let _ = unsafe {
        sys!(
            k::__NR_rt_sigprocmask,
            k::SIG_SETMASK,
            &HANDLER_MASK as *const u64,
            0,
            8
        )
    };
}
