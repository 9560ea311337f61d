//! Watches that live in the CPU's debug registers: what a program thread does when one matches.
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
//! The trap comes after the store. The old value is the one that was seen last, so with several threads
//! at the same bytes two changes may look like one, and a store that another one undid like none.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use ulpf_lib::{TargetAddr, WatchId, WatchKind, WatchRange};

/// What x86 has.
pub const SLOTS: usize = 4;
pub use ulpf_lib::perf::TRAP_PERF;
/// `perf_event_attr.sig_data` of our events: the program may have perf events of its own.
pub const COOKIE: u64 = u64::from_le_bytes(*b"ulpftrap");
/// One debug register. Written by the stub's task while all threads rest, but for `last` and `hits`.
pub struct Slot {
    /// 0: free.
    pub addr: AtomicU64,
    pub len: AtomicU32,
    pub id: AtomicU32,
    /// `WatchKind`.
    pub kind: AtomicU32,
    pub hits: AtomicU64,
    /// The value that was seen last.
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

/// Is any watch in a debug register?
#[inline(always)]
pub fn active() -> bool {
    ACTIVE.load(Relaxed)
}

impl Slot {
    /// The watch that is here.
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
    /// The present value becomes the one that the next trap compares with; the one before.
    pub fn look(&self, read: impl Fn(u64, &mut [u8]) -> usize) -> u64 {
        let mut bytes = [0u8; 8];
        let len = self.len.load(Relaxed) as usize;
        let read = bytes
            .get_mut(..len)
            .map_or(0, |to| read(self.addr.load(Relaxed), to));
        if read == len {
            self.last.swap(u64::from_le_bytes(bytes), AcqRel)
        } else {
            self.last.load(Acquire)
        }
    }
}

/// Names what is in the registers now (stub's task, world at rest). `read` reads the program's memory.
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

/// Would an access of ours match?
#[inline]
pub fn would_match(addr: u64, len: u64, write: bool) -> bool {
    active()
        && ALL.iter().filter_map(Slot::watch).any(|(_, r, kind)| {
            (write || kind == WatchKind::Access) && r.overlaps(TargetAddr(addr), len)
        })
}

/// Is a register used for memory in `[start, end)`?
pub fn any_in(start: u64, end: u64) -> bool {
    active()
        && ALL
            .iter()
            .any(|s| (start..end).contains(&s.addr.load(Relaxed)))
}

/// The debugger may have written anything (stub's task, world at rest).
pub fn look_all(read: impl Fn(u64, &mut [u8]) -> usize) {
    for s in ALL.iter().filter(|s| s.watch().is_some()) {
        s.look(&read);
    }
}

/// What one of them watches is new memory (stub's task, world at rest).
pub fn look_at(id: WatchId, read: impl Fn(u64, &mut [u8]) -> usize) {
    for s in ALL.iter().filter(|s| s.watch().is_some_and(|w| w.0 == id)) {
        s.look(&read);
    }
}

/// Somebody else than an instruction of the program has written `[addr, addr + len)`.
pub fn written(addr: TargetAddr, len: u64, read: impl Fn(u64, &mut [u8]) -> usize) {
    for s in &ALL {
        if s.watch().is_some_and(|(_, r, _)| r.overlaps(addr, len)) {
            s.look(&read);
        }
    }
}
