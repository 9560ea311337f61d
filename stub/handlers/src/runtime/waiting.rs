//! Signals that the program has blocked, but not the kernel ([`crate::signals::numbers::HIDDEN`]). If a process or
//! thread sends them, they wait here, per thread, until the program unblocks or fetches them. Signals caused by an
//! instruction never come here; if they are blocked, they end the program.

use core::cell::Cell;

use super::frame::SigInfo;
use crate::signals::numbers::bit;

/// More than the four standard signals among them: the park signal is a real-time signal and may be queued.
pub const WAITING: usize = 8;
const FIRST_REAL_TIME: i32 = 32;

pub struct Waiting {
    list: [Cell<SigInfo>; WAITING],
    len: Cell<usize>,
}

impl Waiting {
    pub const fn none() -> Waiting {
        Waiting {
            list: [const { Cell::new(SigInfo::zeroed()) }; WAITING],
            len: Cell::new(0),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len.get() == 0
    }

    pub fn clear(&self) {
        self.len.set(0);
    }

    fn all(&self) -> &[Cell<SigInfo>] {
        self.list.get(..self.len.get()).unwrap_or(&[])
    }

    /// The signals, as a set.
    pub fn set(&self) -> u64 {
        let each = self.all().iter().map(|s| bit(s.get().signo));
        each.fold(0, |all, bit| all | bit)
    }

    pub fn push(&self, info: &SigInfo) {
        if info.signo < FIRST_REAL_TIME && self.set() & bit(info.signo) != 0 {
            return; // pending once
        }
        if let Some(slot) = self.list.get(self.len.get()) {
            slot.set(*info);
            self.len.set(self.len.get() + 1);
        }
    }

    /// The first one of a set.
    pub fn take(&self, of: u64) -> Option<SigInfo> {
        let all = self.all();
        let at = all.iter().position(|s| of & bit(s.get().signo) != 0)?;
        let info = all.get(at)?.get();
        for (to, from) in all.iter().skip(at).zip(all.iter().skip(at + 1)) {
            to.set(from.get());
        }
        self.len.set(self.len.get() - 1);
        Some(info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signal(signo: i32, sender: u64) -> SigInfo {
        let mut info = SigInfo {
            signo,
            ..SigInfo::zeroed()
        };
        info.data[0] = sender;
        info
    }

    #[test]
    fn a_standard_signal_is_pending_once_and_a_real_time_signal_is_queued() {
        let waiting = &Waiting::none();
        for sender in 1..=2 {
            waiting.push(&signal(5, sender));
            waiting.push(&signal(40, sender));
        }
        assert_eq!(waiting.set(), bit(5) | bit(40));
        let senders = |of| core::iter::from_fn(move || waiting.take(of)).map(|s| s.data[0]);
        assert_eq!(senders(bit(5)).collect::<Vec<_>>(), [1]);
        assert_eq!(senders(bit(40)).collect::<Vec<_>>(), [1, 2]);
        assert!(waiting.is_empty());
    }

    #[test]
    fn what_is_not_asked_for_goes_on_waiting() {
        let waiting = Waiting::none();
        waiting.push(&signal(7, 0));
        waiting.push(&signal(11, 0));
        assert_eq!(waiting.take(bit(5)).map(|s| s.signo), None);
        assert_eq!(waiting.take(bit(11)).map(|s| s.signo), Some(11));
        assert_eq!(waiting.set(), bit(7));
    }
}
