//! Watches in Rust's types.

use core::ffi::c_void;
use core::marker::PhantomData;
use core::sync::atomic::Ordering::*;

use ulpf_lib::{TargetAddr, WatchKind};

use crate::backend::{self, Backend};
use crate::error::Failure;
use crate::hits::{self, HitInfo};
use crate::model::Request;
use crate::setup::with;
use crate::shared::{FREE, S};

/// Accesses that are hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Loads.
    Read,
    /// Stores.
    Write,
    /// Loads and stores.
    Both,
}

impl Access {
    pub(crate) fn kind(self) -> WatchKind {
        match self {
            Access::Read => WatchKind::Read,
            Access::Write => WatchKind::Write,
            Access::Both => WatchKind::Access,
        }
    }
}

/// One hit, as a handler sees it. The access has been made.
pub struct Hit<'a>(&'a HitInfo);

impl Hit<'_> {
    /// First watched byte that was touched.
    pub fn addr(&self) -> usize {
        self.0.addr as usize
    }
    /// In bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len
    }
    /// Address of the instruction.
    pub fn pc(&self) -> usize {
        self.0.pc as usize
    }
    /// Linux id of the thread that made the access.
    pub fn thread(&self) -> i32 {
        self.0.thread
    }
    /// Kind of the access.
    pub fn access(&self) -> Access {
        match self.0.access {
            1 => Access::Read,
            2 => Access::Write,
            _ => Access::Both,
        }
    }
    /// The write has left the value unchanged.
    pub fn silent(&self) -> bool {
        self.0.silent != 0
    }
    /// Number of hits of the watch, including this one.
    pub fn count(&self) -> u64 {
        self.0.count
    }
    /// The watched bytes before the access. They are fewer than [`Hit::len`] for a very long access, and empty if not
    /// known.
    pub fn old_value(&self) -> &[u8] {
        // SAFETY: both values live while the handler runs.
        unsafe { core::slice::from_raw_parts(self.0.old_value, self.0.value_len) }
    }
    /// The same bytes after the access.
    pub fn new_value(&self) -> &[u8] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts(self.0.new_value, self.0.value_len) }
    }
}

/// A watch to be set. Its handler runs inside a signal handler: ulpf(3) lists what it may do.
#[derive(Clone, Copy)]
#[must_use]
pub struct Watch {
    request: Request,
}

impl Watch {
    /// Watches `len` bytes (at least one) from `addr` on, without a handler, for all threads.
    pub fn new(addr: usize, len: usize, access: Access) -> Watch {
        let request = Request {
            start: addr as u64,
            len: len as u64,
            kind: access.kind(),
            flags: 0,
            thread: 0,
            handler: 0,
            data: 0,
        };
        Watch { request }
    }
    /// Calls `f` after each hit. (A function without captures, so that nothing has to be kept alive.)
    pub fn handler<F: Fn(&Hit) + Copy + Sync + 'static>(mut self, f: F) -> Watch {
        const {
            assert!(
                size_of::<F>() == 0,
                "the handler of a watch captures nothing"
            )
        };
        extern "C" fn call<F: Fn(&Hit)>(info: *const HitInfo, _: *mut c_void) {
            // SAFETY: F has no bytes, so any pointer is valid for it.
            let f = unsafe { &*core::ptr::NonNull::<F>::dangling().as_ptr() };
            // SAFETY: lives while the handler runs.
            let hit = Hit(unsafe { &*info });
            // A panic must not leave a signal handler.
            if std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| f(&hit))).is_err() {
                std::process::abort();
            }
        }
        let _ = f;
        self.request.handler = call::<F> as *const () as usize;
        self
    }
    /// Only the first hit counts.
    pub fn once(self) -> Watch {
        self.flag(hits::ONE_SHOT)
    }
    /// SIGTRAP after each hit: a debugger stops, without one the program ends.
    pub fn stop(self) -> Watch {
        self.flag(hits::STOP)
    }
    /// Silent stores are counted, but not reported.
    pub fn changes_only(self) -> Watch {
        self.flag(hits::CHANGED)
    }
    /// For one thread alone.
    pub fn by_thread(mut self, thread: i32) -> Watch {
        self.request.thread = thread;
        self
    }
    /// For all threads but one.
    pub fn by_others(self, thread: i32) -> Watch {
        self.by_thread(thread).flag(hits::OTHERS)
    }
    fn flag(mut self, flag: u32) -> Watch {
        self.request.flags |= flag;
        self
    }
    /// Sets it.
    ///
    /// # Errors
    /// EINVAL for no bytes; EFAULT where no memory is mapped; EOPNOTSUPP for memory or, with debug registers, a size
    /// that cannot be watched; EACCES where the program itself may not access it; ENOMEM, ENOSPC; EDEADLK inside a change.
    pub fn insert(self) -> Result<Watched, Failure> {
        let ids = with(|m| m.insert(&[self.request]))?;
        Ok(Watched {
            id: ids[0],
            here: PhantomData,
        })
    }
}

