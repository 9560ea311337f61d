//! The program's alternate stacks (sigaltstack(2)).

use core::sync::atomic::Ordering::Relaxed;

use crate::global::machine;
use crate::runtime::frame::*;
use crate::runtime::handler_frames::copy_frame;
use crate::runtime::memory;
use crate::runtime::thread::{Current, SCRATCH};
use linux_raw_sys::general as k;
use ulpf_lib::sys;
use ulpf_lib::sys::failure::{EFAULT, EINVAL, ENOMEM, EPERM};

const MINSIGSTKSZ: u64 = 2048;

/// sigaltstack(2).
pub fn sigaltstack(t: Current, uc: &UContext, new: u64, old: u64) -> i64 {
    let i = t.own();
    let on = on_alt(&i.alt.get(), uc.gprs.rsp);
    let previous = SigStack {
        flags: if i.alt.get().size == 0 {
            SS_DISABLE
        } else {
            on as i32 * SS_ONSTACK
        } | (i.alt.get().flags & SS_AUTODISARM),
        ..i.alt.get()
    };
    if new != 0 {
        let Some(s) = memory::get::<SigStack>(new) else {
            return EFAULT;
        };
        if on {
            return EPERM;
        }
        match s.flags & !SS_AUTODISARM {
            SS_DISABLE => i.alt.set(SigStack {
                sp: 0,
                flags: SS_DISABLE,
                pad: 0,
                size: 0,
            }),
            0 | SS_ONSTACK => {
                if is_too_small(s.size) {
                    return ENOMEM;
                }
                i.alt.set(SigStack {
                    pad: 0,
                    flags: s.flags & SS_AUTODISARM,
                    ..s
                });
            }
            _ => return EINVAL,
        }
    }
    if old != 0 && !memory::put(old, &previous) {
        return EFAULT;
    }
    0
}

/// The kernel's rule (`sigaltstack_size_valid` in arch/x86/kernel/signal.c): only a program that has asked for the
/// largest state needs room for it.
fn is_too_small(size: u64) -> bool {
    const GET_PERMISSION: u64 = 0x1022; // ARCH_GET_XCOMP_PERM
    const DYNAMIC: u64 = 1 << 18; // XTILEDATA
    let mut permitted = 0u64;
    size < MINSIGSTKSZ
        || size < machine().min_sigstack && {
            // SAFETY: the mask outlives the call.
            let asked = unsafe { sys!(k::__NR_arch_prctl, GET_PERMISSION, &raw mut permitted) };
            asked.is_ok() && permitted & DYNAMIC != 0
        }
}

pub fn on_alt(alt: &SigStack, rsp: u64) -> bool {
    alt.flags & SS_AUTODISARM == 0 && rsp > alt.sp && rsp - alt.sp <= alt.size
}

/// When this handler returns, the program's alternate stack replaces ours.
pub fn give_back(t: Current, uc: &mut UContext) {
    uc.stack = t.own().alternate();
    t.gives_stack_back.store(true, Relaxed);
}

/// Copies a handler's frame to the scratch area, which is unused then: the frame must not be on the alternate stack.
#[unsafe(no_mangle)]
extern "C" fn ulpf_aside(uc: &mut UContext) -> *const UContext {
    // SAFETY: handlers run on a thread's block.
    let t = unsafe { Current::get() };
    let top = t.scratch() as u64 + SCRATCH as u64;
    // SAFETY: the handler's own frame, and the thread's own memory below its stack.
    match unsafe { copy_frame(uc, top, SCRATCH as u64 - 1024) } {
        Some(copy) => copy,
        None => uc,
    }
}
