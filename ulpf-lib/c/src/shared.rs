//! Data of the fault handler, on pages of its own, so that no watch of the program can lie beside it.
//!
//! **Concurrency.** One thread at a time is the *changer* (`change.rs`). Everything but the counters changes only
//! meanwhile. Handlers read between `change::enter` and `leave`, for which a changer waits. So the watchlist and the page
//! map need no lock of their own. Values represent the rights:
//!
//! | value | source | right |
//! |---|---|---|
//! | [`Unchanging`] | `change::enter`; a [`Changer`] has one | read the watchlist |
//! | [`Changer`] | `change::change`, `change::join` | use the contents of [`Changed`]: the model |
//! | [`ListRight`] | held by the model | change the watchlist |

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use ulpf_engine::access::Decoder;
use ulpf_engine::exec::{DataArena, Thunks};
use ulpf_lib::Watchlist;
use ulpf_lib::library_abi::AbiTable;

use crate::thread;

/// Maximum number of watches at a time.
pub const SLOTS: usize = 1 << 20;

/// A watch as the handler reads it.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Slot {
    /// [`FREE`], [`LIVE`] or [`SPENT`].
    pub state: AtomicU32,
    /// `ULPF_*` flags.
    pub flags: AtomicU32,
    /// Its thread, or (with `ULPF_OTHERS`) the thread that is exempt; 0 for every thread.
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
    /// The page map, the changer, and whether a stub is present.
    pub table: AbiTable,
    pub stacks: AtomicU64,
    pub stacks_len: AtomicU64,
    pub slots: AtomicPtr<Slot>,
    /// The thesis's handler, or 0 if none is registered.
    pub user_handler: AtomicUsize,
    /// Handler of watchpoints without one of their own.
    pub handler: AtomicUsize,
    pub handler_data: AtomicUsize,
    pub faults: AtomicU64,
    pub false_positives: AtomicU64,
    pub nested: AtomicU64,
    /// Instructions that could not be redirected: the page was open for one step.
    pub opened: AtomicU64,
    /// Address that the kernel module enters, or 0 if it cannot.
    pub upcall: AtomicU64,
    /// Hits beyond the number that handlers can get of one instruction (all are counted).
    pub unreported: AtomicU64,
    list: List,
    pub engine: AtomicPtr<Engine>,
}

struct List(UnsafeCell<Watchlist>);
// SAFETY: read and changed by the rule at the head of the module, which the values named there prove.
unsafe impl Sync for List {}

/// While this lives nothing changes, because the calling thread performs an access or is the changer.
pub struct Unchanging(PhantomData<*mut ()>);

impl Unchanging {
    /// # Safety
    /// The calling thread performs while the value lives.
    pub unsafe fn new() -> Unchanging {
        Unchanging(PhantomData)
    }

    /// The watches.
    pub fn list(&self) -> &Watchlist {
        // SAFETY: the list does not change meanwhile. (The changer reads it in a handler when it faults on the program's
        // memory, and it does not touch that memory while it changes the list.)
        unsafe { &*S.list.0.get() }
    }
}

/// The calling thread is the changer. There is one at a time.
pub struct Changer {
    still: Unchanging,
    /// Part of a change in which the thread already was; that change continues afterwards.
    pub joined: bool,
}

impl Changer {
    /// # Safety
    /// The thread has just become the changer. Or (`joined`) it is the changer, and the code that holds its value does
    /// not run until this one is dropped.
    pub unsafe fn new(joined: bool) -> Changer {
        Changer {
            still: Unchanging(PhantomData),
            joined,
        }
    }

    pub fn still(&self) -> &Unchanging {
        &self.still
    }
}

/// Data of the changer alone.
pub struct Changed<T>(UnsafeCell<T>);

// SAFETY: one thread at a time is the changer.
unsafe impl<T: Send> Sync for Changed<T> {}

impl<T> Changed<T> {
    pub const fn new(value: T) -> Changed<T> {
        Changed(UnsafeCell::new(value))
    }

    pub fn get<'a>(&'a self, _: &'a mut Changer) -> &'a mut T {
        // SAFETY: there is one `Changer`, and it is borrowed for as long as the result.
        unsafe { &mut *self.0.get() }
    }
}

/// The right to change the watchlist: one value, which the changer alone can reach.
pub struct ListRight(());

impl ListRight {
    /// # Safety
    /// Once, for data in a [`Changed`].
    pub const unsafe fn new() -> ListRight {
        ListRight(())
    }

    pub fn list(&self) -> &Watchlist {
        // SAFETY: the changer's; borrowed for reading.
        unsafe { &*S.list.0.get() }
    }

    pub fn list_mut(&mut self) -> &mut Watchlist {
        // SAFETY: the only value of this type is borrowed, so no other code changes the list; handlers wait.
        unsafe { &mut *S.list.0.get() }
    }
}

pub struct Engine {
    pub decoder: Decoder,
    pub thunks: Thunks,
    pub data: DataArena,
}

pub static S: Shared = Shared {
    table: AbiTable::new(),
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
    upcall: AtomicU64::new(0),
    unreported: AtomicU64::new(0),
    list: List(UnsafeCell::new(Watchlist::new())),
    engine: AtomicPtr::new(core::ptr::null_mut()),
};

impl Shared {
    /// Whether the calling thread is the changer.
    pub fn is_changer(&self) -> bool {
        let changer = self.table.changer.load(Relaxed);
        changer != 0 && changer == thread::pointer()
    }

    /// `None` before `engine::prepare`.
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
