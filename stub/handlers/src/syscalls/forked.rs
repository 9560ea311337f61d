//! The thread that has forked, while its child is followed.

use core::sync::atomic::Ordering::*;

use ulpf_lib::sync::futex;

use crate::global::g;
use crate::runtime::clock;
use crate::runtime::thread::Current;

/// The command reports much earlier that the child runs, if the command still exists.
const LONGEST: u64 = 5_000_000_000;

/// Spins until the child runs. It must not sleep: either process may check whether the other sleeps (/proc/PID/stat),
/// and take that for the call from which it must wake it. The child runs while we are here, and we run before it does.
pub fn until_it_runs(t: Current) {
    let begun = clock::now();
    while g().fork_held.load(SeqCst)
        && g().world.load(SeqCst) == 0
        && !t.leaving.load(Relaxed)
        && clock::now().saturating_sub(begun) < LONGEST
    {
        futex::yield_now();
    }
}
