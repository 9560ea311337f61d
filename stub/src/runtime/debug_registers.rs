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

use ulpf_engine::access::Insn;
use ulpf_engine::attribution::{self, Program, State};
use ulpf_lib::{TargetAddr, WatchId, WatchKind, WatchRange};

use super::frame::UContext;
use super::memory;
use super::park;
use super::thread::{Events, Thread};
use crate::{fault, g, hits};

/// What x86 has.
pub const SLOTS: usize = 4;
/// si_code of a trap that a perf event has sent.
pub const TRAP_PERF: i32 = 6;
/// `perf_event_attr.sig_data` of our events: the program may have perf events of its own.
pub const COOKIE: u64 = u64::from_le_bytes(*b"ulpftrap");
/// Hits of one register between two looks at whether it is the right place.
const LOOK_EVERY: u64 = 64;

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
static REGISTERS: [Slot; SLOTS] = [const {
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
    fn look_with(&self, read: impl Fn(u64, &mut [u8]) -> usize) -> u64 {
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
    fn look(&self) -> u64 {
        self.look_with(memory::read)
    }
}

/// Names what is in the registers now (stub's task, world at rest). `read` reads the program's memory.
pub fn set(
    n: usize,
    watch: Option<(WatchId, WatchRange, WatchKind)>,
    read: impl Fn(u64, &mut [u8]) -> usize,
) {
    let Some(s) = REGISTERS.get(n) else { return };
    match watch {
        Some((id, range, kind)) => {
            s.id.store(id.0, Relaxed);
            s.len.store(range.len as u32, Relaxed);
            s.kind.store(kind as u32, Relaxed);
            s.hits.store(0, Relaxed);
            s.addr.store(range.start.0, Relaxed);
            s.look_with(&read);
        }
        None => s.addr.store(0, Relaxed),
    }
    let any = REGISTERS.iter().any(|s| s.addr.load(Relaxed) != 0);
    ACTIVE.store(any, SeqCst);
}

/// Would an access of ours match?
#[inline]
pub fn would_match(addr: u64, len: u64, write: bool) -> bool {
    active()
        && REGISTERS
            .iter()
            .filter_map(Slot::watch)
            .any(|(_, r, kind)| {
                (write || kind == WatchKind::Access) && r.overlaps(TargetAddr(addr), len)
            })
}

/// Is a register used for memory in `[start, end)`?
pub fn any_in(start: u64, end: u64) -> bool {
    active()
        && REGISTERS
            .iter()
            .any(|s| (start..end).contains(&s.addr.load(Relaxed)))
}

/// The debugger may have written anything (stub's task, world at rest).
pub fn look_all(read: impl Fn(u64, &mut [u8]) -> usize) {
    for s in REGISTERS.iter().filter(|s| s.watch().is_some()) {
        s.look_with(&read);
    }
}

/// What one of them watches is new memory (stub's task, world at rest).
pub fn look_at(id: WatchId, read: impl Fn(u64, &mut [u8]) -> usize) {
    for s in REGISTERS
        .iter()
        .filter(|s| s.watch().is_some_and(|w| w.0 == id))
    {
        s.look_with(&read);
    }
}

/// Somebody else than an instruction of the program has written `[addr, addr + len)`.
pub fn written(addr: TargetAddr, len: u64) {
    for s in &REGISTERS {
        if s.watch().is_some_and(|(_, r, _)| r.overlaps(addr, len)) {
            s.look();
        }
    }
}

/// Which registers have matched: the PC behind the instruction for each, or 0.
#[derive(Clone, Copy, Default)]
pub struct Fired([u64; SLOTS]);

impl Fired {
    pub fn any(&self) -> bool {
        self.0.iter().any(|pc| *pc != 0)
    }
}

/// `struct perf_event_mmap_page`, as far as we read it.
mod page {
    pub const DATA_HEAD: u64 = 1024;
    pub const DATA_TAIL: u64 = 1032;
    /// One page of records follows the first one.
    pub const DATA: u64 = 4096;
    pub const DATA_LEN: u64 = 4096;
    /// PERF_RECORD_SAMPLE of PERF_SAMPLE_IP | PERF_SAMPLE_ADDR.
    pub const SAMPLE: u32 = 9;
    pub const SAMPLE_LEN: u64 = 24;
}

/// Takes what the kernel has written down for this thread.
pub fn drain(t: &Thread) -> Fired {
    let mut fired = Fired::default();
    let base = t.trap_ring.load(Relaxed);
    if base == 0 {
        return fired;
    }
    // SAFETY: the ring is mapped while `trap_ring` names it, and its words are aligned.
    let word = |at: u64| unsafe { &*((base + at) as *const AtomicU64) };
    let data = |at: u64| word(page::DATA + (at & (page::DATA_LEN - 1))).load(Relaxed);
    let head = word(page::DATA_HEAD).load(Acquire);
    let mut at = word(page::DATA_TAIL).load(Relaxed);
    while at < head {
        let header = data(at);
        let len = (header >> 48).max(8);
        if header as u32 == page::SAMPLE && len == page::SAMPLE_LEN {
            let (pc, addr) = (data(at + 8), data(at + 16));
            for (s, slot) in REGISTERS.iter().zip(&mut fired.0) {
                if s.addr.load(Relaxed) == addr {
                    *slot = pc;
                }
            }
        }
        at += len;
    }
    word(page::DATA_TAIL).store(head, Release);
    fired
}

/// Our own code has touched watched bytes for the program. Who made it do so accounts for the access.
pub fn our_own(fired: &Fired) {
    for (s, pc) in REGISTERS.iter().zip(&fired.0) {
        if *pc != 0 {
            s.look();
        }
    }
}

struct Ours;

impl Program for Ours {
    fn read(&self, addr: u64, to: &mut [u8]) -> usize {
        memory::read(addr, to)
    }
    fn decode(&self, pc: u64, bytes: &[u8]) -> Option<Insn> {
        fault::decode(pc, bytes)
    }
}

/// Counts and logs hits of the instruction that has just been executed; the events to stop for.
/// `pc`: where that instruction was, if known. `seen`: accesses that are accounted for already.
pub fn report(
    t: &'static Thread,
    uc: &mut UContext,
    fired: &Fired,
    pc: Option<u64>,
    seen: impl Fn(WatchRange) -> bool,
    stops: &mut Events,
) {
    for (s, after) in REGISTERS.iter().zip(&fired.0) {
        let Some((id, range, kind)) = s.watch().filter(|_| *after != 0) else {
            continue;
        };
        let old = s.look().to_le_bytes();
        if seen(range) {
            continue;
        }
        let hits = s.hits.fetch_add(1, Relaxed) + 1;
        if hits.is_multiple_of(LOOK_EVERY) {
            t.inner().reconsider = range.start.page().0;
        }
        let old = old.get(..range.len as usize).unwrap_or(&[]);
        let state = State {
            gprs: uc.gprs,
            xsave: uc.fpstate,
            bases: park::bases(t),
        };
        let touch = attribution::touched(&Ours, state, *after, pc, range, kind);
        let Some(touch) = touch.filter(|touch| kind.sees(touch.kind)) else {
            continue;
        };
        if let Some(n) = g().counters(id) {
            n.traps.fetch_add(1, Relaxed);
        }
        if let Some(stop) = hits::register_hit(t, &uc.gprs, (id, range, kind), &touch, old) {
            stops.push(stop);
        }
    }
}
