//! The engine of the handlers: it decodes instructions of the program and performs them.

use core::cell::UnsafeCell;

use ulpf_engine::access::{Decoder, Insn};
use ulpf_engine::exec::{CodeArena, DataArena, FaultInfo, Site, Thunks};
use ulpf_lib::place;
use ulpf_lib::sys::Errno;

use crate::global::machine;
use crate::runtime::frame::{SigInfo, UContext};

/// Bytes for generated code.
const CODE: usize = 128 << 20;
/// Limit of instruction addresses that are remembered.
const SITES: usize = 1 << 19;

struct Engine {
    decoder: Decoder,
    thunks: Thunks,
}

struct Shared(UnsafeCell<Option<Engine>>);

// SAFETY: written once (`init`), before the first reader.
unsafe impl Sync for Shared {}

static ENGINE: Shared = Shared(UnsafeCell::new(None));

#[inline(always)]
fn engine() -> &'static Engine {
    // SAFETY: set at boot, before the first fault, and never changed.
    unsafe { (*ENGINE.0.get()).as_ref().unwrap_unchecked() }
}

#[inline]
pub fn thunks() -> &'static Thunks {
    &engine().thunks
}

pub fn decoder() -> &'static Decoder {
    &engine().decoder
}

/// Maps the code arena and creates the engine.
///
/// # Safety
/// During boot, before any handler of ours.
pub unsafe fn init() -> Result<(), Errno> {
    let (rw, rx) = place::map_code(CODE as u64)?;
    let len = Thunks::data_size(SITES);
    let base = ulpf_lib::arena::map_anonymous(len);
    if base.is_null() {
        return Err(Errno(12));
    }
    place::not_dumped(base as u64, len as u64);
    let code = CodeArena {
        rw: rw as *mut u8,
        rx: rx as *const u8,
        len: CODE,
    };
    let thunks = Thunks::new(code, DataArena { base, len }).ok_or(Errno(12))?;
    let engine = Engine {
        decoder: Decoder::new().ok_or(Errno(12))?,
        thunks,
    };
    // SAFETY: the caller's duty.
    unsafe { *ENGINE.0.get() = Some(engine) };
    Ok(())
}

/// Recovers from a fault in generated code or in an accessor of the engine: the code ends there, and the program gets
/// the fault.
pub fn recover(uc: &mut UContext, info: &SigInfo) -> bool {
    let what = FaultInfo::of(info, uc);
    engine().thunks.recover(&mut uc.gprs, what)
}

/// Decodes one instruction of the program; `None` if the bytes are not one.
pub fn decode(pc: u64, bytes: &[u8]) -> Option<Insn> {
    let known = engine().thunks.known(pc, bytes).map(|site| site.insn);
    known.or_else(|| engine().decoder.decode(pc, bytes).ok())
}

/// Instructions that have touched guarded pages.
pub fn sites() -> impl Iterator<Item = &'static Site> {
    engine().thunks.all()
}

/// True if the address is in the engine's generated code.
pub fn is_thunk(pc: u64) -> bool {
    engine().thunks.contains(pc)
}

/// True if the address is in the stub's own code.
pub fn ours(rip: u64) -> bool {
    let (base, end) = machine().image;
    (rip >= base && rip < end) || is_thunk(rip)
}
