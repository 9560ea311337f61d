//! Hands the terminal's foreground to the program while we serve it, as gdbserver does.

use crate::sys;
use std::sync::atomic::{AtomicI32, Ordering};

/// Group that was in the foreground before the first hand-over, or 0.
static BEFORE: AtomicI32 = AtomicI32::new(0);

/// Gives the terminal to the process group `pid`; [`take_back`] undoes it.
pub fn hand_to(pid: i32) {
    if let Some(old) = sys::set_foreground(pid) {
        let _ = BEFORE.compare_exchange(0, old, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Takes the terminal back before the command ends.
pub fn take_back() {
    let old = BEFORE.swap(0, Ordering::Relaxed);
    if old != 0 {
        sys::set_foreground(old);
    }
}

/// GDB's process group under `ulpf gdb`, or 0.
static DEBUGGER: AtomicI32 = AtomicI32::new(0);

/// From now on `group` has the terminal whenever the program does not run.
pub fn share_with(group: i32) {
    DEBUGGER.store(group, Ordering::Relaxed);
    if let Some(old) = sys::set_foreground(group) {
        let _ = BEFORE.compare_exchange(0, old, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Gives the terminal to the program, if it is shared.
pub fn to_program(pid: i32) {
    if DEBUGGER.load(Ordering::Relaxed) != 0 {
        sys::set_foreground(pid);
    }
}

/// Gives the terminal to the debugger.
pub fn to_debugger() {
    let group = DEBUGGER.load(Ordering::Relaxed);
    if group != 0 {
        sys::set_foreground(group);
    }
}

/// Whether our group has the terminal, or no terminal exists, so that we may hand it over.
pub fn is_ours() -> bool {
    sys::foreground_group().is_none_or(|group| group == sys::own_group())
}
