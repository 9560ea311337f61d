// SPDX-License-Identifier: GPL-2.0-or-later
//! `rdtsc` and `rdtscp` count the model's cycles, as the thesis's measurements do. The one place that
//! asks Unicorn's C interface: its Rust one has no hook for them.

use crate::state::{State, Uc};
use std::cell::RefCell;
use std::ffi::c_void;
use unicorn_engine::{
    HookType, RegisterX86 as R, X86Insn, uc_engine, uc_error, uc_hook_add, uc_reg_write,
};

/// Unicorn's callback: not zero says that the instruction is done.
///
/// # Safety
/// `state` is what [`hook`] has given.
unsafe extern "C" fn read(uc: *mut uc_engine, state: *mut c_void) -> i32 {
    // SAFETY: our caller's promise.
    let state = unsafe { &*state.cast::<RefCell<State>>() };
    let Ok(s) = state.try_borrow() else {
        return 0;
    };
    let cycles = s.stats.cycles;
    for (register, value) in [(R::RAX, cycles & 0xffff_ffff), (R::RDX, cycles >> 32)] {
        // SAFETY: the machine that calls us; a register of eight bytes.
        unsafe { uc_reg_write(uc, register as i32, (&raw const value).cast()) };
    }
    1
}

/// # Safety
/// Unicorn is dropped before the state, and the state never moves.
pub unsafe fn hook(uc: &Uc, state: *const RefCell<State>) -> Result<(), uc_error> {
    for instruction in [X86Insn::RDTSC, X86Insn::RDTSCP] {
        let mut handle = 0;
        // SAFETY: the caller's promise.
        let done = unsafe {
            uc_hook_add(
                uc.get_handle(),
                &raw mut handle,
                HookType::INSN.0 as i32,
                read as *mut c_void,
                state.cast_mut().cast(),
                1,
                0,
                instruction as i32,
            )
        };
        if done != uc_error::OK {
            return Err(done);
        }
    }
    Ok(())
}
