//! The waiting half of io_uring_enter(2).

use linux_raw_sys::io_uring as u;

use super::completions::look;
use crate::runtime::clock;
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::thread::Current;
use crate::signals::numbers;
use crate::syscalls::call::{Args, EFAULT};
use crate::syscalls::ordinary::call;
use crate::syscalls::sigmask_calls::{waits, with_mask};
use crate::uring::rings::with;

pub const REGISTERED: u64 = u::IORING_ENTER_REGISTERED_RING as u64;
pub const GETEVENTS: u64 = u::IORING_ENTER_GETEVENTS as u64;
const EXT_ARG: u64 = u::IORING_ENTER_EXT_ARG as u64;
const ABS_TIMER: u64 = u::IORING_ENTER_ABS_TIMER as u64;

/// Waits for completions of a ring, and reports their hits.
pub fn wait_in(t: Current, uc: &mut UContext, nr: u64, a: &Args, ring: usize) -> i64 {
    let rest = [a[0], 0, a[2], a[3], a[4], a[5]];
    let until = with(|state| state.rings.get(ring).is_some_and(|r| r.until));
    let result = wait(t, uc, nr, &rest, until);
    look(t, uc);
    result
}

/// The waiting half of the call, with the program's signal mask and time. `until`: the kernel accepts an absolute end
/// time.
pub fn wait(t: Current, uc: &mut UContext, nr: u64, a: &Args, until: bool) -> i64 {
    if a[3] & EXT_ARG == 0 {
        return with_mask(t, uc, nr, a, 4, None);
    }
    // struct io_uring_getevents_arg: mask, its size and the shortest wait, time.
    let Some([mask_at, sizes, time_at]) = memory::get::<[u64; 3]>(a[4]).filter(|_| a[5] == 24)
    else {
        return call(t, uc, nr, a, a, 0); // the kernel reports the error
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
            // Made again after an interruption of ours, the call still ends at the same time.
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
