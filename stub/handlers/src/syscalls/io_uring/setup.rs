//! io_uring_setup(2): creates a ring, which is known from then on.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use linux_raw_sys::io_uring as u;
use ulpf_lib::AccessKind;
use ulpf_lib::sys::failure::{EINVAL, ENOMEM};

use super::polled;
use crate::runtime::events::Request;
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::park;
use crate::runtime::thread::{Call, Current};
use crate::syscalls::call::{Args, EFAULT, raw};
use crate::syscalls::scratch::Scratch;
use crate::syscalls::{buffers, sites};
use crate::uring::queries::REFUSED;
use crate::uring::rings::{self, Ring, State, with};

const SETUP: u32 = u::IORING_SETUP_IOPOLL
    | u::IORING_SETUP_SQPOLL
    | u::IORING_SETUP_SQ_AFF
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
/// Features that are required; kernels without them are too old.
const NEEDED: u32 =
    u::IORING_FEAT_SINGLE_MMAP | u::IORING_FEAT_NODROP | u::IORING_FEAT_SUBMIT_STABLE;
/// Receives into many buffers are not offered to the program.
const HIDDEN: u32 = u::IORING_FEAT_RECVSEND_BUNDLE;
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
    let asked = p.flags;
    let polled = asked & u::IORING_SETUP_SQPOLL != 0;
    if polled {
        p = match polled::instead(a[0], &p) {
            Ok(given) => given,
            Err(error) => return error,
        };
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
    let Some(mut ring) = Ring::new(fd as i32, &p) else {
        return close(ENOMEM);
    };
    if polled {
        ring.polls(&p);
    }
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
    p.flags = asked;
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
