//! The program's own functions: the thesis's handler before an access, those of the watches after it.
//!
//! They run on the thread's exception stack, one inside the other, under the mask that the program has set.

use core::sync::atomic::Ordering::*;

use ulpf_engine::frame::{SigInfo, UContext};

use crate::exception_stacks::{FaultNow, OwnBlock};
use crate::hits::Pending;
use crate::keys;
use crate::mask::{self, INSIDE, SIGTRAP, SYNCHRONOUS};
use crate::shared::S;
use crate::thread;

/// Runs a function of the program on the thread's exception stack, under the program's own mask.
fn outside(own: OwnBlock, mask: u64, f: impl FnOnce()) {
    // SAFETY: the calling thread's errno, which the program's function may change.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let kept = unsafe { *errno };
    own.depth.set(own.depth.get() + 1);
    keys::set_own(false);
    mask::set(mask & !SYNCHRONOUS);
    f();
    mask::set(INSIDE);
    own.depth.set(own.depth.get().saturating_sub(1));
    // SAFETY: as above.
    unsafe { *errno = kept };
}

/// Calls the thesis's handler, before the access.
pub fn before_access(own: OwnBlock, uc: &UContext, addr: u64, watched: bool) {
    let handler = S.user_handler.load(Acquire);
    if handler == 0 {
        return;
    }
    let before = own.fault.replace(Some(FaultNow { addr, watched }));
    outside(own, uc.sigmask, || {
        // SAFETY: a function that the program has registered.
        let handler: extern "C" fn() = unsafe { core::mem::transmute(handler) };
        handler();
    });
    own.fault.set(before);
}

/// Calls the watches' handlers, after the access of a thread with this mask (and context, if a signal has
/// interrupted it). `true`: the thread is to stop now.
pub fn after_access(own: OwnBlock, mask: u64, context: *const UContext, pending: &Pending) -> bool {
    let nested = own.depth.get() > 0;
    let context = context.cast();
    let stop = pending.report(nested, context, |handler, data, info| {
        let before = own.fault.replace(Some(FaultNow {
            addr: info.addr,
            watched: true,
        }));
        outside(own, mask, || handler(info, data as *mut core::ffi::c_void));
        own.fault.set(before);
    });
    own.stopping.set(stop);
    if stop {
        // Blocked until we return: so it arrives behind the instruction, where a debugger expects it.
        mask::set(INSIDE);
        thread::send(&SigInfo {
            signo: SIGTRAP,
            code: -1,
            ..SigInfo::zeroed()
        });
    }
    stop
}

/// The fault that the handler of the calling thread is about.
pub fn current() -> Option<FaultNow> {
    OwnBlock::here()?.fault.get()
}
