//! io_uring_enter(2): requests are handed to the kernel, completions waited for.

use linux_raw_sys::io_uring as u;
use ulpf_lib::sys::failure::{EBADF, EINVAL, EOPNOTSUPP};

use super::completions::look;
use super::polled;
use super::submit::submit;
use crate::runtime::clock;
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::park;
use crate::runtime::thread::Current;
use crate::signals::numbers;
use crate::syscalls::call::{ABANDONED, Args, EFAULT};
use crate::syscalls::masked::{waits, with_mask};
use crate::syscalls::ordinary::call;
use crate::uring::held::{REFUSED, UNKNOWN};
use crate::uring::rings::{self, with};

const ENTER: u64 = (u::IORING_ENTER_GETEVENTS
    | u::IORING_ENTER_SQ_WAKEUP
    | u::IORING_ENTER_SQ_WAIT
    | u::IORING_ENTER_EXT_ARG
    | u::IORING_ENTER_REGISTERED_RING
    | u::IORING_ENTER_ABS_TIMER
    | u::IORING_ENTER_NO_IOWAIT) as u64;
pub const REGISTERED: u64 = u::IORING_ENTER_REGISTERED_RING as u64;
pub const GETEVENTS: u64 = u::IORING_ENTER_GETEVENTS as u64;
const EXT_ARG: u64 = u::IORING_ENTER_EXT_ARG as u64;
const ABS_TIMER: u64 = u::IORING_ENTER_ABS_TIMER as u64;

/// The ring that is meant by a descriptor, or by the number of one that the thread has registered.
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

/// Waits for completions of a ring, and looks at them.
pub fn wait_in(t: Current, uc: &mut UContext, nr: u64, a: &Args, ring: usize) -> i64 {
    let rest = [a[0], 0, a[2], a[3], a[4], a[5]];
    let until = with(|state| state.rings.get(ring).is_some_and(|r| r.until));
    let result = wait(t, uc, nr, &rest, until);
    look(t, uc);
    result
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
