//! Time-outs of sockets (SO_RCVTIMEO, SO_SNDTIMEO). A call that we have interrupted would wait for the whole time
//! again. So it waits for the rest with ppoll(2), and is then made without waiting. The option itself stays unchanged:
//! other processes may share the socket.
//!
//! All this applies once the program sets such an option. From then on a slot makes no call that may wait on a socket,
//! since it does not measure time.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::{general as k, net};
use ulpf_lib::sys;
pub use ulpf_lib::sys::failure::EAGAIN;
use ulpf_lib::sys::failure::EINPROGRESS;

use super::attempt::{blocking, interrupted_by_us};
use super::call::{Args, EINTR, RESTART};
use super::timed::{SO_RCVTIMEO, option};
use crate::runtime::clock::now;
use crate::runtime::frame::UContext;
use crate::runtime::thread::Current;

const POLLIN: u64 = k::POLLIN as u64;
const POLLOUT: u64 = k::POLLOUT as u64;
const MSG_DONTWAIT: u64 = net::MSG_DONTWAIT as u64;
const MSG_WAITALL: u64 = net::MSG_WAITALL as u64;

/// True if this setsockopt(2) limits a wait. (The last two are 64-bit times of 32-bit programs.)
pub fn limits(a: &Args) -> bool {
    let time = matches!(
        a[2] as u32,
        net::SO_RCVTIMEO_OLD | net::SO_SNDTIMEO_OLD | net::SO_RCVTIMEO_NEW | net::SO_SNDTIMEO_NEW
    );
    a[1] as u32 == net::SOL_SOCKET && time
}

/// How to continue a call that we have interrupted.
pub enum Again {
    /// As the first time: there is no limit.
    Plain,
    /// Its socket is ready, or another thread was faster.
    WithoutWaiting,
    /// We have interrupted this wait, too.
    Wait,
    Over(i64),
}

/// Waits for the rest of the time.
pub fn wait(t: Current, uc: &mut UContext, nr: u64, a: &Args, begun: u64) -> Again {
    let Some(option) = option(nr).filter(|_| begun != 0) else {
        return Again::Plain;
    };
    let (mut limit, mut len) = ([0u64; 2], 16u32);
    // SAFETY: fills `limit`, a timeval.
    let known = unsafe {
        sys!(
            k::__NR_getsockopt,
            a[0],
            net::SOL_SOCKET,
            option,
            limit.as_mut_ptr(),
            &mut len as *mut u32
        )
    };
    if known.is_err() || limit == [0; 2] {
        return Again::Plain;
    }
    let total = limit[0]
        .saturating_mul(1_000_000_000)
        .saturating_add(limit[1].saturating_mul(1000));
    let left = total.saturating_sub(now().saturating_sub(begun));
    let rest = [left / 1_000_000_000, left % 1_000_000_000];
    let event = if option == SO_RCVTIMEO {
        POLLIN
    } else {
        POLLOUT
    };
    // struct pollfd
    let poll = a[0] as u32 as u64 | event << 32;
    let args = [&raw const poll as u64, 1, rest.as_ptr() as u64, 0, 8, 0];
    t.kicked.store(false, SeqCst);
    match blocking(t, uc, k::__NR_ppoll as u64, &args) {
        r if interrupted_by_us(t, r) => Again::Wait,
        0 if nr as u32 == k::__NR_connect => Again::Over(EINPROGRESS),
        0 => Again::Over(EAGAIN),
        // A signal: the call has begun, and calls with a limit are not restarted.
        RESTART if !t.leaving.load(Relaxed) => Again::Over(EINTR),
        r if r < 0 => Again::Over(r),
        _ => Again::WithoutWaiting,
    }
}

/// Replaces a call by one that does not wait. Returns `false` if there is no such call.
pub fn without_waiting(nr: &mut u64, args: &mut Args) -> bool {
    match *nr as u32 {
        k::__NR_read | k::__NR_write if args[2] > 0 => {
            *nr = u64::from(if *nr as u32 == k::__NR_read {
                k::__NR_recvfrom
            } else {
                k::__NR_sendto
            });
            (args[3], args[4], args[5]) = (MSG_DONTWAIT, 0, 0);
        }
        k::__NR_recvfrom if args[3] & MSG_WAITALL == 0 => args[3] |= MSG_DONTWAIT,
        k::__NR_recvmsg if args[2] & MSG_WAITALL == 0 => args[2] |= MSG_DONTWAIT,
        k::__NR_sendto => args[3] |= MSG_DONTWAIT,
        k::__NR_sendmsg => args[2] |= MSG_DONTWAIT,
        _ => return false,
    }
    true
}
