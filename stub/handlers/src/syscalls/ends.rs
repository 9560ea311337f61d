//! The end of a thread: our part of it.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::sys;

use crate::runtime::memory::reachable;
use crate::runtime::park;
use crate::runtime::robust;
use crate::runtime::thread::{Current, State};

/// Cleans up before the kernel ends the thread.
pub fn end_thread(t: Current) {
    let clear = t.own().clear_tid.get();
    if clear != 0 {
        // The kernel clears the word and wakes the joiner through the alias, if its page has one now.
        // SAFETY: registers an address of the program's own choice, or the alias of that memory.
        let _ = unsafe { sys!(k::__NR_set_tid_address, reachable(clear)) };
    }
    robust::exit(t);
    t.robust.store(0, Relaxed);
    t.set_state(State::Dead);
    park::notify();
}
