//! Signals that the program has blocked, though the kernel has not ([`crate::signals::numbers::HIDDEN`]): sent by somebody
//! they wait here, per thread, until the program unblocks or fetches them. Those that an instruction causes
//! never come here; blocked, they end the program.

use super::frame::SigInfo;
use crate::signals::numbers::bit;

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

    pub fn push(&mut self, info: &SigInfo) {
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
