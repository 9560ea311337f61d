//! Queries of other calls about rings: which calls may close one, and which memory must not move.

use core::sync::atomic::{AtomicBool, Ordering::*};

use linux_raw_sys::general as k;

use super::rings::{self, State, with};
use crate::global::g;
use crate::runtime::frame::UContext;
use crate::runtime::park;
use crate::runtime::thread::Current;

/// The program has asked for an operation that is not served.
pub static REFUSED: AtomicBool = AtomicBool::new(false);
/// The program uses a ring that is not known here.
pub static UNKNOWN: AtomicBool = AtomicBool::new(false);
/// Memory that requests hold has been taken away from them.
pub static TAKEN: AtomicBool = AtomicBool::new(false);

/// True if the call can close a ring, and there is one: then it is not left to slots.
pub fn may_close(nr: u64) -> bool {
    rings::SOME.load(Relaxed) && closes(nr)
}

fn closes(nr: u64) -> bool {
    matches!(
        nr as u32,
        k::__NR_close | k::__NR_close_range | k::__NR_dup2 | k::__NR_dup3
    )
}

/// After a call that may have closed a ring.
pub fn closed(nr: u64) {
    if may_close(nr) {
        with(State::bury);
    }
}

/// True if a request in flight may touch `[start, end)`. Called with the world stopped, or in a handler.
pub fn in_use(start: u64, end: u64) -> bool {
    rings::SOME.load(Relaxed)
        && with(|state| {
            state.mark();
            state.holds(start, end)
        })
}

/// The mapping of memory changes. Without us, requests in flight would not be disturbed by the program's change.
pub fn before_release(t: Current, uc: &mut UContext, nr: u64, start: u64, end: u64) {
    let gone = matches!(nr as u32, k::__NR_munmap | k::__NR_mmap | k::__NR_shmdt);
    if !gone && rings::SOME.load(Relaxed) && g().touches(start, end) && in_use(start, end) {
        park::tell(t, uc, &TAKEN);
    }
}
