//! A page that a forked child shares with its parent until the child runs.
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
//! can answer only for itself. It can neither answer for a sibling nor delay its parent's next fork.
//!
//! **Ownership.** The child stores `done`; the parent's process stores `go`. A slot of `WAITING` belongs to the thread
//! that forks until [`ForkPage::keep`], and then to the stub's task.

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
    /// 1: the child may continue.
    go: AtomicU32,
}

/// Limit of children that wait at once; further ones are not followed.
const MOST: usize = 512;

struct WaitingChild {
    /// Address of the page, or 0.
    page: AtomicU64,
    /// The child's number in its parent's namespace, or 0 while the fork is under way.
    child: AtomicI32,
}

static WAITING: [WaitingChild; MOST] = [const {
    WaitingChild {
        page: AtomicU64::new(0),
        child: AtomicI32::new(0),
    }
}; MOST];

/// The page of one fork, in the parent or in the child.
pub struct ForkPage {
    at: u64,
    slot: Option<&'static WaitingChild>,
}

impl ForkPage {
    /// Maps a page for one fork, while no other thread forks.
    ///
    /// # Errors
    /// The error of mmap(2).
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
        // SAFETY: mapped until `keep` or `leave`, which consume this; all words are atomic.
        unsafe { &*(self.at as *const Words) }
    }

    /// In the parent, after fork(2): later children do not get this page.
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

    /// In the child: reports that its memory is its own.
    pub fn tell_done(&self) {
        self.words().done.store(1, SeqCst);
        futex::wake_all(&self.words().done);
    }

    /// In the child: true if it may continue.
    pub fn may_go(&self) -> bool {
        self.words().go.load(SeqCst) != 0
    }

    /// In the child: waits until it may continue, or for `ns` nanoseconds at most.
    pub fn wait_to_go(&self, ns: i64) {
        futex::wait_for(&self.words().go, 0, ns);
    }

    /// In the parent: keeps the page until the child is released by this number. `follows` is called once the number is
    /// known.
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

    /// Unmaps the page in this process.
    pub fn leave(self) {
        if let Some(slot) = self.slot {
            slot.page.store(0, SeqCst);
        }
        place::unmap(self.at, LEN);
    }
}

/// Only the thread that forks takes a slot, and one thread forks at a time.
fn free_slot() -> Option<&'static WaitingChild> {
    let free = || WAITING.iter().find(|h| h.page.load(SeqCst) == 0);
    free().or_else(|| {
        WAITING.iter().for_each(forget_dead);
        free()
    })
}

/// Frees the slot of a child that was killed while it waited, since it is never released.
fn forget_dead(held: &WaitingChild) {
    let child = held.child.load(SeqCst);
    // SAFETY: signal 0 only asks.
    if child != 0 && unsafe { sys!(k::__NR_kill, child, 0) }.is_err() {
        release(child);
    }
}

/// Lets this child continue, if it waits.
pub fn release(child: i32) {
    let own = |h: &&WaitingChild| h.child.load(SeqCst) == child;
    let Some(held) = WAITING.iter().find(own) else {
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

/// Lets all children continue. The pages of forks under way stay mapped.
pub fn release_all() {
    for held in &WAITING {
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
