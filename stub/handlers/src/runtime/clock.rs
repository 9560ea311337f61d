//! The time that waits are counted in.

use linux_raw_sys::general as k;
use ulpf_lib::sys;

/// CLOCK_MONOTONIC, in nanoseconds.
pub fn now() -> u64 {
    let mut t = [0u64; 2];
    // SAFETY: fills `t`.
    let _ = unsafe { sys!(k::__NR_clock_gettime, k::CLOCK_MONOTONIC, t.as_mut_ptr()) };
    t[0] * 1_000_000_000 + t[1]
}
