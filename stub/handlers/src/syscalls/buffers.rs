//! Buffers of system calls in guarded memory: redirected to the alias before the call, and checked for hits after it.
//! The kernel's own accesses raise no fault through the alias, so the call's row tells which memory was touched.

use linux_raw_sys::general as k;
use ulpf_lib::sys::failure::EINPROGRESS;
use ulpf_lib::syscalls;
use ulpf_lib::syscalls::row::{Dir, Left, Len, TIME_SIZE};
use ulpf_lib::{AccessKind, TargetAddr};

use super::call::{Args, EINTR};
use super::list::{List, word};
use super::scratch::{Kept, Scratch};
use super::vectors;
use crate::global::g;
use crate::locks::{self, Held};
use crate::log;
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::thread::{Call, Current};
use crate::{hits, library};

const PATH_MAX: usize = 4096;

/// The length of a buffer before the call; 0 if it is negative, which the kernel refuses.
pub fn length(a: &Args, addr: u64, len: Len) -> u64 {
    let arg = |n: u8| a.get(n as usize).copied().unwrap_or(0);
    match len {
        Len::Fixed(n) => n as u64,
        Len::Arg(n) => arg(n),
        Len::ArgTimes(n, size) => arg(n).saturating_mul(size as u64),
        Len::ArgAnd(n, more) => arg(n).saturating_add(more as u64),
        Len::FdSet(n) => (arg(n) as i32).max(0).unsigned_abs().div_ceil(64) as u64 * 8,
        Len::Pages(n) => arg(n).div_ceil(ulpf_lib::PAGE_SIZE),
        Len::Deref(n) => memory::get::<i32>(arg(n)).map_or(0, |n| n.max(0) as u64),
        Len::OwnSize => memory::get::<u32>(addr).unwrap_or(4).clamp(4, 4096) as u64,
        Len::Str => memory::strlen(addr, PATH_MAX).map_or(0, |n| n as u64 + 1),
    }
}

/// The operation of a futex(2), without its flags.
fn futex_operation(a: &Args) -> u32 {
    a[1] as u32 & k::FUTEX_CMD_MASK as u32
}

fn futex_has_two_words(operation: u32) -> bool {
    matches!(
        operation,
        k::FUTEX_REQUEUE
            | k::FUTEX_CMP_REQUEUE
            | k::FUTEX_WAKE_OP
            | k::FUTEX_WAIT_REQUEUE_PI
            | k::FUTEX_CMP_REQUEUE_PI
    )
}

fn futex_may_have_timeout(operation: u32) -> bool {
    matches!(
        operation,
        k::FUTEX_WAIT
            | k::FUTEX_LOCK_PI
            | k::FUTEX_WAIT_BITSET
            | k::FUTEX_WAIT_REQUEUE_PI
            | k::FUTEX_LOCK_PI2
    )
}

/// Rewrites pointer arguments that lead to guarded memory. `a` is what the program has passed; `to` is what the kernel
/// will get; `ours` marks arguments that already point to our memory.
pub fn redirect(nr: u64, list: &List, a: &Args, to: &mut Args, ours: u32, s: &mut Scratch) {
    if nr == k::__NR_futex as u64 {
        // Waiters and wakers must agree on the address: both words use the alias once their pages have moved.
        let operation = futex_operation(a);
        to[0] = word(a[0]);
        if futex_has_two_words(operation) {
            to[4] = word(a[4]);
        }
        if ours & 8 == 0 && a[3] > 4095 && futex_may_have_timeout(operation) {
            to[3] = s.place(a[3], 16, AccessKind::Read, false);
        }
        return;
    }
    if vectors::split_large(nr, a, to, s) {
        return;
    }
    for b in list.iter() {
        let n = b.arg as usize;
        let Some(&addr) = a.get(n) else { continue };
        if addr == 0 || ours & (1 << n) != 0 {
            continue;
        }
        let len = length(a, addr, b.len);
        let place = match b.dir {
            Dir::IovIn | Dir::IovOut => vectors::redirect(addr, len, b.dir, s),
            Dir::MsgIn | Dir::MsgOut | Dir::MMsgIn | Dir::MMsgOut => {
                vectors::messages(addr, len, b.dir, s)
            }
            Dir::WaitV => vectors::waiters(addr, len, s),
            Dir::In | Dir::InRet => Some(s.place(addr, len, AccessKind::Read, false)),
            Dir::Out => Some(s.place(addr, len, AccessKind::Write, true)),
            Dir::InOut => Some(s.place(addr, len, AccessKind::ReadWrite, true)),
            Dir::OutRet | Dir::OutRetTimes(_) | Dir::OutRetAfter(_) => {
                Some(s.place(addr, len, AccessKind::Write, false))
            }
        };
        if let (Len::Deref(_), true) = (b.len, s.room_before == 0) {
            s.room_before = len;
        }
        if let (Some(v), Some(p)) = (to.get_mut(n), place) {
            *v = p;
        }
    }
    vectors::remote(nr, a, to, s);
    if let Some(n) = s.vector_count {
        to[2] = n;
    }
}

