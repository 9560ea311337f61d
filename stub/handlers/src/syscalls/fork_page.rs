//! The page that a forked child shares with its parent until it goes on.
//!
//! ```text
//!  thread                        child
//!  new()
//!  fork(2) ────────────────────▶ copies the memory that both would share
//!  until done ◀───────────────── tell_done()
//!  keep(child)                   until the command has decided (followed children only)
//!  ⋮   release(child) ─────────▶ goes on
//! ```
//! Each fork has a new page, and no later child inherits it (MADV_DONTFORK). So a child that has given up its rights
//! can answer for itself alone: never for a sibling, nor hold up its parent's next fork.
//!
//! **Who writes what.** The child stores `done`; the parent's process stores `go`. A slot of `HELD` belongs to the
//! thread that forks until [`ForkPage::keep`], and then to the stub's task.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_lib::place::{self, AfterFork};
use ulpf_lib::sync::futex;
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;

const LEN: u64 = 4096;

#[repr(C)]
struct Words {
    /// 1: the child has memory of its own.
    done: AtomicU32,
    /// 1: the child may go on.
    go: AtomicU32,
}

/// Children that may wait at once; of more, the last ones are not followed.
const MOST: usize = 512;

struct Held {
    /// Address of the page, or 0.
    page: AtomicU64,
    /// The child as its parent knows it; 0: the fork is under way.
    child: AtomicI32,
}

static HELD: [Held; MOST] = [const {
    Held {
        page: AtomicU64::new(0),
        child: AtomicI32::new(0),
    }
}; MOST];

/// The page of one fork, in the parent or in the child.
pub struct ForkPage {
    at: u64,
    slot: Option<&'static Held>,
}

impl ForkPage {
    /// A page for one fork, while no other thread forks.
    ///
    /// # Errors
    /// mmap(2)'s.
    pub fn new(followed: bool) -> Result<ForkPage, Errno> {
        let (prot, flags) = (
            k::PROT_READ | k::PROT_WRITE,
            k::MAP_SHARED | k::MAP_ANONYMOUS,
        );
        let at = place::map(LEN, prot, flags, -1, AfterFork::Both)?;
        let page = ForkPage {
            at,
            slot: if followed { free_slot() } else { None },
        };
        match page.slot {
            Some(slot) => slot.page.store(at, SeqCst),
            None => page.words().go.store(1, SeqCst),
        }
        Ok(page)
    }

    fn words(&self) -> &Words {
        // SAFETY: mapped until `keep` or `leave`, which consume this; all of it is atomic.
        unsafe { &*(self.at as *const Words) }
    }

    /// In the parent, after fork(2): later children do not have this page.
    pub fn not_for_others(&self) {
        let _ = place::not_for_children(self.at, LEN);
    }

    pub fn is_done(&self) -> bool {
        self.words().done.load(SeqCst) != 0
    }

    /// Waits until the child is done, or for `ns` nanoseconds at most.
    pub fn wait_until_done(&self, ns: i64) {
        futex::wait_for(&self.words().done, 0, ns);
    }

    /// In the child: its memory is its own.
    pub fn tell_done(&self) {
        self.words().done.store(1, SeqCst);
        futex::wake_all(&self.words().done);
    }

    /// In the child: it may go on.
    pub fn may_go(&self) -> bool {
        self.words().go.load(SeqCst) != 0
    }

    /// In the child: waits until it may go on, or for `ns` nanoseconds at most.
    pub fn wait_to_go(&self, ns: i64) {
        futex::wait_for(&self.words().go, 0, ns);
    }

    /// In the parent: the child waits until it is released by this number. `follows`: asked once that is known.
    pub fn keep(self, child: i32, follows: impl FnOnce() -> bool) {
        if let Some(slot) = self.slot {
            slot.child.store(child, SeqCst);
            if !follows() {
                release(child);
            }
            return;
        }
        self.leave();
    }

    /// It is not needed any more, in this process.
    pub fn leave(self) {
        if let Some(slot) = self.slot {
            slot.page.store(0, SeqCst);
        }
        place::unmap(self.at, LEN);
    }
}

/// Only the thread that forks takes a slot, and one forks at a time.
fn free_slot() -> Option<&'static Held> {
    let free = || HELD.iter().find(|h| h.page.load(SeqCst) == 0);
    free().or_else(|| {
        HELD.iter().for_each(forget_dead);
        free()
    })
}

/// Children that were killed while they waited are never released.
fn forget_dead(held: &Held) {
    let child = held.child.load(SeqCst);
    // SAFETY: signal 0 only asks.
    if child != 0 && unsafe { sys!(k::__NR_kill, child, 0) }.is_err() {
        release(child);
    }
}

/// Lets this child go on, if it waits.
pub fn release(child: i32) {
    let own = |h: &&Held| h.child.load(SeqCst) == child;
    let Some(held) = HELD.iter().find(own) else {
        return;
    };
    if held
        .child
        .compare_exchange(child, 0, SeqCst, SeqCst)
        .is_err()
    {
        return;
    }
    let at = held.page.load(SeqCst);
    go(at);
    place::unmap(at, LEN);
    held.page.store(0, SeqCst);
}

/// Lets all children go on. The pages of forks that are under way stay mapped.
pub fn release_all() {
    for held in &HELD {
        match (held.child.load(SeqCst), held.page.load(SeqCst)) {
            (_, 0) => {}
            (0, at) => go(at),
            (child, _) => release(child),
        }
    }
}

fn go(at: u64) {
    // SAFETY: a page on the list is mapped until its slot is free.
    let words = unsafe { &*(at as *const Words) };
    words.go.store(1, SeqCst);
    futex::wake_all(&words.go);
}
