//! A thread whose tracer was killed while the thread ran a boot entry (`ulpf_lib::boot`). The handler of the entry's
//! trap restores its registers, and parks the thread as the command would have.

use ulpf_engine::cpu::Gprs;

use crate::global::boot_block;
use crate::runtime::asm::ulpf_reported;
use crate::runtime::frame::{UC_FP_XSTATE, UContext};

/// Bytes of x87 and SSE registers in FXSAVE's format; software uses the rest.
const FX: usize = 464;
/// Offset of XSTATE_BV in the extended state, and its bits for these registers.
const XSTATE_BV: usize = 512;
const FP_SSE: u8 = 3;

/// Whether a thread is about to run a boot entry, or runs it.
pub fn is_awaited() -> bool {
    let block = boot_block();
    // SAFETY: the command and these functions write the field.
    !block.is_null() && unsafe { (&raw const (*block).entering).read_volatile() } != 0
}

fn has_left() {
    // SAFETY: as in `is_awaited`; the block is there.
    unsafe { (&raw mut (*boot_block()).entering).write_volatile(0) };
}

/// Makes this context, at the trap of a boot entry, that of the thread before the entry. Returns `false` for others.
pub fn restore(uc: &mut UContext) -> bool {
    let block = boot_block();
    if uc.gprs.rip != ulpf_reported as *const () as u64 || block.is_null() {
        return false;
    }
    // SAFETY: the command has written the block for the thread's entry, and the next entry has not begun.
    let home = unsafe { (*block).home };
    has_left();
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
