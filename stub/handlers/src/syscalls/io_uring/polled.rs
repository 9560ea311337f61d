//! Rings with a polling thread (IORING_SETUP_SQPOLL). A thread of the kernel would take requests as the program has
//! written them, so there is none: the ring says all the time that its thread sleeps (IORING_SQ_NEED_WAKEUP, which
//! nobody but that thread touches), the program calls to wake it, and the call hands over all requests that are there.

use linux_raw_sys::general as k;
use linux_raw_sys::io_uring as u;
use ulpf_lib::sys::failure::EBADFD;

use super::completions::look;
use super::submit::submit;
use super::wait::{GETEVENTS, wait_in};
use crate::runtime::frame::UContext;
use crate::runtime::park;
use crate::runtime::thread::Current;
use crate::syscalls::call::{ABANDONED, Args, raw};
use crate::uring::held::REFUSED;
use crate::uring::rings::with;

/// What the kernel's ring has not: its completions come by themselves, and every thread may wake the one that polls.
const WITHOUT: u32 = u::IORING_SETUP_SQPOLL
    | u::IORING_SETUP_SQ_AFF
    | u::IORING_SETUP_IOPOLL
    | u::IORING_SETUP_SINGLE_ISSUER;

/// What the kernel says to such a ring, and the parameters of the one that it gets instead.
pub fn instead(entries: u64, p: &u::io_uring_params) -> Result<u::io_uring_params, i64> {
    let mut given = *p;
    if !attaches(p) {
        tried(entries, *p)?;
    }
    given.flags &= !WITHOUT;
    Ok(given)
}

/// The thread of another such ring is wanted.
fn attaches(p: &u::io_uring_params) -> bool {
    let polled = |fd| {
        with(|state| {
            let ring = state.find(fd);
            ring.and_then(|n| state.rings.get(n))
                .is_some_and(|r| r.polled)
        })
    };
    p.flags & u::IORING_SETUP_ATTACH_WQ != 0 && polled(p.wq_fd as i32)
}

/// The kernel checks flags, processor and rights itself: a ring for a moment.
fn tried(entries: u64, mut p: u::io_uring_params) -> Result<(), i64> {
    let fd = raw(
        k::__NR_io_uring_setup as u64,
        &[entries, &raw mut p as u64, 0, 0, 0, 0],
    );
    if fd < 0 {
        return Err(fd);
    }
    raw(k::__NR_close as u64, &[fd as u64, 0, 0, 0, 0, 0]);
    Ok(())
}

/// All requests that are there, as the thread would take them: a request that fails does not keep those behind it.
/// `how`: is it named by a descriptor, or as one that is registered?
pub fn take(t: Current, uc: &mut UContext, fd: u64, how: u64, ring: usize) -> i64 {
    let a = [fd, u64::from(u32::MAX), 0, how, 0, 0];
    let heads = || {
        with(|state| {
            state
                .rings
                .get(ring)
                .map_or((0, 0), |r| (r.head(), r.tail()))
        })
    };
    loop {
        let before = heads().0;
        let (result, refused) = submit(t, k::__NR_io_uring_enter as u64, &a, ring);
        if refused {
            park::tell(t, uc, &REFUSED);
        }
        let (head, tail) = heads();
        if head == tail || head == before {
            return result;
        }
    }
}

/// io_uring_enter(2): the thread is woken, the caller's number comes back to it whatever becomes of the requests.
pub fn enter(t: Current, uc: &mut UContext, nr: u64, a: &Args, ring: usize) -> i64 {
    if take(t, uc, a[0], a[3], ring) == EBADFD {
        return EBADFD; // not enabled yet
    }
    let told = i64::from(a[1] as i32);
    if a[3] & GETEVENTS == 0 {
        look(t, uc);
        return told;
    }
    let result = wait_in(t, uc, nr, a, ring);
    match told != 0 && result != ABANDONED {
        true => told,
        false => result,
    }
}
