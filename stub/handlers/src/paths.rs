//! Watches that follow pointers: the part of the program's threads. `control/paths.rs` of the stub's task has the
//! watches themselves.
//!
//! ```text
//! a store to a pointer on the way
//!   one thread:  the store ─▶ `Retrace` ─▶ the world stops: the watch is where the pointer leads now ─▶ go on
//!   several:     `RetraceBegin` ─▶ the world stops ─▶ the store, alone ─▶ `End`: the watch has moved ─▶ all go on
//! ```
//! No thread sees the pointer's new value before the watch has moved to its target. So with several threads, the store
//! itself is made while the other threads are stopped. Trampolines cannot do that. They never get the lock of a page
//! with such a pointer ([`crate::locks::reserve`]), and leave its hits to the fault handler.
//!
//! When the kernel writes to such a pointer (read(2), recv(2)), the watch moves before the call returns to its thread.
//! A thread that uses the pointer while the call still runs is not waited for.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};

use ulpf_engine::access::AccessList;
use ulpf_lib::command::GIVEN_BACK;
use ulpf_lib::{WatchId, WatchKind, WatchRange};
use ulpf_stub_tables::attributes::Part;

use crate::global::g;
use crate::locks;
use crate::runtime::events::Request;
use crate::runtime::frame::UContext;
use crate::runtime::park;
use crate::runtime::thread::Current;

/// Some watch follows pointers. Changes with the world stopped.
static SOME: AtomicBool = AtomicBool::new(false);
/// Some of them follow threads. Changes with the world stopped.
static OF_THREADS: AtomicBool = AtomicBool::new(false);
/// A pointer has changed since the paths were last followed.
static CHANGED: AtomicBool = AtomicBool::new(false);
/// Some pointer on a path has been given back to the allocator. Changes with the world stopped.
static SOME_GIVEN_BACK: AtomicBool = AtomicBool::new(false);
/// Number of changed pointers whose addresses are at the front of `WHERE`. If it is greater than the table, any pointer
/// may have changed.
static KNOWN: AtomicUsize = AtomicUsize::new(0);
/// Their addresses, with [`GIVEN_BACK`] if they were given back to the allocator.
static WHERE: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

/// The pointers that have changed.
pub struct Changed {
    at: [u64; WHERE.len()],
    known: usize,
}

impl Changed {
    /// Their addresses, some with [`GIVEN_BACK`]; `None` if any pointer may have changed.
    pub fn pointers(&self) -> Option<&[u64]> {
        self.at.get(..self.known)
    }
}

/// True if there is a watch that follows pointers.
pub fn some() -> bool {
    SOME.load(Relaxed)
}

/// True if some watch follows each thread's own data. Then a thread reports its beginning, its end, and a new pointer
/// to its data.
pub fn of_threads() -> bool {
    OF_THREADS.load(Relaxed)
}

/// Sets whether some watch follows each thread's own data.
pub fn set_of_threads(some: bool) {
    OF_THREADS.store(some, SeqCst);
}

/// True if some pointer on a path is in an object that has been freed.
pub fn some_given_back() -> bool {
    SOME_GIVEN_BACK.load(Relaxed)
}

/// Sets whether some pointer on a path is in a freed object.
pub fn set_given_back(some: bool) {
    SOME_GIVEN_BACK.store(some, SeqCst);
}

/// Sets whether there are watches that follow pointers.
pub fn exist(some: bool) {
    SOME.store(some, SeqCst);
    if !some {
        CHANGED.store(false, SeqCst);
        KNOWN.store(0, SeqCst);
    }
}

/// A pointer, or the memory that contains it, has changed.
pub fn changed() {
    if SOME.load(Relaxed) {
        KNOWN.store(WHERE.len() + 1, SeqCst);
        CHANGED.store(true, SeqCst);
    }
}

/// The pointer at `at` has changed, or has been given back to the allocator along with its object.
pub fn changed_at(at: u64, given_back: bool) {
    let at = at | if given_back { GIVEN_BACK } else { 0 };
    let more = |n: usize| (n <= WHERE.len()).then_some(n + 1);
    if let Ok(n) = KNOWN.fetch_update(SeqCst, SeqCst, more)
        && let Some(slot) = WHERE.get(n)
    {
        slot.store(at, SeqCst);
    }
    CHANGED.store(true, SeqCst);
}

/// Takes the changes. The caller must follow all paths again, with the world stopped.
pub fn take_changed() -> Option<Changed> {
    if !CHANGED.swap(false, SeqCst) {
        return None;
    }
    let at = core::array::from_fn(|n| WHERE.get(n).map_or(0, |at| at.load(SeqCst)));
    let known = KNOWN.swap(0, SeqCst);
    Some(Changed { at, known })
}

/// True if a pointer has changed and its path has not been followed yet.
pub fn has_changed() -> bool {
    CHANGED.load(SeqCst)
}

/// True if an instruction writes to a pointer, and other threads must not see that before the watch has moved.
pub fn asks_for_rest(t: Current, list: &AccessList) -> bool {
    SOME.load(Relaxed)
        && locks::several()
        && !t.own().alone.get()
        && t.own().own_step.get().is_none()
        && list.iter().any(|a| {
            let mut pointer = false;
            let look = &mut |id: WatchId, _: WatchRange, _: WatchKind| {
                pointer |= g().attributes(id).part == Part::Pointer;
                !pointer
            };
            if a.kind.writes() {
                g().watchlist().overlaps_while(a.addr, a.len, look);
            }
            pointer
        })
}

/// Stops the other threads until [`settle`].
pub fn begin(t: Current, uc: &mut UContext) {
    park::request(t, uc, Request::RetraceBegin);
    t.own().alone.set(true);
}

/// Called when the access has been made, or will not be made. The watches move to the targets of their pointers before
/// this thread continues; threads that are stopped for it continue, too.
pub fn settle(t: Current, uc: &mut UContext) {
    if t.own().alone.take() {
        park::request(t, uc, Request::End);
    }
    if has_changed() {
        park::request(t, uc, Request::Retrace);
    }
}
