//! Does the work that a task has put off while it held the program's threads by ptrace(2) (`crate::runtime::owed`).

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;

use super::mappings::memory_call;
use crate::runtime::deferred::{self, Owed};
use crate::runtime::events::Request;
use crate::runtime::frame::UContext;
use crate::runtime::park;
use crate::runtime::thread::Current;
use crate::runtime::tracer;

/// Does all of it, unless there is nothing, or the thread still holds others.
pub fn serve(t: Current, uc: &mut UContext) {
    while deferred::SOME.load(Relaxed) && !tracer::holds(t) {
        if deferred::begin(t) {
            serve_all(t, uc);
            deferred::end();
            return;
        }
        park::request(t, uc, Request::Tell);
    }
}

fn serve_all(t: Current, uc: &mut UContext) {
    deferred::take(|owed| match owed {
        Owed::Mapped(mapped) => {
            t.own().mapped.set(mapped);
            park::request(t, uc, Request::Rearm);
        }
        Owed::Unmap(start, end) => {
            let range = [start, end - start, 0, 0, 0, 0];
            memory_call(t, uc, k::__NR_munmap.into(), &range);
        }
    });
    for request in deferred::requests() {
        park::request(t, uc, request);
    }
}
