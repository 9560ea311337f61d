//! Watches that live in the CPU's debug registers, as a program thread handles their matches.
//!
//! `control/placement.rs` opens the perf events (in the stub's task; a breakpoint of ours never shows
//! in the program's descriptor table). The kernel sends SIGTRAP after the instruction, but only one
//! however many registers have matched, and none beside the SIGTRAP of a single step. So each event
//! also writes a record to a ring of its thread, and the ring is what we believe:
//!
//! ```text
//! store ─▶ #DB ─▶ ring of the thread: (PC behind the instruction, address watched) for each match
//!              └▶ SIGTRAP (TRAP_PERF, or TRAP_TRACE of a step) ─▶ drain ─▶ hits
//! ```
//!
//! The trap comes after the store. The old value is the last value seen. So with several threads at the same bytes, two
//! changes may look like one, and a store that another thread has undone looks like none.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use ulpf_lib::{TargetAddr, WatchId, WatchKind, WatchRange};

/// Debug registers of x86.
pub const SLOTS: usize = 4;
pub use ulpf_lib::perf::TRAP_PERF;
/// `perf_event_attr.sig_data` of our events: the program may have perf events of its own.
pub const COOKIE: u64 = u64::from_le_bytes(*b"ulpftrap");
/// One debug register. Written by the stub's task while all threads are stopped, but for `last` and `hits`.
pub struct Slot {
    /// Address of the watch, or 0 if the register is free.
    pub addr: AtomicU64,
    pub len: AtomicU32,
    pub id: AtomicU32,
    /// `WatchKind`.
    pub kind: AtomicU32,
    pub hits: AtomicU64,
    /// The last value seen.
    last: AtomicU64,
}

static ACTIVE: AtomicBool = AtomicBool::new(false);
pub static ALL: [Slot; SLOTS] = [const {
    Slot {
        addr: AtomicU64::new(0),
        len: AtomicU32::new(0),
        id: AtomicU32::new(0),
        kind: AtomicU32::new(0),
        hits: AtomicU64::new(0),
        last: AtomicU64::new(0),
    }
}; SLOTS];

/// True if a watch is in a debug register.
#[inline(always)]
pub fn active() -> bool {
    ACTIVE.load(Relaxed)
}

impl Slot {
    /// The watch in this register.
    pub fn watch(&self) -> Option<(WatchId, WatchRange, WatchKind)> {
        let start = TargetAddr(self.addr.load(Relaxed));
        let range = WatchRange::new(start, self.len.load(Relaxed) as u64)?;
        let kind = match self.kind.load(Relaxed) {
            1 => WatchKind::Write,
            2 => WatchKind::Read,
            _ => WatchKind::Access,
        };
        (start.0 != 0).then_some((WatchId(self.id.load(Relaxed)), range, kind))
    }
    /// The present value, if it can be read.
    fn value(&self, read: impl Fn(u64, &mut [u8]) -> usize) -> Option<u64> {
        let mut bytes = [0u8; 8];
        let len = self.len.load(Relaxed) as usize;
        let to = bytes.get_mut(..len)?;
        (read(self.addr.load(Relaxed), to) == len).then_some(u64::from_le_bytes(bytes))
    }
    /// Whether the value is another one than at the last trap.
    pub fn has_changed(&self, read: impl Fn(u64, &mut [u8]) -> usize) -> bool {
        self.value(read)
            .is_some_and(|value| value != self.last.load(Acquire))
    }
    /// Reads the present value, with which the next trap compares. Returns the previous one.
    pub fn look(&self, read: impl Fn(u64, &mut [u8]) -> usize) -> u64 {
        match self.value(read) {
            Some(value) => self.last.swap(value, AcqRel),
            None => self.last.load(Acquire),
        }
    }
}

/// Sets the watch in a register, or none. Called by the stub's task with the world stopped. `read` reads the program's
/// memory.
pub fn set(
    n: usize,
    watch: Option<(WatchId, WatchRange, WatchKind)>,
    read: impl Fn(u64, &mut [u8]) -> usize,
) {
    let Some(s) = ALL.get(n) else { return };
    match watch {
        Some((id, range, kind)) => {
            s.id.store(id.0, Relaxed);
            s.len.store(range.len as u32, Relaxed);
            s.kind.store(kind as u32, Relaxed);
            s.hits.store(0, Relaxed);
            s.addr.store(range.start.0, Relaxed);
            s.look(&read);
        }
        None => s.addr.store(0, Relaxed),
    }
    let any = ALL.iter().any(|s| s.addr.load(Relaxed) != 0);
    ACTIVE.store(any, SeqCst);
}

/// True if an access of ours would match.
#[inline]
pub fn would_match(addr: u64, len: u64, write: bool) -> bool {
    active()
        && ALL.iter().filter_map(Slot::watch).any(|(_, r, kind)| {
            (write || kind == WatchKind::Access) && r.overlaps(TargetAddr(addr), len)
        })
}

/// True if a register watches memory in `[start, end)`.
pub fn any_in(start: u64, end: u64) -> bool {
    active()
        && ALL
            .iter()
            .any(|s| (start..end).contains(&s.addr.load(Relaxed)))
}

/// Reads all values again, since the debugger may have written to any. Called by the stub's task with the world
/// stopped.
pub fn look_all(read: impl Fn(u64, &mut [u8]) -> usize) {
    for s in ALL.iter().filter(|s| s.watch().is_some()) {
        s.look(&read);
    }
}

/// Reads the value of this watch again, whose memory has been replaced. Called by the stub's task with the world
/// stopped.
pub fn look_at(id: WatchId, read: impl Fn(u64, &mut [u8]) -> usize) {
    for s in ALL.iter().filter(|s| s.watch().is_some_and(|w| w.0 == id)) {
        s.look(&read);
    }
}

/// Reads the values of watches in `[addr, addr + len)` again after a write that was not made by an instruction of the
/// program.
pub fn written(addr: TargetAddr, len: u64, read: impl Fn(u64, &mut [u8]) -> usize) {
    for s in &ALL {
        if s.watch().is_some_and(|(_, r, _)| r.overlaps(addr, len)) {
            s.look(&read);
        }
    }
}