/// Lists the memory that a call touches: at most, before it (`result` is `None`); exactly, after it.
pub fn spans(
    nr: u64,
    list: &List,
    a: &Args,
    result: Option<i64>,
    room_before: u64,
    f: &mut dyn FnMut(u64, u64, AccessKind),
) {
    use AccessKind::*;
    if let Some(r) = result.filter(|r| *r < 0) {
        return after_an_error(nr, a, r, f);
    }
    if nr == k::__NR_futex as u64 {
        match futex_operation(a) {
            k::FUTEX_WAIT
            | k::FUTEX_CMP_REQUEUE
            | k::FUTEX_WAIT_BITSET
            | k::FUTEX_WAIT_REQUEUE_PI => f(a[0], 4, Read),
            k::FUTEX_WAKE_OP => f(a[4], 4, ReadWrite),
            k::FUTEX_LOCK_PI | k::FUTEX_UNLOCK_PI | k::FUTEX_TRYLOCK_PI | k::FUTEX_LOCK_PI2 => {
                f(a[0], 4, ReadWrite)
            }
            _ => {}
        }
        return;
    }
    let done = result.map(|r| r as u64);
    for b in list.iter() {
        let Some(&addr) = a.get(b.arg as usize).filter(|p| **p != 0) else {
            continue;
        };
        let mut len = length(a, addr, b.len);
        if let (Len::Deref(_), true) = (b.len, result.is_some()) {
            len = len.min(room_before); // the kernel says how much there would have been
        }
        let times = |n: u16| done.map_or(len, |r| r.saturating_mul(n as u64).min(len));
        match b.dir {
            Dir::In => f(addr, len, Read),
            Dir::InRet => f(addr, times(1), Read),
            Dir::Out => f(addr, len, Write),
            Dir::InOut => f(addr, len, ReadWrite),
            Dir::OutRet => f(addr, times(1), Write),
            Dir::OutRetTimes(n) => f(addr, times(n), Write),
            Dir::OutRetAfter(n) => f(addr, done.unwrap_or(len).saturating_add(n as u64), Write),
            Dir::IovIn => vectors::spans(addr, len, done, Read, f),
            Dir::IovOut => vectors::spans(addr, len, done, Write, f),
            Dir::MsgIn | Dir::MsgOut | Dir::MMsgIn | Dir::MMsgOut => {
                vectors::message_spans(addr, len, b.dir, done, f)
            }
            Dir::WaitV => vectors::waiter_spans(addr, len, f),
        }
    }
}

/// Lists the memory that a call has touched although it failed.
fn after_an_error(nr: u64, a: &Args, result: i64, f: &mut dyn FnMut(u64, u64, AccessKind)) {
    let mut span = |n: u8, len, kind| {
        if let Some(&addr) = a.get(n as usize).filter(|p| **p != 0) {
            f(addr, len, kind);
        }
    };
    if nr == k::__NR_connect as u64 && result == EINPROGRESS {
        return span(1, a[2], AccessKind::Read);
    }
    let timeout = syscalls::row(nr).and_then(|row| row.timeout);
    if let Some(timeout) = timeout.filter(|t| result == EINTR && t.is_relative(a)) {
        if let Some(n) = timeout.remainder {
            span(n, TIME_SIZE as u64, AccessKind::Write);
        }
        if timeout.left == Left::Written {
            span(timeout.arg, TIME_SIZE as u64, AccessKind::ReadWrite);
        }
    }
}

/// Saves the old contents of watched memory that a call may write.
pub fn before(nr: u64, list: &List, a: &Args, s: &mut Scratch) {
    spans(nr, list, a, None, 0, &mut |addr, len, kind| {
        if kind.writes() {
            s.keep(addr, len);
        }
    });
}

/// Copies results back, and reports the kernel's writes and reads.
pub fn after(t: Current, uc: &mut UContext, list: &List, call: &Call, s: &mut Scratch) {
    vectors::give_back(list, call, s);
    let room = s.room_before;
    spans(
        call.nr,
        list,
        &call.args,
        Some(call.result),
        room,
        &mut |addr, len, kind| {
            if kind.writes() {
                s.written(addr, len);
            }
            log::reserve(t);
            let held = match kind.writes() {
                true => locks::take_written(addr, len),
                false => None,
            };
            hit(t, uc, call, addr, len, kind, &s.kept);
            held.into_iter().for_each(Held::give_back);
        },
    );
}

pub fn hit(
    t: Current,
    uc: &UContext,
    call: &Call,
    addr: u64,
    len: u64,
    kind: AccessKind,
    kept: &Kept,
) {
    if len == 0 || addr.checked_add(len).is_none() {
        return;
    }
    if g().watchlist().any_overlap(TargetAddr(addr), len) && !library::at_work(t) {
        hits::kernel_access(t, &uc.gprs, call, TargetAddr(addr), len, kind, kept);
    }
}
