//! What the fault handler reads: on pages of its own, so that no watch of the program can lie beside it.
//!
//! **Who may do what when.** One thread at a time is the *changer* (`change.rs`); everything but the
//! counters changes only while it is. Handlers read between [`crate::change::enter`] and `leave`,
//! for which a changer waits. So the watchlist and the page map need no lock of their own.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use ulpf_engine::access::Decoder;
use ulpf_engine::exec::{CodeArena, DataArena, Thunks};
use ulpf_lib::Watchlist;
use ulpf_lib::arena::map_anonymous;
use ulpf_lib::door::Door;
use ulpf_lib::sys::Errno;
use ulpf_lib::{place, sys};

use linux_raw_sys::general as k;

use crate::error::Failure;

/// Instruction addresses that are remembered.
const SITES: usize = 1 << 14;
/// Bytes for generated code.
const CODE: usize = 4 << 20;
/// Most watches there can be at a time.
pub const SLOTS: usize = 1 << 20;

/// A watch as the handler sees it.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Slot {
    /// [`FREE`], [`LIVE`] or [`SPENT`].
    pub state: AtomicU32,
    /// `ULPF_*` flags.
    pub flags: AtomicU32,
    /// The thread that it is for, or (with `ULPF_OTHERS`) all but this one; 0: every thread.
    pub thread: AtomicI32,
    pub pad: AtomicU32,
    pub handler: AtomicUsize,
    pub data: AtomicUsize,
    pub hits: AtomicU64,
    pub silent: AtomicU64,
    pub time: AtomicU64,
}

pub const FREE: u32 = 0;
pub const LIVE: u32 = 1;
/// A one-shot watch that has fired.
pub const SPENT: u32 = 2;

#[repr(C, align(4096))]
pub struct Shared {
    /// The page map, who changes it, and whether a stub is there that wants to know.
    pub door: Door,
    pub stacks: AtomicU64,
    pub stacks_len: AtomicU64,
    pub slots: AtomicPtr<Slot>,
    /// The thesis's handler; 0: none is registered.
    pub user_handler: AtomicUsize,
    /// For watchpoints without one of their own.
    pub handler: AtomicUsize,
    pub handler_data: AtomicUsize,
    pub faults: AtomicU64,
    pub false_positives: AtomicU64,
    pub nested: AtomicU64,
    /// Instructions that could not be redirected: the page was open for one step.
    pub opened: AtomicU64,
    /// Hits beyond what one instruction can hand to handlers (all are counted).
    pub unreported: AtomicU64,
    list: UnsafeCell<Watchlist>,
    engine: AtomicPtr<Engine>,
}

// SAFETY: `list` follows the rule at the head of the module; the rest is atomic.
unsafe impl Sync for Shared {}

pub struct Engine {
    pub decoder: Decoder,
    pub thunks: Thunks,
    data: DataArena,
}

pub static S: Shared = Shared {
    door: Door::new(),
    stacks: AtomicU64::new(0),
    stacks_len: AtomicU64::new(0),
    slots: AtomicPtr::new(core::ptr::null_mut()),
    user_handler: AtomicUsize::new(0),
    handler: AtomicUsize::new(0),
    handler_data: AtomicUsize::new(0),
    faults: AtomicU64::new(0),
    false_positives: AtomicU64::new(0),
    nested: AtomicU64::new(0),
    opened: AtomicU64::new(0),
    unreported: AtomicU64::new(0),
    list: UnsafeCell::new(Watchlist::new()),
    engine: AtomicPtr::new(core::ptr::null_mut()),
};

impl Shared {
    /// For handlers between `enter` and `leave`, and for the changer.
    pub fn list(&self) -> &Watchlist {
        // SAFETY: head of the module.
        unsafe { &*self.list.get() }
    }

    /// # Safety
    /// The caller is the changer and holds no other reference to the list.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn list_mut(&self) -> &mut Watchlist {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.list.get() }
    }

    /// `None` before [`prepare`].
    pub fn engine(&self) -> Option<&'static Engine> {
        // SAFETY: set once, never freed.
        unsafe { self.engine.load(Acquire).as_ref() }
    }

    /// The slot of watch number `id`.
    pub fn slot(&self, id: u32) -> Option<&'static Slot> {
        let slots = self.slots.load(Acquire);
        // SAFETY: `SLOTS` zeroed slots, never unmapped.
        ((id as usize) < SLOTS && !slots.is_null()).then(|| unsafe { &*slots.add(id as usize) })
    }
}

/// Makes the engine and the table of slots (by the changer, before there are handlers).
pub fn prepare() -> Result<(), Failure> {
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
    crate::alloc::capstone_uses_arena();
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

/// In a forked child, which has none of its parent's generated code: begins again, with code of its own. Where that
/// cannot be had, instructions are performed without.
pub fn after_fork() {
    let engine = S.engine.load(Acquire);
    // SAFETY: made by `prepare`; the child has one thread, which is the changer.
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
