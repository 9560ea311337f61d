//! The calls of io_uring: a ring is made, requests are handed to the kernel, completions waited for.

use core::sync::atomic::{AtomicBool, Ordering::*};

use linux_raw_sys::general as k;
use linux_raw_sys::io_uring as u;
use ulpf_lib::AccessKind;
use ulpf_lib::sys::failure::{EINVAL, ENOMEM};
use ulpf_lib::syscalls::uring;

use crate::locks::{self, Held};
use crate::runtime::clock;
use crate::runtime::events::Request;
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::park;
use crate::runtime::thread::{Call, Current};
use crate::signals::numbers;
use crate::uring::flight::Span;
use crate::uring::held::{REFUSED, UNKNOWN};
use crate::uring::kept::{self, watched};
use crate::uring::rings::{self, Ring, State, with};

use super::operands::{Message, Rewriter, Sqe};

use crate::syscalls::call::{ABANDONED, Args, EFAULT, raw};
use crate::syscalls::masked::{waits, with_mask};
use crate::syscalls::ordinary::call;
use crate::syscalls::scratch::{Kept, Scratch};
use crate::syscalls::{buffers, sites};

const SETUP: u32 = u::IORING_SETUP_IOPOLL
    | u::IORING_SETUP_CQSIZE
    | u::IORING_SETUP_CLAMP
    | u::IORING_SETUP_ATTACH_WQ
    | u::IORING_SETUP_R_DISABLED
    | u::IORING_SETUP_SUBMIT_ALL
    | u::IORING_SETUP_COOP_TASKRUN
    | u::IORING_SETUP_TASKRUN_FLAG
    | u::IORING_SETUP_SQE128
    | u::IORING_SETUP_CQE32
    | u::IORING_SETUP_SINGLE_ISSUER
    | u::IORING_SETUP_DEFER_TASKRUN
    | u::IORING_SETUP_NO_SQARRAY;
/// Without these, a kernel is too old.
const NEEDED: u32 =
    u::IORING_FEAT_SINGLE_MMAP | u::IORING_FEAT_NODROP | u::IORING_FEAT_SUBMIT_STABLE;
/// Completions that do not come, descriptors that are none, receives of many buffers: not for the program.
const HIDDEN: u32 =
    u::IORING_FEAT_CQE_SKIP | u::IORING_FEAT_REG_REG_RING | u::IORING_FEAT_RECVSEND_BUNDLE;
const ENTER: u64 = (u::IORING_ENTER_GETEVENTS
    | u::IORING_ENTER_SQ_WAKEUP
    | u::IORING_ENTER_SQ_WAIT
    | u::IORING_ENTER_EXT_ARG
    | u::IORING_ENTER_ABS_TIMER
    | u::IORING_ENTER_NO_IOWAIT) as u64;
const GETEVENTS: u64 = u::IORING_ENTER_GETEVENTS as u64;
const EXT_ARG: u64 = u::IORING_ENTER_EXT_ARG as u64;
const ABS_TIMER: u64 = u::IORING_ENTER_ABS_TIMER as u64;
const PARAMS: u64 = size_of::<u::io_uring_params>() as u64;

pub fn setup(t: Current, uc: &mut UContext, a: &Args) -> i64 {
    let nr = k::__NR_io_uring_setup as u64;
    let Some(mut p) = memory::get::<u::io_uring_params>(a[1]) else {
        return EFAULT;
    };
    if p.flags & !SETUP != 0 {
        park::tell(t, uc, &REFUSED);
        return EINVAL;
    }
    let fd = raw(nr, &[a[0], &raw mut p as u64, 0, 0, 0, 0]);
    if fd < 0 {
        return fd;
    }
    let close = |error| {
        raw(k::__NR_close as u64, &[fd as u64, 0, 0, 0, 0, 0]);
        error
    };
    if p.features & NEEDED != NEEDED {
        park::tell(t, uc, &REFUSED);
        return close(EINVAL);
    }
    let Some(ring) = Ring::new(fd as i32, &p) else {
        return close(ENOMEM);
    };
    if !rings::SOME.swap(true, SeqCst) && sites::SOME.load(SeqCst) {
        park::request(t, uc, Request::SitesAnew);
    }
    let added = with(|state| {
        state.bury();
        state.flight.begin() && state.add(ring)
    });
    if !added {
        ring.give_up();
        return close(ENOMEM);
    }
    p.features &= !HIDDEN;
    let mut scratch = Scratch::new(t);
    scratch.keep(a[1], PARAMS);
    if !memory::put(a[1], &p) {
        close(0);
        with(State::bury);
        return EFAULT;
    }
    let call = Call {
        nr,
        args: *a,
        result: fd,
    };
    buffers::hit(
        t,
        uc,
        &call,
        a[1],
        PARAMS,
        AccessKind::ReadWrite,
        &scratch.kept,
    );
    fd
}

