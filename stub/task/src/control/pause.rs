//! Short waits of the stub's task.

use linux_raw_sys::general as k;
use ulpf_lib::sys;
use ulpf_stub_handlers::global::g;

/// Waits for an event, if none has come since `seen`, but at most 10 ms.
pub fn wait_a_little(seen: u32) {
    let tick = [0u64, 10_000_000];
    // SAFETY: waits at most 10 ms for a change.
    let _ = unsafe {
        sys!(
            k::__NR_futex,
            &g().event as *const _,
            k::FUTEX_WAIT,
            seen,
            tick.as_ptr()
        )
    };
}

/// Sleeps a millisecond.
pub fn sleep() {
    let tick = [0u64, 1_000_000];
    // SAFETY: only sleeps.
    let _ = unsafe { sys!(k::__NR_nanosleep, tick.as_ptr(), 0) };
}
