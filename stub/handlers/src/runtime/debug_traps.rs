//! Handles matches of debug registers on a program thread (`debug_registers` has a drawing).

use core::sync::atomic::{AtomicU64, Ordering::*};

use ulpf_engine::access::Insn;
use ulpf_engine::attribution::{self, Program, State};
use ulpf_lib::WatchRange;

use super::debug_registers::{self, SLOTS};
use super::events::Events;
use super::frame::UContext;
use super::memory;
use super::park;
use super::thread::Current;
use crate::engine;
use crate::global::g;
use crate::hits;

/// Hits of one register after which its placement is considered again.
const LOOK_EVERY: u64 = 64;

/// The matches of an instruction: for each register the PC behind the instruction, or 0.
#[derive(Clone, Copy, Default)]
pub struct Fired([u64; SLOTS]);

impl Fired {
    pub fn any(&self) -> bool {
        self.0.iter().any(|pc| *pc != 0)
    }
}

/// The fields of `struct perf_event_mmap_page` that we read.
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

/// Takes the records that the kernel has written for this thread.
pub fn drain(t: Current) -> Fired {
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
            for (s, slot) in debug_registers::ALL.iter().zip(&mut fired.0) {
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

/// Matches of a debug exception without a cause in DR6, as virtual processors raise it at times. They are those of the only
/// register in use, or of all whose value has changed. `None`: `int1`, or the thread has no registers.
pub fn untold(t: Current, uc: &UContext) -> Option<Fired> {
    const INT1: u8 = 0xf1;
    let mut before = [0];
    let armed = t.trap_ring.load(Relaxed) != 0;
    if !armed || memory::look(uc.gprs.rip.wrapping_sub(1), &mut before) == 1 && before == [INT1] {
        return None;
    }
    let mut fired = drain(t);
    if !fired.any() {
        let used = debug_registers::ALL
            .iter()
            .filter(|s| s.watch().is_some())
            .count();
        for (s, slot) in debug_registers::ALL.iter().zip(&mut fired.0) {
            if s.watch().is_some() && (used == 1 || s.has_changed(memory::look)) {
                *slot = uc.gprs.rip;
            }
        }
    }
    Some(fired)
}

/// Our own code has touched watched bytes for the program. The code that did so accounts for the access.
pub fn our_own(fired: &Fired) {
    for (s, pc) in debug_registers::ALL.iter().zip(&fired.0) {
        if *pc != 0 {
            s.look(memory::look);
        }
    }
}

struct Ours;

impl Program for Ours {
    fn read(&self, addr: u64, to: &mut [u8]) -> usize {
        memory::look(addr, to)
    }
    fn decode(&self, pc: u64, bytes: &[u8]) -> Option<Insn> {
        engine::decode(pc, bytes)
    }
}

/// Counts and logs hits of the instruction that has just been executed. Returns the events to stop for. `pc` is the
/// address of that instruction, if known; `seen` names accesses that are accounted for already.
pub fn report(
    t: Current,
    uc: &mut UContext,
    fired: &Fired,
    pc: Option<u64>,
    seen: impl Fn(WatchRange) -> bool,
    stops: &mut Events,
) {
    for (s, after) in debug_registers::ALL.iter().zip(&fired.0) {
        let Some((id, range, kind)) = s.watch().filter(|_| *after != 0) else {
            continue;
        };
        let old = s.look(memory::look).to_le_bytes();
        if seen(range) {
            continue;
        }
        let hits = s.hits.fetch_add(1, Relaxed) + 1;
        if hits.is_multiple_of(LOOK_EVERY) {
            t.own().reconsider.set(range.start.page().0);
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
        let reported_as = g().attributes(id).group.unwrap_or(id);
        if let Some(n) = g().counters(reported_as) {
            n.traps.fetch_add(1, Relaxed);
        }
        if let Some(stop) = hits::register_hit(t, &uc.gprs, (id, range, kind), &touch, old) {
            stops.push(stop);
        }
    }
}
