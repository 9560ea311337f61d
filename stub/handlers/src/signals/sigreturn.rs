//! The return from the program's handlers (rt_sigreturn(2)).

use super::masks::set_virtual_mask;
use super::numbers::SIGSEGV;
use super::raise::raise;
use crate::check::entries;
use crate::runtime::frame::*;
use crate::runtime::memory;
use crate::runtime::thread::Current;
use linux_raw_sys::general::SI_KERNEL;
use ulpf_lib::eflags;

/// rt_sigreturn(2): the program's frame becomes the context that we return to.
pub fn sigreturn(t: Current, uc: &mut UContext) {
    let Some(theirs) = memory::get::<UContext>(uc.gprs.rsp) else {
        let info = SigInfo {
            signo: SIGSEGV,
            code: SI_KERNEL as i32,
            ..SigInfo::zeroed()
        };
        raise(t, uc, SIGSEGV, &info);
        return;
    };
    uc.gprs = theirs.gprs;
    entries::go_on(uc);
    // Only flags that user mode may change, as in the kernel (FIX_EFLAGS); interrupts stay on.
    const FIX: u64 = eflags::USER & !eflags::ID;
    uc.gprs.rflags = (theirs.gprs.rflags & FIX) | eflags::INITIAL;
    set_virtual_mask(t, uc, theirs.sigmask);
    let i = t.own();
    if theirs.stack.flags & SS_DISABLE != 0 || theirs.stack.size == 0 {
        i.alt.set(SigStack {
            sp: 0,
            flags: SS_DISABLE,
            pad: 0,
            size: 0,
        });
    } else {
        i.alt.set(SigStack {
            flags: theirs.stack.flags & SS_AUTODISARM,
            ..theirs.stack
        });
    }
    // SAFETY: our own frame's image.
    let (room, _) = unsafe { fpstate_len(uc.fpstate) };
    if theirs.fpstate.is_null() || uc.fpstate.is_null() {
        return;
    }
    let at = theirs.fpstate as u64;
    let mut head = [0u8; FXSAVE_LEN];
    if memory::read(at, &mut head) != FXSAVE_LEN {
        return;
    }
    // SAFETY: `head` is an fpstate's legacy area.
    let (total, _) = unsafe { fpstate_len(head.as_ptr()) };
    // SAFETY: the destination is our frame, `room` bytes long.
    unsafe {
        if total > FXSAVE_LEN && total <= room {
            memory::read(at, core::slice::from_raw_parts_mut(uc.fpstate, total));
        } else {
            // Legacy image: x87 and SSE state only, the rest keeps its value.
            core::ptr::copy_nonoverlapping(head.as_ptr(), uc.fpstate, 464);
        }
    }
}
