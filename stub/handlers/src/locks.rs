//! Locks of guarded pages, so that the hits of one place form a chain: the old value of each is the new value of the
//! one before, whatever the program's threads do at the same time.
//!
//! Whoever makes an access that is a hit holds the lock of its page from before the old value is read until the hit
//! is accounted for: bodies of patches (`engine/src/patch/hits.rs`) and [`crate::fault`]. If a debugger is to be
//! told, the lock is kept until that has happened, and so no other store to the page comes between.
//!
//! Nobody waits for a lock in a handler for long: who does not get one goes back to the instruction, which faults
//! again, so that signals and the stub's task get at the thread meanwhile. One who has tried in vain for very long
//! ([`PATIENCE`]) takes the lock away: its holder may not run because of the thread's own priority, or because a debugger
//! holds it, or has been killed (a process that shares the program's memory), and then nobody else would give it back.
//!
//! A program of one thread takes none.
//!
//! **System calls** take no lock while they are made, for they may wait for ever. The pages under whose watched bytes one
//! may be writing are noted ([`Writing`]), and a hit there says meanwhile that it may not be in the chain; so does the
//! call's own, which is told with the lock held, and with which the chain goes on.
//!
//! Of some pages bodies never get the lock ([`reserve`]), and leave all hits there to the handler: it seems taken to
//! them, and handlers have another one.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_engine::access::AccessList;
use ulpf_engine::patch::{LOCK, LOCKS, SEVERAL, lock_of};
use ulpf_lib::sys;
use ulpf_lib::{PAGE_SIZE, TargetAddr};

use crate::global::g;
use crate::rest::AtRest;
use crate::runtime::clock;
use crate::runtime::thread::{Current, Thread};

/// How often a handler looks whether a lock is free before it gives way.
const LOOKS: u32 = 200;
/// How often a thread gives way in a row before it looks at the clock.
const PATIENCE: u32 = 20_000;
/// Nanoseconds for which a thread gives way. Its owner may be without a processor for long, on a busy machine.
const LONGEST: u64 = 2_000_000_000;
/// How often a thread lets others run before it tells of what a system call has written, whoever has the lock.
const TURNS: u32 = 1000;
/// Accesses to more pages than this have all locks.
const MOST_PAGES: usize = 2 * LOCKS;

#[repr(C)]
struct Lock {
    /// Not 0: somebody holds it. Bodies exchange it.
    held: AtomicU8,
    /// Not 0: `held` is for show, and `inner` is the lock. Changes at rest.
    reserved: AtomicU8,
    inner: AtomicU8,
    /// The thread that keeps it for a stop.
    keeper: AtomicU32,
}

#[repr(C, align(64))]
struct Locks {
    each: [Lock; LOCKS],
    /// Not 0: the program has, or had, several threads.
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

/// By lock: how many system calls may be writing to watched bytes of its pages.
static WRITERS: [AtomicU32; LOCKS] = [const { AtomicU32::new(0) }; LOCKS];
/// Not 0: some has been.
static WRITTEN: AtomicU8 = AtomicU8::new(0);

/// For [`ulpf_engine::patch::Tables::locks`].
pub fn address() -> u64 {
    &raw const ALL as u64
}

/// Has the program, or had it, several threads?
pub fn several() -> bool {
    ALL.several.load(SeqCst) != 0
}

/// The locks of these pages are the handlers' alone, and no others. A lock that is held stays so.
pub fn reserve(_: &mut AtRest, pages: impl Iterator<Item = u64>) {
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

/// The program is about to have another thread.
pub fn threads_begin() {
    ALL.several.store(1, SeqCst);
}

/// In a forked child, which has one thread: nobody else will give anything back.
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

    /// The locks of all these bytes.
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

    /// The lock of the page with this alias, which a body has taken.
    pub fn by_body(alias: u64) -> Held {
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

/// The locks for what is watched of these accesses. `None`: somebody has one of them; the thread is to try again, from
/// its instruction on.
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
    } else if turns < PATIENCE {
        waited.set((turns + 1, since));
    } else if clock::now().saturating_sub(since) < LONGEST {
        waited.set((1, since));
    } else {
        waited.set((0, 0));
        // From now on nobody knows of these pages whose hit comes first.
        WRITTEN.store(1, SeqCst);
        wanted.writers().for_each(|n| {
            n.fetch_add(1, SeqCst);
        });
        return Some(wanted);
    }
    None
}

/// All of them or none.
fn attempt(wanted: Held) -> bool {
    for (n, lock) in wanted.locks().enumerate() {
        if !lock.take() {
            wanted.locks().take(n).for_each(Lock::free);
            return false;
        }
    }
    true
}

/// The lock of one page, for accesses that are made at once. `None`: somebody has it.
pub fn take_page(page: u64) -> Option<Held> {
    let mut held = Held::NONE;
    if ALL.several.load(Relaxed) != 0 {
        held.add(number(TargetAddr(page).page().0));
    }
    attempt(held).then_some(held)
}

/// The pages that a system call may be writing to, under watched bytes.
pub struct Writing(Held);

impl Writing {
    pub const NOTHING: Writing = Writing(Held::NONE);

    /// These bytes, too; before anything of them is read or written.
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

/// Is the old value of a hit of these bytes, whose locks are held, what the hit before has left?
pub fn in_chain(addr: u64, len: u64) -> bool {
    if WRITTEN.load(Relaxed) == 0 {
        return true;
    }
    let mut pages = Held::NONE;
    pages.add_bytes(addr, len);
    pages.writers().all(|n| n.load(SeqCst) == 0)
}

/// The locks of what a system call has written, to tell of it. `None`: somebody keeps one of them for long (a stop that is
/// not reported yet); from then on no hit there is known to be in the chain.
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
        // SAFETY: touches no memory.
        let _ = unsafe { sys!(k::__NR_sched_yield) };
    }
    wanted.writers().for_each(|n| {
        n.fetch_add(1, SeqCst);
    });
    None
}

/// The thread is to stop for what it has met: its locks stay taken until that is reported.
pub fn keep(t: Current, held: Held) {
    if ALL.several.load(Relaxed) == 0 {
        return;
    }
    for lock in held.locks() {
        lock.keeper.store(t.tid() as u32, Relaxed);
    }
    t.keeps_locks.store(true, Release);
}

/// What a thread keeps is given back: by itself, or, as its stop is reported, by the stub's task.
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
