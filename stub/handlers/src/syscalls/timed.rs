//! Calls that may wait on a socket for a limited time only (SO_RCVTIMEO, SO_SNDTIMEO).

use core::sync::atomic::{AtomicBool, Ordering::*};

use linux_raw_sys::net;
use ulpf_lib::syscalls;
use ulpf_lib::syscalls::row::Socket;

use crate::runtime::clock::now;

pub const SO_RCVTIMEO: u64 = net::SO_RCVTIMEO as u64;
const SO_SNDTIMEO: u64 = net::SO_SNDTIMEO as u64;

/// The program has set such an option.
pub static TIMED: AtomicBool = AtomicBool::new(false);

/// The option that limits the wait of a call.
pub fn option(nr: u64) -> Option<u64> {
    Some(match syscalls::row(nr)?.socket? {
        Socket::Receives => SO_RCVTIMEO,
        Socket::Sends => SO_SNDTIMEO,
    })
}

/// True if a call may wait on a socket for a limited time.
pub fn may_wait(nr: u64) -> bool {
    TIMED.load(Relaxed) && option(nr).is_some()
}

/// The start of a call that may have to be made again, or 0.
pub fn begin(nr: u64) -> u64 {
    if may_wait(nr) { now() } else { 0 }
}
