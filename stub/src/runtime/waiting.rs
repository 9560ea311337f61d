//! Signals that the program has blocked, though the kernel has not ([`super::signals::HIDDEN`]): sent by somebody
//! they wait here, per thread, until the program unblocks or fetches them. Those that an instruction causes
//! never come here; blocked, they end the program.

use linux_raw_sys::general as k;
use ulpf_lib::sys;

use super::frame::{SigInfo, UContext};
use super::signals::{self, HIDDEN, bit};
use super::thread::Thread;

/// More than the four standard signals among them: the park signal is a real-time signal and may be queued.
pub const WAITING: usize = 8;
const FIRST_REAL_TIME: i32 = 32;

#[derive(Clone, Copy)]
pub struct Waiting {
    list: [SigInfo; WAITING],
    len: usize,
}

impl Waiting {
    pub const fn none() -> Waiting {
        Waiting {
            list: [SigInfo::zeroed(); WAITING],
            len: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The signals, as a set.
    pub fn set(&self) -> u64 {
        let each = self.list.iter().take(self.len).map(|s| bit(s.signo));
        each.fold(0, |all, bit| all | bit)
    }

    fn push(&mut self, info: &SigInfo) {
        if info.signo < FIRST_REAL_TIME && self.set() & bit(info.signo) != 0 {
            return; // pending once
        }
        if let Some(slot) = self.list.get_mut(self.len) {
            *slot = *info;
            self.len += 1;
        }
    }

    /// The first one of a set.
    pub fn take(&mut self, of: u64) -> Option<SigInfo> {
        let all = self.list.get_mut(..self.len)?;
        let at = all.iter().position(|s| of & bit(s.signo) != 0)?;
        let info = *all.get(at)?;
        all.get_mut(at..)?.rotate_left(1);
        self.len -= 1;
        Some(info)
    }
}

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

/// Delivers what the program has unblocked meanwhile.
pub fn deliver(t: &'static Thread, uc: &mut UContext) {
    while !t.inner().leaving {
        let Some(info) = t.inner().waiting.take(!t.inner().hidden) else {
            return;
        };
        signals::raise(t, uc, info.signo, &info);
    }
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
