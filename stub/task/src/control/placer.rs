//! The debug registers that are in use: which watches they hold, and what each thread has of them in the kernel.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::general::{__NR_prlimit64, RLIMIT_NOFILE};
use ulpf_lib::command::Placement;
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;
use ulpf_lib::{WatchId, WatchKind, WatchRange};
use ulpf_stub_handlers::global::g;
use ulpf_stub_handlers::runtime::debug_registers::{self as registers, SLOTS};
use ulpf_stub_handlers::runtime::thread::Thread;

use super::perf::{self, Ring};
use super::text;

/// Placement of watches (see `placement.rs`).
#[derive(Default)]
pub struct Placer {
    /// Placement of watches that do not specify one.
    pub wanted: Placement,
    pub held: [Option<DebugRegister>; SLOTS],
    /// Watches that the user wants in a register, there or not.
    pub forced: Vec<WatchId>,
    pub tasks: Vec<Task>,
    pub pages: BTreeMap<u64, Look>,
    /// Why the kernel gives no debug registers: automatic placement does not try again.
    pub unavailable: Option<Errno>,
    pub raised_files: bool,
    pub moves: u64,
    /// Number of times that the placement of a page's watches was reconsidered.
    pub looks: u64,
}

/// A debug register in use.
pub struct DebugRegister {
    pub id: WatchId,
    pub range: WatchRange,
    pub kind: WatchKind,
    /// Time of the last look at the register, and its hits then.
    pub since: u64,
    pub hits: u64,
}

/// Kernel resources of ours for one program thread.
pub struct Task {
    pub thread: &'static Thread,
    /// Serial number of the thread; its record is used again once it is gone.
    pub serial: u64,
    pub tid: i32,
    pub ring: Ring,
    pub fds: [i32; SLOTS],
}

/// The last look at a guarded page.
#[derive(Clone, Copy)]
pub struct Look {
    pub at: u64,
    pub false_positives: u64,
    pub hits: u64,
    /// Hits in a register before the next trial of a guard.
    pub least_hits: u64,
}

pub fn now() -> u64 {
    // SAFETY: reads the time-stamp counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Returns whether a debug register can hold it.
pub fn fits(range: WatchRange, kind: WatchKind) -> bool {
    matches!(range.len, 1 | 2 | 4 | 8)
        && range.start.0.is_multiple_of(range.len)
        && kind != WatchKind::Read
}

pub fn live() -> impl Iterator<Item = &'static Thread> {
    g().threads.iter().filter(|t| t.tid() != 0)
}

