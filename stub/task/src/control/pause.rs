//! Short waits of the stub's task.

use linux_raw_sys::general as k;
use ulpf_lib::sync::futex;
use ulpf_lib::sys;
use ulpf_stub_handlers::global::g;

/// Waits for an event, if none has come since `seen`, but at most 10 ms.
pub fn wait_a_little(seen: u32) {
    futex::wait_for(&g().event, seen, 10_000_000);
}

/// Sleeps a millisecond.
pub fn sleep() {
    let tick = [0u64, 1_000_000];
    // SAFETY: only sleeps.
    let _ = unsafe { sys!(k::__NR_nanosleep, tick.as_ptr(), 0) };
}

/// Milliseconds that the system has run.
pub fn clock() -> u64 {
    let mut time = [0u64; 2];
    // SAFETY: fills two numbers.
    let _ = unsafe { sys!(k::__NR_clock_gettime, k::CLOCK_MONOTONIC, &raw mut time) };
    time[0] * 1000 + time[1] / 1_000_000
}
