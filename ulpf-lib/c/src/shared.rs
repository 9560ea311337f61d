//! What the fault handler reads: on pages of its own, so that no watch of the program can lie beside it.
//!
//! **Who may do what when.** One thread at a time is the *changer* (`change.rs`); everything but the
//! counters changes only while it is. Handlers read between `change::enter` and `leave`, for which a
//! changer waits. So the watchlist and the page map need no lock of their own. Who has the right to
//! either, a value says:
//!
//! | value | is given out by | is the right to |
//! |---|---|---|
//! | [`Unchanging`] | `change::enter`; a [`Changer`] has one | read the watchlist |
//! | [`Changer`] | `change::change`, `change::join` | use what is [`Changed`]: the model |
//! | [`ListRight`] | nobody: the model has it | change the watchlist |

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use ulpf_engine::access::Decoder;
use ulpf_engine::exec::{DataArena, Thunks};
use ulpf_lib::Watchlist;
use ulpf_lib::library_abi::AbiTable;

use crate::thread;

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
    pub table: AbiTable,
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
    /// Where the kernel module enters; 0: it cannot.
    pub upcall: AtomicU64,
    /// Hits beyond what one instruction can hand to handlers (all are counted).
    pub unreported: AtomicU64,
    list: List,
    pub engine: AtomicPtr<Engine>,
}

struct List(UnsafeCell<Watchlist>);
// SAFETY: read and changed by the rule at the head of the module, as the values of which it speaks prove.
unsafe impl Sync for List {}

/// Nothing changes while this lives, for the calling thread performs an access or is the changer.
pub struct Unchanging(PhantomData<*mut ()>);

impl Unchanging {
    /// # Safety
    /// The calling thread performs, as long as the value lives.
    pub unsafe fn new() -> Unchanging {
        Unchanging(PhantomData)
    }

    /// What is watched.
    pub fn list(&self) -> &Watchlist {
        // SAFETY: nobody changes it meanwhile. (That the changer itself faults, and so reads it in a handler, happens
        // when it touches the program's memory, which it does not while it changes the list.)
        unsafe { &*S.list.0.get() }
    }
}

/// The calling thread is the changer. There is one at a time.
pub struct Changer {
    still: Unchanging,
    /// It is a part of a change that the thread was in already: when it is over, that one goes on.
    pub joined: bool,
}

impl Changer {
    /// # Safety
    /// The thread has become the changer just now; or (`joined`) it is the changer, and whoever has that value does
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

/// What the changer alone uses.
pub struct Changed<T>(UnsafeCell<T>);

// SAFETY: one thread at a time is the changer.
unsafe impl<T: Send> Sync for Changed<T> {}

impl<T> Changed<T> {
    pub const fn new(value: T) -> Changed<T> {
        Changed(UnsafeCell::new(value))
    }

    pub fn get<'a>(&'a self, _: &'a mut Changer) -> &'a mut T {
        // SAFETY: there is one `Changer`, and it is lent for as long as the answer.
        unsafe { &mut *self.0.get() }
    }
}

/// The right to change the watchlist: one value, which the changer alone can reach.
pub struct ListRight(());

impl ListRight {
    /// # Safety
    /// Once, for something that is [`Changed`].
    pub const unsafe fn new() -> ListRight {
        ListRight(())
    }

    pub fn list(&self) -> &Watchlist {
        // SAFETY: the changer's, who lends it to be read.
        unsafe { &*S.list.0.get() }
    }

    pub fn list_mut(&mut self) -> &mut Watchlist {
        // SAFETY: the only value of this type is lent, so nobody else changes the list; handlers wait.
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
    /// Is the calling thread the changer?
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
