//! Calls that wait under a signal mask of their own, or for signals.

use linux_raw_sys::general as k;
use ulpf_lib::syscalls;
use ulpf_lib::syscalls::row::Unit;

use super::call::{Args, EFAULT, EINTR};
use super::ordinary::call;
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::thread::Current;
use crate::signals::{numbers, waiting};

/// Makes a call that takes a temporary signal mask as argument `at`: our signals must stay deliverable.
pub fn with_mask(
    t: Current,
    uc: &mut UContext,
    nr: u64,
    a: &Args,
    at: usize,
    mut mask: Option<u64>,
) -> i64 {
    let mut given = *a;
    if let Some(p) = given.get_mut(at).filter(|p| **p != 0) {
        let Some(m) = memory::get::<u64>(*p) else {
            return EFAULT;
        };
        let slot = mask.insert(m & !numbers::HIDDEN);
        *p = slot as *const u64 as u64;
        return waits(t, uc, nr, a, &given, 1 << at, m);
    }
    call(t, uc, nr, a, &given, 0)
}

/// The sixth argument of pselect6 and io_pgetevents points to a mask's address and size.
pub fn with_mask_pair(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> i64 {
    if a[5] == 0 {
        return call(t, uc, nr, a, a, 0);
    }
    let Some([mask_at, size]) = memory::get::<[u64; 2]>(a[5]) else {
        return EFAULT;
    };
    if mask_at == 0 {
        return call(t, uc, nr, a, a, 0);
    }
    let Some(m) = memory::get::<u64>(mask_at) else {
        return EFAULT;
    };
    let mask = m & !numbers::HIDDEN;
    let pair = [&mask as *const u64 as u64, size];
    let mut given = *a;
    given[5] = pair.as_ptr() as u64;
    waits(t, uc, nr, a, &given, 1 << 5, m)
}

/// Makes a call that waits under another mask; we keep the part that the kernel does not get. As [`call`].
pub fn waits(
    t: Current,
    uc: &mut UContext,
    nr: u64,
    a: &Args,
    given: &Args,
    ours: u32,
    mask: u64,
) -> i64 {
    let i = t.own();
    i.hidden_meanwhile.set(Some(mask));
    let result = match i.waiting.set() & !mask {
        0 => call(t, uc, nr, a, given, ours),
        _ => interrupted(t, uc, nr, a, given, ours, mask),
    };
    i.hidden_meanwhile.set(None);
    // The handler runs under that mask, and returns to the program's own (the kernel's set_restore_sigmask).
    if result == EINTR {
        i.waited_under.set(Some(mask));
    }
    result
}

/// Makes a call without waiting, since a signal is due under its mask. A ready descriptor is returned before the
/// signal, which then continues to wait.
fn interrupted(
    t: Current,
    uc: &mut UContext,
    nr: u64,
    a: &Args,
    given: &Args,
    ours: u32,
    mask: u64,
) -> i64 {
    if let Some(timeout) = syscalls::row(nr).and_then(|row| row.timeout) {
        let millis = timeout.unit == Unit::Millis;
        let (n, none) = (timeout.arg as usize, [0u64; 2]);
        let at = if millis { 0 } else { none.as_ptr() as u64 };
        let at_once = |args: &Args| {
            let mut args = *args;
            args.get_mut(n).into_iter().for_each(|v| *v = at);
            args
        };
        let ours = ours | u32::from(!millis) << n;
        let ready = call(t, uc, nr, &at_once(a), &at_once(given), ours);
        // Of these calls, only epoll does not check for signals if it does not wait.
        let epoll = matches!(nr as u32, k::__NR_epoll_pwait | k::__NR_epoll_pwait2);
        if ready != 0 || epoll && a.get(n).is_some_and(|v| is_zero(*v, millis)) {
            return ready;
        }
    }
    waiting::interrupt(t, mask);
    EINTR
}

fn is_zero(timeout: u64, millis: bool) -> bool {
    match millis {
        true => timeout as u32 == 0,
        false => memory::get::<[u64; 2]>(timeout) == Some([0; 2]),
    }
}

/// Waits for signals, or creates a descriptor for them: the park signal stays ours.
pub fn with_signal_set(t: Current, uc: &mut UContext, nr: u64, a: &Args, at: usize) -> i64 {
    let mut given = *a;
    let Some(m) = a.get(at).and_then(|p| memory::get::<u64>(*p)) else {
        return call(t, uc, nr, a, a, 0); // the kernel reports the error
    };
    if nr == k::__NR_rt_sigtimedwait as u64
        && let Some(info) = t.own().waiting.take(m)
    {
        return match a[1] == 0 || memory::put(a[1], &info) {
            true => info.signo as i64,
            false => EFAULT,
        };
    }
    let set = m & !numbers::bit(ulpf_lib::boot::PARK_SIGNAL);
    if let Some(p) = given.get_mut(at) {
        *p = &set as *const u64 as u64;
    }
    call(t, uc, nr, a, &given, 1 << at)
}
