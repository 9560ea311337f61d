//! Locks of guarded pages. They order the hits of one place into a chain. The old value of each hit is the new value of
//! the one before, whatever other threads do at the same time.
//!
//! A thread takes the lock of the page before it reads the old value, and holds it until the hit is accounted for. This
//! holds in trampolines (`engine/src/patch/hits.rs`) and in [`crate::fault`]. If a stop is to be reported, the thread
//! keeps the lock until then, and no other store to the page comes between.
//!
//! No handler waits long for a lock. A thread that does not get it returns to its instruction, which faults again, so
//! signals and the stub's task can reach the thread. After a very long time ([`SPINS`]) the thread takes the lock
//! away from its holder. The holder may not run because of the thread's own priority, because a debugger holds it, or
//! because it was killed (in a process that shares the program's memory). In these cases no thread would ever release
//! the lock.
//!
//! A program with one thread takes no locks.
//!
//! **System calls** take no lock while they run, since they may block for ever. The pages whose watched bytes a call
//! may write to are noted ([`Writing`]). Meanwhile a hit there is marked as possibly not in the chain. So is the call's
//! own hit, which is reported with the lock held; the chain continues with it.
//!
//! Trampolines never get the locks of some pages ([`reserve`]), and leave all hits there to the handler. To trampolines
//! these locks seem taken; handlers use an inner lock.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::*};

use ulpf_engine::access::AccessList;
use ulpf_engine::patch::{LOCK, LOCKS, SEVERAL, lock_of};
use ulpf_lib::sync::futex;
use ulpf_lib::{PAGE_SIZE, TargetAddr};

use crate::global::g;
use crate::runtime::clock;
use crate::runtime::thread::{Current, Thread};
use crate::stopped::Stopped;

/// Tries of a handler for a lock before the thread gives way.
const LOOKS: u32 = 200;
/// Times in a row that a thread gives way before it reads the clock.
const SPINS: u32 = 20_000;
/// Nanoseconds for which a thread gives way. On a busy machine the owner may be without a processor for long.
const LONGEST: u64 = 2_000_000_000;
/// Times that a thread yields before it reports a write of a system call without the lock.
const TURNS: u32 = 1000;
/// An access to more pages than this takes all locks.
const MOST_PAGES: usize = 2 * LOCKS;

#[repr(C)]
struct Lock {
    /// Not 0: a thread holds it. Trampolines exchange it.
    held: AtomicU8,
    /// Not 0: `held` is always set, and `inner` is the lock. Changes with the world stopped.
    reserved: AtomicU8,
    inner: AtomicU8,
    /// The thread that keeps it for a stop.
    keeper: AtomicU32,
}

#[repr(C, align(64))]
struct Locks {
    each: [Lock; LOCKS],
    /// Not 0: the program has had several threads.
    several: AtomicU8,
}

const _: () = assert!(size_of::<Lock>() == LOCK);
const _: () = assert!(core::mem::offset_of!(Locks, several) == SEVERAL as usize);

static ALL: Locks = Locks {
    each: [const {
        Lock {
            held: AtomicU8::new(0),
            reserved: AtomicU8::new(0),
            inner: AtomicU8::new(0),
            keeper: AtomicU32::new(0),
        }
    }; LOCKS],
    several: AtomicU8::new(0),
};

impl Lock {
    fn state(&self) -> &AtomicU8 {
        match self.reserved.load(Relaxed) {
            0 => &self.held,
            _ => &self.inner,
        }
    }

    fn take(&self) -> bool {
        self.state().swap(1, Acquire) == 0
    }

    fn free(&self) {
        self.state().store(0, Release);
    }
}

/// For each lock: the system calls that may be writing to watched bytes of its pages.
static WRITERS: [AtomicU32; LOCKS] = [const { AtomicU32::new(0) }; LOCKS];
/// Not 0: there has been such a call.
static WRITTEN: AtomicU8 = AtomicU8::new(0);

/// The value of [`ulpf_engine::patch::Tables::locks`].
pub fn address() -> u64 {
    &raw const ALL as u64
}