/// Many watches in one change: all of them, or none.
///
/// # Errors
/// As [`Watch::insert`]; then none of them is set.
pub fn insert_all(watches: &[Watch]) -> Result<Vec<Watched>, Failure> {
    let requests: Vec<Request> = watches.iter().map(|w| w.request).collect();
    let ids = with(|m| m.insert(&requests))?;
    Ok(ids
        .iter()
        .map(|&id| Watched {
            id,
            here: PhantomData,
        })
        .collect())
}

/// A watch that is set; it ends with this value. It must end before its memory is freed.
#[derive(Debug)]
pub struct Watched {
    id: u32,
    here: PhantomData<()>,
}

impl Watched {
    /// Its counters so far.
    pub fn counts(&self) -> Counts {
        counts(self.id).unwrap_or_default()
    }
    /// Ends it and returns its final counters.
    ///
    /// # Errors
    /// That of a change: EDEADLK inside a change, EAGAIN if too many threads have exception stacks.
    pub fn delete(self) -> Result<Counts, Failure> {
        let counts = self.counts();
        let id = self.id;
        core::mem::forget(self);
        with(|m| m.delete(id)).map(|()| counts)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = with(|m| m.delete(self.id));
    }
}

/// Counters of a watch (`struct ulpf_counts`).
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Accesses of its kind by its threads.
    pub hits: u64,
    /// Of them, writes that left the value as it was.
    pub silent: u64,
    /// Time of the last one: CLOCK_MONOTONIC in nanoseconds, or 0 for none.
    pub last: u64,
}

pub(crate) fn counts(id: u32) -> Option<Counts> {
    let slot = S.slot(id).filter(|s| s.state.load(Acquire) != FREE)?;
    Some(Counts {
        hits: slot.hits.load(Relaxed),
        silent: slot.silent.load(Relaxed),
        last: slot.time.load(Relaxed),
    })
}

/// Counters of the library (`struct ulpf_stats`).
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stats {
    /// Faults on guarded pages.
    pub faults: u64,
    /// Of them, those that met no watch.
    pub false_positives: u64,
    /// Handler calls that were skipped, because the hit happened inside a handler.
    pub nested: u64,
    /// Single steps with open pages, during which other threads' accesses are missed.
    pub opened: u64,
    /// Hits that were counted but not passed to a handler: one instruction had more than 24.
    pub unreported: u64,
    /// The kernel's accesses to guarded pages, as the device counts them (each page and call once).
    pub kernel: u64,
}

/// The counters of the whole library.
pub fn stats() -> Stats {
    Stats {
        faults: S.faults.load(Relaxed),
        false_positives: S.false_positives.load(Relaxed),
        nested: S.nested.load(Relaxed),
        opened: S.opened.load(Relaxed),
        unreported: S.unreported.load(Relaxed),
        kernel: match backend::is(Backend::Device) {
            true => with(|m| Ok(m.kernel_accesses())).unwrap_or(0),
            false => 0,
        },
    }
}

/// An address at which `[addr, addr + len)` can be accessed without a fault and without a hit, also by a system call. It
/// is `addr` itself if no page is guarded. `None` if the pages are not adjacent in the alias.
pub fn alias(addr: usize, len: usize) -> Option<usize> {
    if let Some(alias) = S
        .table
        .pages
        .open(TargetAddr(addr as u64), len as u64, false)
    {
        return Some(alias.0 as usize);
    }
    let end = addr.checked_add(len)? as u64;
    let mut page = TargetAddr(addr as u64).page();
    while page.0 < end {
        if S.table.pages.entry(page).guard().is_some() {
            return None;
        }
        page = page.offset(ulpf_lib::PAGE_SIZE);
    }
    Some(addr)
}
