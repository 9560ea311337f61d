//! Hits of completed requests, by the kernel's writes and reads.

use core::sync::atomic::{AtomicBool, Ordering::*};

use ulpf_lib::AccessKind;
use ulpf_lib::syscalls::uring;

use crate::locks::{self, Held};
use crate::log;
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::thread::{Call, Current};
use crate::syscalls::buffers;
use crate::syscalls::scratch::Kept;
use crate::uring::flight::Span;
use crate::uring::kept::{self, watched};
use crate::uring::rings::{State, with};

static LOOKING: AtomicBool = AtomicBool::new(false);

/// Reports the hits of requests that have completed since the last look.
pub fn look(t: Current, uc: &mut UContext) {
    with(State::exchange);
    // One thread at a time: the old values of a request are shared by all its spans.
    if LOOKING.swap(true, Acquire) {
        return;
    }
    while let Some((span, kept, last)) = with(|state| state.flight.take_done()) {
        report(t, uc, &span, kept);
        if last && kept != 0 {
            kept::free(kept);
        }
    }
    LOOKING.store(false, Release);
}

fn report(t: Current, uc: &mut UContext, span: &Span, kept: u64) {
    let Some(len) = span.touched.filter(|_| watched(span.at, span.len)) else {
        return;
    };
    let nothing = Kept::nothing(core::ptr::null());
    let kept = match kept {
        0 => &nothing,
        // SAFETY: made by `kept::keep`, and freed after this.
        kept => unsafe { &*(kept as *const Kept) },
    };
    let call = Call {
        nr: uring::FIRST + u64::from(span.opcode),
        args: [span.at, span.len, 0, 0, 0, 0],
        result: span.result as i64,
    };
    log::reserve(t);
    let held = match span.kind.writes() {
        true => locks::take_written(span.at, len),
        false => None,
    };
    if span.known {
        buffers::hit(t, uc, &call, span.at, len, span.kind, kept);
    } else if span.kind.writes() {
        for (at, n) in kept.parts() {
            let old = kept.get(at, n).unwrap_or(&[]);
            let same = |i: usize| memory::get::<u8>(at + i as u64) == old.get(i).copied();
            let Some(first) = (0..old.len()).find(|i| !same(*i)) else {
                continue;
            };
            let end = (0..old.len()).rfind(|i| !same(*i)).unwrap_or(first) + 1;
            let (from, n) = (at + first as u64, (end - first) as u64);
            buffers::hit(t, uc, &call, from, n, AccessKind::Write, kept);
        }
    }
    held.into_iter().for_each(Held::give_back);
}
