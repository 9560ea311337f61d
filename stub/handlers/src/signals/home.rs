//! A thread whose tracer was killed while the thread ran a boot entry (`ulpf_lib::boot`). Nobody restores its registers,
//! so the handler of the entry's trap does, and parks the thread as the command would have.

use ulpf_engine::cpu::Gprs;

use crate::global::boot_block;
use crate::runtime::asm::ulpf_reported;
use crate::runtime::frame::{UC_FP_XSTATE, UContext};

/// Bytes of x87 and SSE registers in FXSAVE's format; software uses the rest.
const FX: usize = 464;
/// Offset of XSTATE_BV in the extended state, and its bits for these registers.
const XSTATE_BV: usize = 512;
const FP_SSE: u8 = 3;

/// Makes this context, at the trap of a boot entry, that of the thread before the entry. Returns `false` for others.
pub fn restore(uc: &mut UContext) -> bool {
    let block = boot_block();
    if uc.gprs.rip != ulpf_reported as *const () as u64 || block.is_null() {
        return false;
    }
    // SAFETY: the command has written the block for the thread's entry, and the next entry has not begun.
    let home = unsafe { (*block).home };
    // SAFETY: the same eighteen words.
    uc.gprs = unsafe { core::mem::transmute::<[u64; 18], Gprs>(home.gprs) };
    if uc.fpstate.is_null() {
        return true;
    }
    // SAFETY: the signal frame's image begins with FXSAVE's; with the flag, the extended state follows.
    unsafe {
        core::ptr::copy_nonoverlapping(home.fx.as_ptr(), uc.fpstate, FX);
        if uc.flags & UC_FP_XSTATE != 0 {
            *uc.fpstate.add(XSTATE_BV) |= FP_SSE;
        }
    }
    true
}
