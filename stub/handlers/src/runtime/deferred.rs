//! Work that a task puts off while it holds the program's threads by ptrace(2) (`super::tracer`).
//!
//! * To follow a new mapping: until then, the memory is not watched.
//! * To unmap memory of ours: until then, it stays mapped, so that the kernel does not reuse its addresses.
//! * Patches and unwind tables: until then, new code has none.
//!
//! The work is done in the order in which it was put off (`crate::syscalls::put_off`). The task does it when it has
//! released the last thread; or the next system call of the stub on another thread does. Other threads that come
//! meanwhile wait until it is done.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};

use super::events::Request;
use super::mapped::Mapped;
use super::thread::Current;
use crate::global::g;

/// Limit of changes of mappings in the list.
const MOST: usize = 256;

/// States of a slot of the list. A writer takes a free slot, fills it and sets its kind; a reader frees it.
const FREE: u32 = 0;
const TAKEN: u32 = 1;
const MAPPED: u32 = 2;
const UNMAP: u32 = 3;

struct Slot {
    what: AtomicU32,
    /// The [`Mapped`]; or the range to unmap, as the first of its ranges.
    ranges: [(AtomicU64, AtomicU64); 3],
}

impl Slot {
    const fn free() -> Slot {
        Slot {
            what: AtomicU32::new(FREE),
            ranges: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; 3],
        }
    }

    fn mapped(&self) -> Mapped {
        let [gone, come, only_if] = &self.ranges;
        let range = |r: &(AtomicU64, AtomicU64)| (r.0.load(SeqCst), r.1.load(SeqCst));
        Mapped {
            gone: range(gone),
            come: range(come),
            only_if: range(only_if),
            ..Mapped::default()
        }
    }
}

static SLOTS: [Slot; MOST] = [const { Slot::free() }; MOST];
/// The thread that does the work, or 0.
static SERVED_BY: AtomicI32 = AtomicI32::new(0);
/// Some work has been put off and is not done.
pub static SOME: AtomicBool = AtomicBool::new(false);
/// The list was full: memory that was mapped meanwhile is not watched.
pub static FULL: AtomicBool = AtomicBool::new(false);
/// Code was mapped.
static CODE: AtomicBool = AtomicBool::new(false);
/// [`Request::SitesAnew`].
static SITES: AtomicBool = AtomicBool::new(false);

fn note(what: u32, m: Mapped) -> bool {
    let free = SLOTS.iter().find(|slot| {
        let taken = slot.what.compare_exchange(FREE, TAKEN, SeqCst, SeqCst);
        taken.is_ok()
    });
    if let Some(slot) = free {
        for (to, from) in slot.ranges.iter().zip([m.gone, m.come, m.only_if]) {
            to.0.store(from.0, SeqCst);
            to.1.store(from.1, SeqCst);
        }
        slot.what.store(what, SeqCst);
        SOME.store(true, SeqCst);
    }
    free.is_some()
}

/// Puts a request off, or drops it if the thread can continue without it. Returns `false` if neither is possible.
pub fn put_off(t: Current, r: Request) -> bool {
    use Request::*;
    let later = match r {
        Rearm => {
            if !note(MAPPED, t.own().mapped.get()) {
                FULL.store(true, SeqCst);
            }
            return true;
        }
        Unwind { at: 0 } => &CODE,
        SitesAnew => &SITES,
        // Without these, the program is slower or less closely watched; `Tell` is repeated with the next request.
        Unwind { .. }
        | Patch { .. }
        | PatchAccess { .. }
        | Cool { .. }
        | Reconsider { .. }
        | Tell => return true,
        _ => return false,
    };
    later.store(true, SeqCst);
    SOME.store(true, SeqCst);
    true
}

/// Memory was unmapped or replaced: drops the work on it.
pub fn gone(range: (u64, u64)) {
    if !SOME.load(Relaxed) || range.0 >= range.1 {
        return;
    }
    for slot in SLOTS.iter().filter(|s| s.what.load(SeqCst) == MAPPED) {
        let come = slot.mapped().come;
        if come.0 >= range.0 && come.1 <= range.1 {
            let _ = slot.what.compare_exchange(MAPPED, FREE, SeqCst, SeqCst);
        }
    }
}

/// Puts off unmapping memory of ours. If the list is full, the memory stays mapped.
pub fn unmap(start: u64, len: u64) {
    let range = Mapped {
        gone: (start, start.saturating_add(len)),
        ..Mapped::default()
    };
    note(UNMAP, range);
}

/// Work that was put off.
pub enum Owed {
    /// A change of the mappings to follow.
    Mapped(Mapped),
    /// `[start, end)` of memory to unmap.
    Unmap(u64, u64),
}

/// Starts the work on the calling thread. Returns `false` if another thread does it.
pub fn begin(t: Current) -> bool {
    let by = SERVED_BY.load(SeqCst);
    // (A forked child has its parent's value, but not that thread.)
    let busy = by != 0 && by != t.tid() && g().threads.find(by).is_some();
    let begin = || SERVED_BY.compare_exchange(by, t.tid(), SeqCst, SeqCst);
    !busy && begin().is_ok()
}

/// Ends the work after [`begin`], except for work that was put off meanwhile.
pub fn end() {
    SOME.store(false, SeqCst);
    let left = SLOTS.iter().any(|slot| slot.what.load(SeqCst) != FREE);
    if left || CODE.load(SeqCst) || SITES.load(SeqCst) {
        SOME.store(true, SeqCst);
    }
    SERVED_BY.store(0, SeqCst);
}

/// Takes all changes of mappings off the list, in order.
pub fn take(mut f: impl FnMut(Owed)) {
    for slot in &SLOTS {
        let mapped = slot.mapped();
        let what = slot.what.load(SeqCst);
        let ours = |what| {
            slot.what
                .compare_exchange(what, FREE, SeqCst, SeqCst)
                .is_ok()
        };
        match what {
            MAPPED if ours(what) => f(Owed::Mapped(mapped)),
            UNMAP if ours(what) => f(Owed::Unmap(mapped.gone.0, mapped.gone.1)),
            _ => {}
        }
    }
}

/// Takes the requests that were put off.
pub fn requests() -> impl Iterator<Item = Request> {
    let both = [
        (&CODE, Request::Unwind { at: 0 }),
        (&SITES, Request::SitesAnew),
    ];
    both.into_iter()
        .filter(|(owed, _)| owed.swap(false, SeqCst))
        .map(|(_, request)| request)
}
