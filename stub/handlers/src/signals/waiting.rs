//! Signals that the program has blocked, but not the kernel ([`HIDDEN`]): when they are kept, and when they are
//! delivered (`runtime/waiting.rs` stores them).

use linux_raw_sys::general as k;
use ulpf_lib::sys;

use super::numbers::{HIDDEN, bit};
use crate::runtime::frame::SigInfo;
use crate::runtime::thread::Current;

/// Keeps a signal for later, if the program has blocked it.
pub fn set_aside(t: Current, info: &SigInfo) -> bool {
    let i = t.own();
    let blocked = i.hidden_meanwhile.get().unwrap_or(i.hidden.get());
    let aside = !info.by_kernel() && blocked & bit(info.signo) != 0;
    if aside {
        i.waiting.push(info);
    }
    aside
}

/// A call begins that waits with these signals blocked instead: a waiting signal that is not among them interrupts it.
pub fn interrupt(t: Current, mask: u64) {
    let i = t.own();
    if let Some(info) = i.waiting.take(!mask) {
        i.defer(&info);
    }
}

/// Hands the signals over to the kernel (at a detach, or before exec): blocks and queues them.
pub fn hand_over(t: Current) {
    let i = t.own();
    if i.waiting.is_empty() {
        return;
    }
    // SAFETY: masks of the calling thread, and signals to it.
    unsafe {
        let _ = sys!(
            k::__NR_rt_sigprocmask,
            k::SIG_BLOCK,
            i.hidden.as_ptr(),
            0,
            8
        );
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