/// True if the program has had several threads.
pub fn several() -> bool {
    ALL.several.load(SeqCst) != 0
}

/// Reserves the locks of these pages, and no others, for handlers. A lock that is held stays held.
pub fn reserve(_: &mut Stopped, pages: impl Iterator<Item = u64>) {
    let mut wanted = Held::NONE;
    pages.for_each(|page| wanted.add(number(page)));
    for (n, lock) in ALL.each.iter().enumerate() {
        match (wanted.has(n), lock.reserved.load(Relaxed) != 0) {
            (true, false) => {
                lock.inner.store(lock.held.swap(1, SeqCst), SeqCst);
                lock.reserved.store(1, SeqCst);
            }
            (false, true) => {
                lock.held.store(lock.inner.load(SeqCst), SeqCst);
                lock.reserved.store(0, SeqCst);
            }
            _ => {}
        }
    }
}

/// Called before the program creates another thread.
pub fn threads_begin() {
    ALL.several.store(1, SeqCst);
}

/// Releases all locks in a forked child: it has one thread, and the other holders do not exist there.
pub fn begin_anew() {
    ALL.several.store(0, SeqCst);
    for lock in &ALL.each {
        lock.keeper.store(0, Relaxed);
        lock.free();
    }
    WRITTEN.store(0, SeqCst);
    for writers in &WRITERS {
        writers.store(0, SeqCst);
    }
}

/// Locks that a thread holds, by number.
#[derive(Clone, Copy, Default)]
pub struct Held([u64; LOCKS / 64]);

impl Held {
    pub const NONE: Held = Held([0; LOCKS / 64]);

    fn add(&mut self, n: usize) {
        if let Some(word) = self.0.get_mut(n / 64) {
            *word |= 1 << (n % 64);
        }
    }

    /// Adds the locks of all these bytes.
    fn add_bytes(&mut self, addr: u64, len: u64) {
        let end = addr.saturating_add(len);
        let mut page = TargetAddr(addr).page().0;
        for _ in 0..MOST_PAGES {
            if page >= end {
                return;
            }
            self.add(number(page));
            page = page.saturating_add(PAGE_SIZE);
        }
        *self = Held([u64::MAX; LOCKS / 64]);
    }

    fn has(&self, n: usize) -> bool {
        self.0
            .get(n / 64)
            .is_some_and(|word| word >> (n % 64) & 1 != 0)
    }

    fn locks(mut self) -> impl Iterator<Item = &'static Lock> {
        core::iter::from_fn(move || {
            let n = self.0.iter().position(|word| *word != 0)?;
            let word = self.0.get_mut(n)?;
            let bit = word.trailing_zeros() as usize;
            *word &= *word - 1;
            ALL.each.get(n * 64 + bit)
        })
    }

    /// The lock of the page with this alias, as taken by a trampoline.
    pub fn by_trampoline(alias: u64) -> Held {
        let mut held = Held::NONE;
        if ALL.several.load(Relaxed) != 0 {
            held.add(lock_of(alias));
        }
        held
    }

    fn writers(self) -> impl Iterator<Item = &'static AtomicU32> {
        let all = WRITERS.iter().enumerate();
        all.filter(move |(n, _)| self.has(*n)).map(|(_, w)| w)
    }

    pub fn give_back(self) {
        self.locks().for_each(Lock::free);
    }
}

/// The lock of one page.
fn number(page: u64) -> usize {
    lock_of(g().alias_of(page).map_or(page, |alias| alias.0))
}

