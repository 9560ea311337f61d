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

use core::sync::atomic::{AtomicBool, Ordering::*};

use ulpf_engine::access::AccessList;
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
/// A pointer has changed since the ways were gone last.
static CHANGED: AtomicBool = AtomicBool::new(false);

/// Are there any?
pub fn exist(some: bool) {
    SOME.store(some, SeqCst);
    if !some {
        CHANGED.store(false, SeqCst);
    }
}

/// A pointer has another value now, or the memory that it lies in.
pub fn changed() {
    if SOME.load(Relaxed) {
        CHANGED.store(true, SeqCst);
    }
}

/// Whoever is told so goes all ways again.
pub fn take_changed() -> bool {
    CHANGED.swap(false, SeqCst)
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
