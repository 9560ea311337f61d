//! Calls that change the program's mappings.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_lib::addr::USER_END;
use ulpf_lib::guard::flags;
use ulpf_lib::{AccessKind, TargetAddr};

use super::call::{Args, raw};
use super::scratch::Scratch;
use super::{buffers, in_place, inherited, unguarded, userfaultfd};
use crate::breakpoints;
use crate::edits;
use crate::global::g;
use crate::runtime::areas;
use crate::runtime::debug_registers;
use crate::runtime::events::Request;
use crate::runtime::frame::UContext;
use crate::runtime::mapped::{self, CHANGES, Locks, Mapped};
use crate::runtime::thread::{Call, Current};
use crate::runtime::{deferred, park, tracer};
use crate::unwind;
use crate::uring::queries;

/// Makes a call that changes mappings. Memory of ours in the range goes back to plain memory first, with all other
/// threads stopped. Afterwards it is guarded again as far as it still exists. (Some calls need less: `in_place.rs`.)
pub fn memory_call(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> i64 {
    if unmaps_later(t, nr, a) {
        deferred::unmap(a[0], a[1]);
        return 0;
    }
    let affected = match nr as u32 {
        k::__NR_shmdt => affected(nr, a).and_then(|_| segment(t, uc, a[0])),
        _ => affected(nr, a),
    };
    let result = match affected {
        Some((start, end)) => {
            // Memory that is replaced or discarded changes under its watches without any store.
            let replaced = match nr as u32 {
                k::__NR_mmap => Some((start, end)),
                k::__NR_madvise if discards(a[2] as u32) => Some((start, end)),
                k::__NR_mremap if a[3] & MREMAP_FIXED != 0 => {
                    Some((a[4], a[4].saturating_add(a[2])))
                }
                _ => None,
            };
            let mut scratch = Scratch::new(t);
            if let Some((from, to)) = replaced {
                scratch.keep(from, to - from);
            }
            let request = userfaultfd::request(nr, a);
            if let Some(request) = &request {
                scratch.keep(request.answer().0, request.answer().1);
            }
            let r = match in_place::serve(t, uc, nr, a, start, end) {
                Some(r) => r,
                None => {
                    queries::before_release(t, uc, nr, start, end);
                    park::request(t, uc, Request::ReleaseBegin { start, end });
                    let r = match &request {
                        Some(request) => request.make(a),
                        None => inherited::through(nr, a),
                    };
                    CHANGES.fetch_add(1, SeqCst);
                    if r >= 0 {
                        t.own().mapped.set(done(nr, a, r as u64));
                    }
                    park::request(t, uc, Request::End);
                    r
                }
            };
            let call = Call {
                nr,
                args: *a,
                result: r,
            };
            if r < 0 {
                // madvise changes what it can, up to memory that is locked or not mapped.
                unguarded::report(t, uc, &call, &scratch);
            } else if let Some(request) = request {
                let ((asked, n), (answer, m)) = (request.question(), request.answer());
                buffers::hit(t, uc, &call, asked, n, AccessKind::Read, &scratch.kept);
                buffers::hit(t, uc, &call, answer, m, AccessKind::Write, &scratch.kept);
            } else if replaced.is_some() {
                for (addr, len) in scratch.kept.parts() {
                    buffers::hit(t, uc, &call, addr, len, AccessKind::Write, &scratch.kept);
                }
            }
            r
        }
        None => {
            let r = inherited::through(nr, a);
            let changes = CHANGES.fetch_add(1, SeqCst) + 1;
            if r >= 0 && (g().has_watches() || g().has_breakpoints()) {
                let mapped = Mapped {
                    fresh: if mapped::is_fresh(nr, a) { changes } else { 0 },
                    ..done(nr, a, r as u64)
                };
                deferred::gone(mapped.gone);
                let heap = matters(&mapped);
                if heap || watch_in_new_memory(nr, a, r as u64) {
                    t.own().mapped.set(mapped);
                    park::request(t, uc, Request::Rearm);
                }
            }
            r
        }
    };
    if result >= 0 && unwind::is_loaded(nr, a) {
        park::request(t, uc, Request::Unwind { at: 0 });
    }
    if nr as u32 == k::__NR_brk && result > 0 {
        g().brk.store(result as u64, Relaxed);
    }
    result
}

/// True for an munmap(2) of memory that is ours by a task for which the world cannot be stopped.
fn unmaps_later(t: Current, nr: u64, a: &Args) -> bool {
    let whole = a[0].is_multiple_of(4096) && a[1] > 0;
    nr as u32 == k::__NR_munmap && whole && tracer::holds(t) && affected(nr, a).is_some()
}

fn done(nr: u64, a: &Args, result: u64) -> Mapped {
    match userfaultfd::request(nr, a) {
        Some(request) => Mapped {
            gone: request.range(),
            ..Mapped::default()
        },
        None => Mapped::by(nr, a, result, g().brk.load(Relaxed)),
    }
}

/// True if an ioctl changes memory at an address, and that memory is ours.
pub fn is_memory_call(nr: u64, a: &Args) -> bool {
    nr as u32 == k::__NR_ioctl && affected(nr, a).is_some()
}

/// mlock(2) and the like: memory of ours keeps these locks when it is moved or given back.
pub fn lock_call(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> i64 {
    // The size of our tables suffices for all memory that could be watched.
    if nr as u32 == k::__NR_mlockall && areas::SOME.load(Relaxed) {
        park::request(t, uc, Request::NoPatches);
    }
    let (start, end) = match nr as u32 {
        k::__NR_mlockall | k::__NR_munlockall => (0, USER_END),
        _ => (a[0] & !4095, a[0].saturating_add(a[1]).min(USER_END)),
    };
    let current = nr as u32 == k::__NR_mlockall && a[0] & u64::from(k::MCL_CURRENT) != 0;
    let moved = start < end && (current || g().touches(start, end));
    if moved {
        // The kernel faults the pages in, so they must be accessible.
        park::request(t, uc, Request::LocksBegin { start, end });
    }
    let make = || match current {
        true => lock_whole(a),
        false => raw(nr, a),
    };
    let result = inherited::locks(nr, a, make);
    if result == 0 && end == USER_END {
        let future = nr as u32 == k::__NR_mlockall && a[0] & u64::from(k::MCL_FUTURE) != 0;
        flags::locks_follow(future);
    }
    if moved {
        t.own().locks.set(Locks::by(nr, a, result));
        park::request(t, uc, Request::End);
    }
    result
}

/// mlockall(2) without filling pages: our memory is sparse, and larger than the machine's.
fn lock_whole(a: &Args) -> i64 {
    const ONFAULT: u64 = k::MCL_ONFAULT as u64;
    const FUTURE: u64 = k::MCL_FUTURE as u64;
    let nr = k::__NR_mlockall.into();
    let with = |flags: u64| raw(nr, &[flags, 0, 0, 0, 0, 0]);
    let result = with(a[0] | ONFAULT);
    if result == 0 && a[0] & FUTURE != 0 && a[0] & ONFAULT == 0 {
        return with(FUTURE); // later mappings are filled
    }
    result
}

const MREMAP_FIXED: u64 = k::MREMAP_FIXED as u64;

/// True for advice of madvise(2) that discards content at once.
fn discards(advice: u32) -> bool {
    matches!(
        advice,
        k::MADV_DONTNEED | k::MADV_REMOVE | k::MADV_DONTNEED_LOCKED
    )
}

/// True for advice that changes content, inheritance or protection; the rest affects only speed.
fn changes(advice: u32) -> bool {
    let content = discards(advice) || advice == k::MADV_FREE;
    let inheritance = matches!(
        advice,
        k::MADV_DONTFORK | k::MADV_DOFORK | k::MADV_WIPEONFORK | k::MADV_KEEPONFORK
    );
    let access = matches!(
        advice,
        k::MADV_POPULATE_READ
            | k::MADV_POPULATE_WRITE
            | k::MADV_GUARD_INSTALL
            | k::MADV_GUARD_REMOVE
    );
    content || inheritance || access
}

/// The memory of the System V segment at `at`, if some of it is ours.
fn segment(t: Current, uc: &mut UContext, at: u64) -> Option<(u64, u64)> {
    t.own().segment.set((0, USER_END));
    park::request(t, uc, Request::Segment { at });
    let (start, end) = t.own().segment.get();
    is_ours(k::__NR_shmdt.into(), start, end).then_some((start, end))
}

/// The memory whose mapping a call is about to change, if some of it is ours.
pub fn affected(nr: u64, a: &Args) -> Option<(u64, u64)> {
    let span = |start: u64, len: u64| {
        (
            start & !4095,
            start
                .saturating_add(len)
                .min(USER_END)
                .next_multiple_of(4096),
        )
    };
    let range = match nr as u32 {
        k::__NR_mmap
            if a[3] & k::MAP_FIXED as u64 != 0 && a[3] & k::MAP_FIXED_NOREPLACE as u64 == 0 =>
        {
            span(a[0], a[1])
        }
        k::__NR_munmap | k::__NR_mprotect | k::__NR_pkey_mprotect | k::__NR_remap_file_pages => {
            span(a[0], a[1])
        }
        k::__NR_madvise if changes(a[2] as u32) => span(a[0], a[1]),
        k::__NR_mremap => {
            let old = span(a[0], a[1].max(a[2]).max(1));
            let new = span(a[4], a[2]);
            if a[3] & MREMAP_FIXED != 0 && g().touches(new.0, new.1) {
                (old.0.min(new.0), old.1.max(new.1))
            } else {
                old
            }
        }
        k::__NR_brk => {
            let end = g().brk.load(Relaxed);
            match a[0] {
                0 => return None,
                // The break must stay a page away from mappings above it.
                new if new >= end => {
                    span(end.next_multiple_of(4096), (new - end).saturating_add(8192))
                }
                new => span(new.next_multiple_of(4096), end - new),
            }
        }
        k::__NR_ioctl => userfaultfd::request(nr, a)?.range(),
        k::__NR_shmat if a[1] != 0 => (0, USER_END),
        // Only the kernel has the length of the segment.
        k::__NR_shmdt => (0, USER_END),
        _ => return None,
    };
    is_ours(nr, range.0, range.1).then_some(range)
}

/// Whether a call that changes the mappings of `[start, end)` concerns us.
fn is_ours(nr: u64, start: u64, end: u64) -> bool {
    start < end
        && (g().touches(start, end)
            || g().wants(nr, start, end)
            || debug_registers::any_in(start, end)
            || edits::touch_mappings(start, end)
            || unwind::touches(start, end))
}

/// True if a call's change of the mappings concerns a watched heap.
pub fn matters(m: &Mapped) -> bool {
    let old = |r: (u64, u64)| r.0 < r.1 && g().watchlist().any_overlap(TargetAddr(r.0), r.1 - r.0);
    g().heap_watched.load(Relaxed)
        && (old(m.gone) || m.come.0 < m.come.1 && (m.only_if.0 == m.only_if.1 || old(m.only_if)))
}

/// True if memory that a call has just made accessible is under a watch, or under a breakpoint that waits for code.
pub fn watch_in_new_memory(nr: u64, a: &Args, result: u64) -> bool {
    let Some((start, len)) = new_memory(nr, a, result) else {
        return false;
    };
    len != 0
        && (breakpoints::waits_in(start, start.saturating_add(len))
            || g()
                .watchlist()
                .any_overlap(TargetAddr(start), len.min(USER_END - start.min(USER_END))))
}

/// The memory that a successful call has made accessible: address and length.
fn new_memory(nr: u64, a: &Args, result: u64) -> Option<(u64, u64)> {
    let (start, len) = match nr as u32 {
        k::__NR_mmap => (result, a[1]),
        k::__NR_mprotect | k::__NR_pkey_mprotect => (a[0], a[1]),
        k::__NR_shmat => (result, USER_END), // only the kernel has the length of the segment
        k::__NR_mremap => (result, a[2]),
        k::__NR_brk => {
            let before = g().brk.load(Relaxed);
            (before, result.saturating_sub(before))
        }
        _ => return None,
    };
    Some((start, len))
}
