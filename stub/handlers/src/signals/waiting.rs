//! Signals that the program has blocked, though the kernel has not ([`HIDDEN`]): how they are kept, and when they
//! are due (`runtime/waiting.rs` is where they wait).

use linux_raw_sys::general as k;
use ulpf_lib::sys;

use super::numbers::{HIDDEN, bit};
use crate::runtime::frame::SigInfo;
use crate::runtime::thread::Thread;

/// Keeps a signal for later, if the program has it blocked.
pub fn set_aside(t: &Thread, info: &SigInfo) -> bool {
    let i = t.inner();
    let blocked = i.hidden_meanwhile.unwrap_or(i.hidden);
    let aside = !info.by_kernel() && blocked & bit(info.signo) != 0;
    if aside {
        i.waiting.push(info);
    }
    aside
}

/// A call begins that waits with these signals blocked instead: what of them has waited for it interrupts it.
/// `false`: nothing.
pub fn interrupt(t: &Thread, mask: u64) -> bool {
    let i = t.inner();
    let Some(info) = i.waiting.take(!mask) else {
        return false;
    };
    if let Some(slot) = i.deferred.get_mut(i.deferred_len) {
        *slot = info;
        i.deferred_len += 1;
    }
    true
}

/// The kernel is to keep them from here on (the program is left alone, or becomes another): blocks and queues them.
pub fn hand_over(t: &Thread) {
    let i = t.inner();
    if i.waiting.is_empty() {
        return;
    }
    // SAFETY: masks of the calling thread, and signals to it.
    unsafe {
        let _ = sys!(k::__NR_rt_sigprocmask, 0, &raw const i.hidden, 0, 8);
        while let Some(info) = i.waiting.take(HIDDEN) {
            let _ = sys!(
                k::__NR_rt_tgsigqueueinfo,
                t.tgid(),
                t.tid(),
                info.signo,
                &raw const info
            );
        }
    }
}
