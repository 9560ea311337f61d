//! Rings that a thread has registered with itself (IORING_REGISTER_RING_FDS): it names them by a number that is no
//! descriptor, and the kernel keeps them until the thread takes that back or ends.

use linux_raw_sys::errno::ESRCH;
use linux_raw_sys::general as k;
use ulpf_lib::sys;

/// More are not noted, so that their threads are refused.
pub const MOST: usize = 256;

#[derive(Clone, Copy)]
struct One {
    tid: i32,
    number: u32,
    /// Zero: none.
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

    /// Is there room for so many?
    pub fn room(&mut self, many: u64) -> bool {
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

    /// Does a thread keep the ring?
    pub fn keeps(&mut self, ring: u64) -> bool {
        let mut its = self.0.iter_mut().filter(|one| one.ring == ring);
        its.any(|one| {
            one.bury();
            one.ring != 0
        })
    }
}

impl One {
    /// Nothing is left of what a thread has registered that has ended.
    fn bury(&mut self) {
        // SAFETY: no signal, only the question whether the thread is there.
        let gone =
            unsafe { sys!(k::__NR_getpid).and_then(|pid| sys!(k::__NR_tgkill, pid, self.tid, 0)) };
        if gone == Err(sys::Errno(ESRCH as i32)) {
            self.ring = 0;
        }
    }
}
