//! Rings with a polling thread (IORING_SETUP_SQPOLL). A thread of the kernel would take the program's requests
//! unchanged, so these rings have none. Instead the ring always claims that its thread sleeps (IORING_SQ_NEED_WAKEUP,
//! which only that thread would change). So the program calls the kernel to wake it, and the call hands over all
//! requests.

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
use crate::uring::queries::REFUSED;
use crate::uring::rings::with;

/// Flags that the kernel's ring does not get: its completions come by themselves, and every thread may wake the polling
/// one.
const WITHOUT: u32 = u::IORING_SETUP_SQPOLL
    | u::IORING_SETUP_SQ_AFF
    | u::IORING_SETUP_IOPOLL
    | u::IORING_SETUP_SINGLE_ISSUER;

/// The kernel's verdict on such a ring, and the parameters of the ring that replaces it.
pub fn instead(entries: u64, p: &u::io_uring_params) -> Result<u::io_uring_params, i64> {
    let mut given = *p;
    if !attaches(p) {
        tried(entries, *p)?;
    }
    given.flags &= !WITHOUT;
    Ok(given)
}

/// True if the program asks for the thread of another such ring.
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

/// Creates the ring for a moment, so that the kernel checks flags, processor and rights.
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

/// Takes all requests, as the thread would: a request that fails does not keep back those behind it. `how` has the flag
/// for a registered ring, in the form of io_uring_enter(2).
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

/// io_uring_enter(2) wakes the thread. It returns the caller's number, whatever becomes of the requests.
pub fn enter(t: Current, uc: &mut UContext, nr: u64, a: &Args, ring: usize) -> i64 {
    if take(t, uc, a[0], a[3], ring) == EBADFD {
        return EBADFD; // not enabled yet
    }
    let given = i64::from(a[1] as i32);
    if a[3] & GETEVENTS == 0 {
        look(t, uc);
        return given;
    }
    let result = wait_in(t, uc, nr, a, ring);
    match given != 0 && result != ABANDONED {
        true => given,
        false => result,
    }
}
