//! The engine of this process: made once, and anew in a forked child.

use core::sync::atomic::Ordering::*;

use linux_raw_sys::general as k;
use ulpf_engine::access::Decoder;
use ulpf_engine::exec::{CodeArena, DataArena, Thunks};
use ulpf_lib::arena::map_anonymous;
use ulpf_lib::sys::Errno;
use ulpf_lib::{place, sys};

use crate::alloc::capstone_uses_arena;
use crate::error::Failure;
use crate::shared::{Changer, Engine, S, SLOTS, Slot};

/// Instruction addresses that are remembered.
const SITES: usize = 1 << 14;
/// Bytes for generated code.
const CODE: usize = 4 << 20;

/// Makes the engine and the table of slots, before there are handlers.
pub fn prepare(_: &mut Changer) -> Result<(), Failure> {
    if S.engine().is_some() {
        return Ok(());
    }
    let no_memory = || {
        Failure::new(
            libc::ENOMEM,
            "no memory for the engine; raise the limit of address space (ulimit -v)",
        )
    };
    let code = code_arena().map_err(|e| {
        Failure::os(
            e,
            "generated code cannot be mapped; a sandbox may forbid executable memory",
        )
    })?;
    let len = Thunks::data_size(SITES);
    let base = map_anonymous(len);
    let slots = map_anonymous(SLOTS * size_of::<Slot>());
    if base.is_null() || slots.is_null() {
        return Err(no_memory());
    }
    capstone_uses_arena();
    let data = DataArena { base, len };
    let engine = Engine {
        decoder: Decoder::new().ok_or_else(no_memory)?,
        thunks: Thunks::new(code, data).ok_or_else(no_memory)?,
        data,
    };
    S.slots.store(slots.cast(), Release);
    S.engine.store(Box::into_raw(Box::new(engine)), Release);
    Ok(())
}

/// Generated code is this process's alone: forked children do not have it.
fn code_arena() -> Result<CodeArena, Errno> {
    let (rw, rx) = place::map_code(CODE as u64)?;
    Ok(CodeArena {
        rw: rw as *mut u8,
        rx: rx as *const u8,
        len: CODE,
    })
}

/// Resets the engine in a forked child, which lacks its parent's generated code, and gives it code of its own. If that is
/// not possible, instructions are performed without generated code.
pub fn after_fork(_: &mut Changer) {
    let engine = S.engine.load(Acquire);
    // SAFETY: made by `prepare`; the child has one thread, which is the changer. If it was in a handler when it forked,
    // that handler does not use the engine again: the child has no guards.
    let Some(engine) = (unsafe { engine.as_mut() }) else {
        return;
    };
    engine.decoder.after_fork();
    let DataArena { base, len } = engine.data;
    // SAFETY: the sites' own pages, private anonymous memory, whose references are gone with the code.
    let zeroed = unsafe { sys!(k::__NR_madvise, base, len, k::MADV_DONTNEED) };
    let none = CodeArena {
        rw: core::ptr::null_mut(),
        rx: core::ptr::null(),
        len: 0,
    };
    let code = code_arena().unwrap_or(none);
    if let Some(thunks) = Thunks::new(code, engine.data).filter(|_| zeroed.is_ok()) {
        engine.thunks = thunks;
    }
}