/// Takes the locks for the watched pages of these accesses. Returns `None` if another thread holds one of them: then
/// the thread must return to its instruction and try again.
pub fn take(t: Current, list: &AccessList) -> Option<Held> {
    if ALL.several.load(Relaxed) == 0 {
        return Some(Held::NONE);
    }
    let mut wanted = Held::NONE;
    for a in list.iter() {
        if !g().watchlist().any_overlap(a.addr, a.len) {
            continue;
        }
        wanted.add_bytes(a.addr.0, a.len);
    }
    let waited = &t.own().waited;
    for _ in 0..LOOKS {
        if attempt(wanted) {
            waited.set((0, 0));
            return Some(wanted);
        }
        core::hint::spin_loop();
    }
    let (turns, since) = waited.get();
    if since == 0 {
        waited.set((1, clock::now()));
    } else if turns < SPINS {
        waited.set((turns + 1, since));
    } else if clock::now().saturating_sub(since) < LONGEST {
        waited.set((1, since));
    } else {
        waited.set((0, 0));
        // From now on the order of hits on these pages is not known.
        WRITTEN.store(1, SeqCst);
        wanted.writers().for_each(|n| {
            n.fetch_add(1, SeqCst);
        });
        return Some(wanted);
    }
    None
}

/// Takes all of them or none.
fn attempt(wanted: Held) -> bool {
    for (n, lock) in wanted.locks().enumerate() {
        if !lock.take() {
            wanted.locks().take(n).for_each(Lock::free);
            return false;
        }
    }
    true
}

/// Takes the lock of one page for accesses that follow at once. Returns `None` if another thread holds it.
pub fn take_page(page: u64) -> Option<Held> {
    let mut held = Held::NONE;
    if ALL.several.load(Relaxed) != 0 {
        held.add(number(TargetAddr(page).page().0));
    }
    attempt(held).then_some(held)
}

/// The pages with watched bytes that a system call may be writing to.
pub struct Writing(Held);

impl Writing {
    pub const NOTHING: Writing = Writing(Held::NONE);

    /// Adds these bytes. Called before any of them is read or written.
    pub fn add(&mut self, addr: u64, len: u64) {
        if ALL.several.load(Relaxed) == 0 {
            return;
        }
        let mut all = self.0;
        all.add_bytes(addr, len);
        WRITTEN.store(1, SeqCst);
        for (n, writers) in WRITERS.iter().enumerate() {
            if all.has(n) && !self.0.has(n) {
                writers.fetch_add(1, SeqCst);
            }
        }
        self.0 = all;
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.writers().for_each(|n| {
            n.fetch_sub(1, SeqCst);
        });
    }
}

/// True if the old value of a hit of these bytes is the new value of the hit before. The caller holds their locks.
pub fn in_chain(addr: u64, len: u64) -> bool {
    if WRITTEN.load(Relaxed) == 0 {
        return true;
    }
    let mut pages = Held::NONE;
    pages.add_bytes(addr, len);
    pages.writers().all(|n| n.load(SeqCst) == 0)
}

/// Takes the locks for the report of a system call's writes. Returns `None` if another thread keeps one of them for
/// long (for a stop that is not reported yet). From then on, hits there are marked as possibly not in the chain.
pub fn take_written(addr: u64, len: u64) -> Option<Held> {
    if ALL.several.load(Relaxed) == 0 {
        return Some(Held::NONE);
    }
    let mut wanted = Held::NONE;
    wanted.add_bytes(addr, len);
    for _ in 0..TURNS {
        for _ in 0..LOOKS {
            if attempt(wanted) {
                return Some(wanted);
            }
            core::hint::spin_loop();
        }
        futex::yield_now();
    }
    wanted.writers().for_each(|n| {
        n.fetch_add(1, SeqCst);
    });
    None
}

/// Keeps the locks of a thread that is about to stop, until the stop is reported.
pub fn keep(t: Current, held: Held) {
    if ALL.several.load(Relaxed) == 0 {
        return;
    }
    for lock in held.locks() {
        lock.keeper.store(t.tid() as u32, Relaxed);
    }
    t.keeps_locks.store(true, Release);
}

/// Releases the locks that a thread keeps. Called by the thread itself, or by the stub's task when the stop is
/// reported.
pub fn give_back_kept(t: &Thread) {
    if !t.keeps_locks.swap(false, AcqRel) {
        return;
    }
    let tid = t.tid() as u32;
    for lock in &ALL.each {
        if lock
            .keeper
            .compare_exchange(tid, 0, AcqRel, Relaxed)
            .is_ok()
        {
            lock.free();
        }
    }
}
