//! Watches that follow pointers: what the program's threads do for them. `control/paths.rs` of the stub's task has the
//! watches themselves.
//!
//! ```text
//! a store to a pointer on the way
//!   one thread:  the store ─▶ `Retrace` ─▶ the world rests: the watch is where the pointer leads now ─▶ go on
//!   several:     `RetraceBegin` ─▶ the world rests ─▶ the store, alone ─▶ `End`: the watch has moved ─▶ all go on
//! ```
//! Nobody has seen the pointer's new value before the watch is where it leads. So with several threads the store
//! itself is made while the others rest. Trampolines cannot do that: of a page with such a pointer they never get the
//! lock ([`crate::locks::reserve`]), and leave its hits to the fault's handler.
//!
//! What the kernel writes into such a pointer (read(2), recv(2)) is seen when the call returns, before its thread goes
//! on; a thread that uses the pointer while the call still runs is not waited for.

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

/// Some watch follows pointers. Changes at rest.
static SOME: AtomicBool = AtomicBool::new(false);
/// Some of them follow threads. Changes at rest.
static OF_THREADS: AtomicBool = AtomicBool::new(false);
/// A pointer has changed since the ways were gone last.
static CHANGED: AtomicBool = AtomicBool::new(false);
/// Some pointer on a way has been given back to the allocator. Changes at rest.
static SOME_GIVEN_BACK: AtomicBool = AtomicBool::new(false);
/// So many of which it is known where they are: the first of these. More than there are places: any may have.
static KNOWN: AtomicUsize = AtomicUsize::new(0);
/// Each with [`GIVEN_BACK`], if it was.
static WHERE: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

/// Which pointers have changed.
pub struct Changed {
    at: [u64; WHERE.len()],
    known: usize,
}

impl Changed {
    /// Where they are, some with [`GIVEN_BACK`]; `None`: any may have.
    pub fn pointers(&self) -> Option<&[u64]> {
        self.at.get(..self.known)
    }
}

/// Is there any watch that follows?
pub fn some() -> bool {
    SOME.load(Relaxed)
}

/// Is there any that asks for each thread's own data? Whoever begins, ends or gets another pointer to its data tells so.
pub fn of_threads() -> bool {
    OF_THREADS.load(Relaxed)
}

/// So it is from now on.
pub fn set_of_threads(some: bool) {
    OF_THREADS.store(some, SeqCst);
}

/// Is some pointer on a way in an object that has been freed?
pub fn some_given_back() -> bool {
    SOME_GIVEN_BACK.load(Relaxed)
}

/// So it is from now on.
pub fn set_given_back(some: bool) {
    SOME_GIVEN_BACK.store(some, SeqCst);
}

/// Are there any?
pub fn exist(some: bool) {
    SOME.store(some, SeqCst);
    if !some {
        CHANGED.store(false, SeqCst);
        KNOWN.store(0, SeqCst);
    }
}

/// A pointer has another value now, or the memory that it lies in.
pub fn changed() {
    if SOME.load(Relaxed) {
        KNOWN.store(WHERE.len() + 1, SeqCst);
        CHANGED.store(true, SeqCst);
    }
}

/// The pointer there has another value now, or has been given back to the allocator with the object that it is in.
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

/// Whoever is told so, with the world at rest, goes all ways again.
pub fn take_changed() -> Option<Changed> {
    if !CHANGED.swap(false, SeqCst) {
        return None;
    }
    let at = core::array::from_fn(|n| WHERE.get(n).map_or(0, |at| at.load(SeqCst)));
    let known = KNOWN.swap(0, SeqCst);
    Some(Changed { at, known })
}

/// Has one changed that nobody has looked at yet?
pub fn has_changed() -> bool {
    CHANGED.load(SeqCst)
}

/// Does an instruction write to a pointer, which others must not see before the watch has moved?
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

/// The others rest until [`settle`].
pub fn begin(t: Current, uc: &mut UContext) {
    park::request(t, uc, Request::RetraceBegin);
    t.own().alone.set(true);
}

/// The access has been made, or will not be: the watches are where their pointers lead now before this thread goes on,
/// and the others go on if they rest for it.
pub fn settle(t: Current, uc: &mut UContext) {
    if t.own().alone.take() {
        park::request(t, uc, Request::End);
    }
    if has_changed() {
        park::request(t, uc, Request::Retrace);
    }
}
