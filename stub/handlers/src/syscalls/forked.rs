//! The thread that has forked, when its child is followed.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::sys;

use crate::global::g;
use crate::runtime::clock;
use crate::runtime::thread::Current;

/// The command says much earlier that the child runs, if it still is there.
const LONGEST: u64 = 5_000_000_000;

/// Goes on when the child runs, and does not sleep meanwhile: either may look whether the other sleeps (/proc/PID/stat), and
/// take that for the call that it is to wake it from. The child runs while we are here, and we run before it does.
pub fn until_it_runs(t: Current) {
    let begun = clock::now();
    while g().fork_held.load(SeqCst)
        && g().world.load(SeqCst) == 0
        && !t.leaving.load(Relaxed)
        && clock::now().saturating_sub(begun) < LONGEST
    {
        // SAFETY: no pointers.
        let _ = unsafe { sys!(k::__NR_sched_yield) };
    }
}
