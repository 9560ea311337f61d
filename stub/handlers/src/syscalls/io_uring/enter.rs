//! io_uring_enter(2): hands requests to the kernel, and waits for completions.

use linux_raw_sys::io_uring as u;
use ulpf_lib::sys::failure::{EBADF, EINVAL, EOPNOTSUPP};

use super::completions::look;
use super::polled;
use super::submit::submit;
use super::wait::{GETEVENTS, REGISTERED, wait, wait_in};
use crate::runtime::frame::UContext;
use crate::runtime::park;
use crate::runtime::thread::Current;
use crate::syscalls::call::{ABANDONED, Args};
use crate::uring::queries::{REFUSED, UNKNOWN};
use crate::uring::rings::{self, with};

const ENTER: u64 = (u::IORING_ENTER_GETEVENTS
    | u::IORING_ENTER_SQ_WAKEUP
    | u::IORING_ENTER_SQ_WAIT
    | u::IORING_ENTER_EXT_ARG
    | u::IORING_ENTER_REGISTERED_RING
    | u::IORING_ENTER_ABS_TIMER
    | u::IORING_ENTER_NO_IOWAIT) as u64;

/// The ring of a descriptor, or of a number that the thread has registered.
pub fn find(t: Current, which: u64, registered: bool) -> Option<usize> {
    with(|state| match registered {
        true => state.registered(t.tid(), which as u32),
        false => state.find(which as i32),
    })
}

pub fn enter(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> i64 {
    if a[3] & !ENTER != 0 {
        return EINVAL;
    }
    let registered = a[3] & REGISTERED != 0;
    let Some(ring) = find(t, a[0], registered) else {
        let result = wait(t, uc, nr, a, false);
        if result != EBADF && result != EOPNOTSUPP {
            park::tell(t, uc, &UNKNOWN);
        }
        return result;
    };
    if rings::polled(ring) {
        return polled::enter(t, uc, nr, a, ring);
    }
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
    let result = wait_in(t, uc, nr, a, ring);
    match submitted > 0 && result != ABANDONED {
        true => submitted,
        false => result,
    }
}
