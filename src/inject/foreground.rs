//! The terminal's foreground belongs to the program while we serve it, as with gdbserver.

use super::sys;
use std::sync::atomic::{AtomicI32, Ordering};

/// Group that was in the foreground before the first hand-over; 0: none yet.
static BEFORE: AtomicI32 = AtomicI32::new(0);

pub fn hand_to(pid: i32) {
    if let Some(old) = sys::set_foreground(pid) {
        let _ = BEFORE.compare_exchange(0, old, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Before the command ends.
pub fn take_back() {
    let old = BEFORE.swap(0, Ordering::Relaxed);
    if old != 0 {
        sys::set_foreground(old);
    }
}

/// Gives the terminal to our own process group (GDB's, under `ulpf gdb`).
pub fn to_own_group() {
    sys::set_foreground(sys::own_group());
}
