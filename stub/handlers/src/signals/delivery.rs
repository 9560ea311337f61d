//! Delivers a signal to the program: to its handler, on a frame that we build, or by the default action.

use linux_raw_sys::general as k;
use ulpf_lib::eflags;
use ulpf_lib::sys;

use super::actions::KernelAction;
use super::alternate::on_alt;
use super::kernel::{actions, default_is_ignore, default_is_stop, raw_sigaction};
use super::masks::{set_virtual_mask, virtual_mask};
use super::numbers::*;
use crate::crash;
use crate::runtime::frame::*;
use crate::runtime::thread::Current;
use crate::runtime::{keys, memory};

/// Applies the program's action for signal `sig`. Returns `true` if the context now enters its handler.
pub fn deliver(t: Current, uc: &mut UContext, sig: i32, info: &SigInfo) -> bool {
    let a = actions(t).get(sig);
    match a.handler {
        SIG_IGN
            if !(info.by_kernel()
                && matches!(sig, SIGSEGV | SIGBUS | 4 | 8 | SIGTRAP | SIGSYS)) =>
        {
            false
        }
        SIG_DFL | SIG_IGN => {
            default_action(t, uc, sig, info);
            false
        }
        _ => {
            if a.flags & SA_RESETHAND != 0 {
                actions(t).set(
                    sig,
                    KernelAction {
                        handler: SIG_DFL,
                        ..a
                    },
                );
            }
            push_frame(t, uc, sig, &a, info) || no_stack(t, uc, sig)
        }
    }
}

/// Raises SIGSEGV if there is no room for a handler's frame; its handler may have a stack of its own (the kernel's
/// force_sigsegv). Returns as [`deliver`] does.
fn no_stack(t: Current, uc: &mut UContext, sig: i32) -> bool {
    let info = SigInfo {
        signo: SIGSEGV,
        code: k::SI_KERNEL as i32,
        ..SigInfo::zeroed()
    };
    let ignored = actions(t).get(SIGSEGV).handler == SIG_IGN;
    if sig == SIGSEGV || ignored || virtual_mask(t, uc) & bit(SIGSEGV) != 0 {
        actions(t).set(SIGSEGV, KernelAction::default());
        default_action(t, uc, SIGSEGV, &info);
        return false;
    }
    deliver(t, uc, SIGSEGV, &info)
}

/// Builds the frame that the kernel would have built on the program's stack.
fn push_frame(t: Current, uc: &mut UContext, sig: i32, a: &KernelAction, info: &SigInfo) -> bool {
    let i = t.own();
    let mut sp = uc.gprs.rsp.wrapping_sub(128);
    let on = on_alt(&i.alt.get(), uc.gprs.rsp);
    if a.flags & SA_ONSTACK != 0 && i.alt.get().size != 0 && !on {
        sp = i.alt.get().sp + i.alt.get().size;
    }
    // SAFETY: our own frame's image.
    let (fp_len, _) = unsafe { fpstate_len(uc.fpstate) };
    sp = sp.wrapping_sub(fp_len as u64) & !63;
    let fp = sp;
    sp = (sp.wrapping_sub(size_of::<SigFrame>() as u64) & !15).wrapping_sub(8);
    // SAFETY: `fp_len` bytes of our own frame.
    let image = unsafe {
        core::slice::from_raw_parts(
            if fp_len == 0 {
                core::ptr::dangling()
            } else {
                uc.fpstate as *const u8
            },
            fp_len,
        )
    };
    if memory::write(fp, image) != fp_len {
        return false;
    }
    let alt = SigStack {
        flags: if i.alt.get().size == 0 {
            SS_DISABLE
        } else {
            (on as i32 * SS_ONSTACK) | (i.alt.get().flags & SS_AUTODISARM)
        },
        ..i.alt.get()
    };
    let mask = virtual_mask(t, uc);
    let frame = SigFrame {
        restorer: a.restorer,
        uc: UContext {
            flags: uc.flags,
            link: 0,
            stack: alt,
            gprs: uc.gprs,
            cs: uc.cs,
            gs: uc.gs,
            fs: uc.fs,
            ss: uc.ss,
            err: uc.err,
            trapno: uc.trapno,
            oldmask: mask,
            cr2: uc.cr2,
            fpstate: if fp_len == 0 {
                core::ptr::null_mut()
            } else {
                fp as *mut u8
            },
            reserved: [0; 8],
            sigmask: mask,
        },
        info: *info,
    };
    if !memory::put(sp, &frame) {
        return false;
    }
    if i.alt.get().flags & SS_AUTODISARM != 0 && a.flags & SA_ONSTACK != 0 {
        i.alt.set(SigStack {
            sp: 0,
            flags: SS_DISABLE,
            pad: 0,
            size: 0,
        });
    }
    // SAFETY: our own frame's image.
    unsafe {
        clear_fpstate(
            uc.fpstate,
            uc.flags & UC_FP_XSTATE != 0,
            keys::for_handlers(uc),
        )
    };
    let frame_at = sp;
    uc.gprs.rip = a.handler;
    uc.gprs.rsp = frame_at;
    uc.gprs.rdi = sig as u64;
    uc.gprs.rax = 0;
    uc.gprs.rsi = frame_at + core::mem::offset_of!(SigFrame, info) as u64;
    uc.gprs.rdx = frame_at + core::mem::offset_of!(SigFrame, uc) as u64;
    uc.gprs.rflags &= !eflags::CLEAR_IN_HANDLER;
    let mut next = i.waited_under.take().unwrap_or(mask) | a.mask;
    if a.flags & SA_NODEFER == 0 {
        next |= bit(sig);
    }
    set_virtual_mask(t, uc, next);
    true
}

/// Applies the default action; the kernel does it.
pub fn default_action(t: Current, uc: &mut UContext, sig: i32, info: &SigInfo) {
    if default_is_ignore(sig) {
        return;
    }
    let dfl = KernelAction::default();
    if default_is_stop(sig) {
        // SAFETY: stops the process, as the kernel would.
        let _ = unsafe { sys!(k::__NR_kill, t.tgid(), SIGSTOP) };
        return;
    }
    let address = (info.by_kernel() && matches!(sig, SIGSEGV | SIGBUS)).then(|| info.addr());
    crash::note(t, &uc.gprs, sig, uc.gprs.rip, address);
    let _ = raw_sigaction(sig, &dfl);
    let synchronous = info.by_kernel() && matches!(sig, SIGSEGV | SIGBUS | 4 | 8);
    if synchronous {
        // The instruction faults again, and the kernel ends the program with the true cause.
        uc.sigmask &= !bit(sig);
        return;
    }
    let unblock = bit(sig);
    // SAFETY: the thread raises the signal against itself; the process ends here.
    unsafe {
        let _ = sys!(k::__NR_tgkill, t.tgid(), t.tid(), sig);
        let _ = sys!(
            k::__NR_rt_sigprocmask,
            k::SIG_UNBLOCK,
            &unblock as *const u64,
            0,
            8
        );
    }
}