pub fn enter(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> i64 {
    if a[3] & !ENTER != 0 {
        return EINVAL;
    }
    let Some(ring) = with(|state| state.find(a[0] as i32)) else {
        if rings::inode(a[0] as i32).is_some() {
            park::tell(t, uc, &UNKNOWN);
        }
        return wait(t, uc, nr, a, false);
    };
    let to_submit = a[1] as u32 as u64;
    let mut submitted = 0;
    if to_submit > 0 {
        let (result, refused) = submit(t, nr, a, ring);
        submitted = result;
        if refused {
            park::tell(t, uc, &REFUSED);
        }
        if submitted != to_submit as i64 {
            look(t, uc);
            return submitted;
        }
    }
    if a[3] & GETEVENTS == 0 && to_submit > 0 {
        look(t, uc);
        return submitted;
    }
    let rest = [a[0], 0, a[2], a[3], a[4], a[5]];
    let until = with(|state| state.rings.get(ring).is_some_and(|r| r.until));
    let result = wait(t, uc, nr, &rest, until);
    look(t, uc);
    match submitted > 0 && result != ABANDONED {
        true => submitted,
        false => result,
    }
}

/// The waiting half of the call, with the signal mask and the time that the program gives it. `until`: the kernel takes
/// the time at which it ends.
fn wait(t: Current, uc: &mut UContext, nr: u64, a: &Args, until: bool) -> i64 {
    if a[3] & EXT_ARG == 0 {
        return with_mask(t, uc, nr, a, 4, None);
    }
    // struct io_uring_getevents_arg: mask, its size and the shortest wait, time.
    let Some([mask_at, sizes, time_at]) = memory::get::<[u64; 3]>(a[4]).filter(|_| a[5] == 24)
    else {
        return call(t, uc, nr, a, a, 0); // the kernel says what is wrong
    };
    let mut given = *a;
    let mut arg = [mask_at, sizes, time_at];
    let mut time;
    if time_at != 0 {
        time = match memory::get::<[i64; 2]>(time_at) {
            Some(time) => time,
            None => return EFAULT,
        };
        if until && a[3] & ABS_TIMER == 0 && time[0] >= 0 && (0..NANOS).contains(&time[1]) {
            // Made again after an interruption of ours, it ends when it would have ended.
            let end = clock::now() as i64 + time[1];
            time = [time[0].saturating_add(end / NANOS), end % NANOS];
            given[3] |= ABS_TIMER;
        }
        arg[2] = time.as_ptr() as u64;
    }
    given[4] = arg.as_ptr() as u64;
    if mask_at == 0 {
        return call(t, uc, nr, a, &given, 1 << 4);
    }
    let Some(m) = memory::get::<u64>(mask_at) else {
        return EFAULT;
    };
    let mask = m & !numbers::HIDDEN;
    arg[0] = &raw const mask as u64;
    given[4] = arg.as_ptr() as u64;
    waits(t, uc, nr, a, &given, 1 << 4, m)
}

const NANOS: i64 = 1_000_000_000;

/// A request that has been changed.
#[derive(Clone, Copy)]
struct Changed {
    at: u64,
    was: Sqe,
    message: Option<Message>,
}

/// Hands requests to the kernel; and whether there was one that is not served.
fn submit(t: Current, nr: u64, a: &Args, n: usize) -> (i64, bool) {
    let mut s = Scratch::new(t);
    with(|state| {
        state.mark();
        let Some(ring) = state.rings.get(n).copied() else {
            return (EINVAL, false);
        };
        let head = ring.head();
        let many = ring
            .tail()
            .wrapping_sub(head)
            .min(a[1] as u32)
            .min(ring.entries);
        let Some(changed) = s.room(many as u64 * size_of::<Changed>() as u64) else {
            return (ENOMEM, false);
        };
        let changed = changed as *mut Changed;
        let (mut count, mut refused) = (0, false);
        let first = state.flight.next_request();
        for i in 0..many {
            let request = match i {
                0 => first,
                _ => state.flight.next_request(),
            };
            let Some(at) = ring.sqe(head.wrapping_add(i)) else {
                continue;
            };
            // SAFETY: a request in our view of the ring.
            let was = unsafe { (at as *const Sqe).read_volatile() };
            let mut sqe = was;
            let noted = state.flight.noted();
            let mut rewriter = Rewriter {
                flight: &mut state.flight,
                ring: &ring,
                number: n as u8,
                request,
                first: true,
                s: &mut s,
                sqe: &mut sqe,
                message: None,
                many: false,
                unnoted: false,
            };
            let served = rewriter.rewrite().is_ok();
            let (message, more, unnoted) = (rewriter.message, rewriter.many, rewriter.unnoted);
            if !served {
                sqe.opcode = u8::MAX;
                refused = true;
                state.flight.truncate(noted);
                let number = was.user_data;
                if !state
                    .flight
                    .add(Span::without_memory(n as u8, request, number))
                {
                    state.lose(n);
                }
            }
            if unnoted {
                state.lose(n);
            }
            if more && let Some(ring) = state.rings.get_mut(n) {
                ring.many = true;
            }
            state.flight.keep_old(noted);
            // SAFETY: room for all; a request in our view.
            unsafe {
                changed.add(count).write(Changed { at, was, message });
                (at as *mut Sqe).write_volatile(sqe);
            }
            count += 1;
        }
        let result = raw(nr, &[a[0], many as u64, 0, 0, 0, 0]);
        // SAFETY: so many were written.
        let changed = unsafe { core::slice::from_raw_parts(changed, count) };
        for c in changed.iter().rev() {
            // SAFETY: a request in our view.
            unsafe { (c.at as *mut Sqe).write_volatile(c.was) };
            if let Some(m) = c.message {
                m.was.put_pointers(m.at);
            }
        }
        let taken = ring.head().wrapping_sub(head);
        state.flight.forget(|span| {
            span.ring == n as u8
                && span.request.wrapping_sub(first) < many
                && span.request.wrapping_sub(first) >= taken
        });
        if let Some(ring) = state.rings.get_mut(n) {
            ring.submitted = ring.submitted.wrapping_add(taken);
        }
        (result, refused)
    })
}

static LOOKING: AtomicBool = AtomicBool::new(false);

/// What has completed since somebody last looked: hits of what the kernel has written and read.
pub fn look(t: Current, uc: &mut UContext) {
    with(State::mark);
    // One thread at a time: old values of a request belong to all its spans.
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
