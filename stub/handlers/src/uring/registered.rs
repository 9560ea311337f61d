//! Rings that a thread has registered with itself (IORING_REGISTER_RING_FDS). The thread names them by a number that is
//! not a descriptor, and the kernel keeps them until the thread unregisters them or ends.

use linux_raw_sys::errno::ESRCH;
use linux_raw_sys::general as k;
use ulpf_lib::sys;

/// Limit of registered rings; further registrations are refused.
pub const MOST: usize = 256;

#[derive(Clone, Copy)]
struct One {
    tid: i32,
    number: u32,
    /// Identity of the ring, or 0 if this slot is free.
    ring: u64,
}

pub struct Registered([One; MOST]);

impl Registered {
    pub const NONE: Registered = Registered(
        [One {
            tid: 0,
            number: 0,
            ring: 0,
        }; MOST],
    );

    pub fn find(&self, tid: i32, number: u32) -> Option<u64> {
        let mut all = self.0.iter().filter(|one| one.ring != 0);
        all.find(|one| one.tid == tid && one.number == number)
            .map(|one| one.ring)
    }

    /// True if there is room for this many.
    pub fn has_room(&mut self, many: u64) -> bool {
        self.0
            .iter_mut()
            .filter(|one| one.ring != 0)
            .for_each(One::bury);
        self.0.iter().filter(|one| one.ring == 0).count() as u64 >= many
    }

    pub fn add(&mut self, tid: i32, number: u32, ring: u64) {
        self.remove(tid, number);
        if let Some(free) = self.0.iter_mut().find(|one| one.ring == 0) {
            *free = One { tid, number, ring };
        }
    }

    pub fn remove(&mut self, tid: i32, number: u32) {
        let here = |one: &&mut One| one.tid == tid && one.number == number;
        self.0.iter_mut().filter(here).for_each(|one| one.ring = 0);
    }

    /// True if a thread keeps the ring.
    pub fn keeps(&mut self, ring: u64) -> bool {
        let mut its = self.0.iter_mut().filter(|one| one.ring == ring);
        its.any(|one| {
            one.bury();
            one.ring != 0
        })
    }
}

impl One {
    /// Frees the slot of a thread that has ended.
    fn bury(&mut self) {
        // SAFETY: no signal, only a check that the thread exists.
        let gone =
            unsafe { sys!(k::__NR_getpid).and_then(|pid| sys!(k::__NR_tgkill, pid, self.tid, 0)) };
        if gone == Err(sys::Errno(ESRCH as i32)) {
            self.ring = 0;
        }
    }
}