impl Placer {
    /// Watches that need no guard.
    pub fn placed(&self) -> Vec<WatchId> {
        self.held.iter().flatten().map(|h| h.id).collect()
    }
    /// The watches that are in registers, and what they watch.
    pub fn held(&self) -> impl Iterator<Item = (WatchId, WatchRange)> + '_ {
        self.held.iter().flatten().map(|h| (h.id, h.range))
    }
    pub fn slot_of(&self, id: WatchId) -> Option<usize> {
        self.held
            .iter()
            .position(|h| h.as_ref().is_some_and(|h| h.id == id))
    }
    pub fn in_register(&self, id: WatchId) -> bool {
        self.slot_of(id).is_some()
    }
    pub fn free(&self) -> usize {
        self.held.iter().filter(|h| h.is_none()).count()
    }

    /// The task's entry, made if need be, with every register that is in use.
    pub fn adopt(&mut self, t: &'static Thread) -> Result<(), Errno> {
        let serial = t.serial.load(Relaxed);
        if !self.tasks.iter().any(|k| k.serial == serial) {
            self.raise_file_limit();
            let task = Task {
                thread: t,
                serial,
                tid: t.tid(),
                ring: Ring::new(t.tid())?,
                fds: [-1; SLOTS],
            };
            t.trap_ring.store(task.ring.addr, SeqCst);
            self.tasks.push(task);
        }
        let Some(task) = self.tasks.iter_mut().find(|k| k.serial == serial) else {
            return Ok(());
        };
        for (fd, held) in task.fds.iter_mut().zip(&self.held) {
            if let Some(h) = held
                && *fd < 0
            {
                *fd = perf::breakpoint(task.tid, h.range, h.kind, Some(&task.ring))?;
            }
        }
        Ok(())
    }

    /// Releases threads that no longer exist.
    pub fn sweep(&mut self) {
        self.tasks
            .retain(|k| k.thread.serial.load(Relaxed) == k.serial && !k.thread.gone());
    }

    /// Descriptors are this task's own, and so is its limit of them.
    fn raise_file_limit(&mut self) {
        if self.raised_files {
            return;
        }
        self.raised_files = true;
        let mut limit = [0u64; 2];
        // SAFETY: reads and raises this task's own soft limit.
        unsafe {
            if sys!(__NR_prlimit64, 0, RLIMIT_NOFILE, 0, limit.as_mut_ptr()).is_ok() {
                limit[0] = limit[1];
                let _ = sys!(__NR_prlimit64, 0, RLIMIT_NOFILE, limit.as_ptr(), 0);
            }
        }
    }

    /// Puts a watch into a free register, for every thread or for none.
    pub fn hold(&mut self, held: DebugRegister) -> Result<(), Errno> {
        let Some(n) = self.held.iter().position(Option::is_none) else {
            return Err(Errno(linux_raw_sys::errno::ENOSPC as i32));
        };
        self.sweep();
        let (range, kind, id) = (held.range, held.kind, held.id);
        let mut result = Ok(());
        for t in live() {
            // A new entry takes what is held; this one is not yet.
            result = self.adopt(t);
            let serial = t.serial.load(Relaxed);
            let task = self.tasks.iter_mut().find(|k| k.serial == serial);
            if result.is_ok()
                && let Some(task) = task
                && let Some(fd) = task.fds.get_mut(n)
            {
                match perf::breakpoint(task.tid, range, kind, Some(&task.ring)) {
                    Ok(new) => *fd = new,
                    // The thread ends before it runs again.
                    Err(Errno(3)) => {}
                    Err(e) => result = Err(e),
                }
            } else if result == Err(Errno(3)) {
                result = Ok(());
            }
            if result.is_err() {
                break;
            }
        }
        if result.is_err() {
            self.close(n);
            self.drop_idle_rings();
            return result;
        }
        if let Some(slot) = self.held.get_mut(n) {
            *slot = Some(held);
        }
        registers::set(n, Some((id, range, kind)), text::read);
        note(id, true);
        Ok(())
    }

    fn close(&mut self, n: usize) {
        for task in &mut self.tasks {
            if let Some(fd) = task.fds.get_mut(n)
                && *fd >= 0
            {
                perf::close(*fd);
                *fd = -1;
            }
        }
    }

    fn drop_idle_rings(&mut self) {
        if self.held.iter().any(Option::is_some) {
            return;
        }
        for task in &self.tasks {
            if task.thread.serial.load(Relaxed) == task.serial {
                task.thread.trap_ring.store(0, SeqCst);
            }
        }
        self.tasks.clear();
    }

    /// Empties a register.
    pub fn release(&mut self, n: usize) {
        let Some(held) = self.held.get_mut(n).and_then(Option::take) else {
            return;
        };
        self.close(n);
        registers::set(n, None, text::read);
        note(held.id, false);
        self.drop_idle_rings();
    }

    pub fn release_all(&mut self) {
        for n in 0..SLOTS {
            self.release(n);
        }
        self.forced.clear();
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.fds
            .iter()
            .filter(|fd| **fd >= 0)
            .for_each(|fd| perf::close(*fd));
    }
}

/// The command shows where watches are.
fn note(id: WatchId, register: bool) {
    if let Some(n) = g().counters(reported_as(id)) {
        n.placement.store(register as u64, Relaxed);
    }
}

/// The number that counts for a watch: its own, or that of the watch that it is a part of.
fn reported_as(id: WatchId) -> WatchId {
    g().attributes(id).group.unwrap_or(id)
}

pub fn hits(id: WatchId) -> u64 {
    let id = reported_as(id);
    let counted = g().counters(id).map_or(0, |n| n.hits.load(Relaxed));
    let tallied = g().header().map_or(0, |h| h.tallied(g().areas(), id.0).0);
    counted + tallied
}
