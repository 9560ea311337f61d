//! Which hits of a watch matter: checked on the thread that made the access, without stopping it.
//!
//! ```text
//! hit ─▶ changed ─▶ thread ─▶ PC ─▶ caller ─▶ conditions ─▶ skip, count ─▶ logged, a stop
//!           └──────────┴────────┴──────┴───────────┴─────────────┴───────▶ counted as rejected
//! ```
//!
//! What is cheap comes first. A condition that cannot be evaluated counts as true, as a breakpoint's does
//! in gdb: the user is told why, once for each filter, and no hit is lost.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use ulpf_engine::agent::{self, AgentError, variable};
use ulpf_engine::cpu::Gprs;
use ulpf_lib::{AccessKind, WatchRange};

use crate::runtime::memory;
use crate::runtime::park::{self, notify};
use crate::runtime::thread::Current;
use crate::unwind;
use ulpf_stub_tables::breakpoints::AgentExpr;

/// Elements of one access for which a condition is evaluated; with more it counts as true.
const MOST_ELEMENTS: u32 = 4096;
/// In `Filter::failed`: the user knows.
const TOLD: u64 = u64::MAX;

/// Some filter has failed since the stub's task has looked.
pub static FAILED: AtomicBool = AtomicBool::new(false);

/// Made and replaced by the stub's task while all threads rest; they write the counters only.
pub struct Filter {
    /// Only accesses that leave another value.
    pub changed: bool,
    /// Linux thread id; 0: any.
    pub thread: u32,
    /// Where the instruction is.
    pub pc: Option<Ranges>,
    /// Where its function was called.
    pub caller: Option<Ranges>,
    /// Size of the values that conditions see: the watch is an array of them. 0: what was accessed.
    pub unit: u64,
    /// All have to hold.
    pub conditions: Vec<AgentExpr>,
    /// A condition asks for a value or an address: it is evaluated for each element.
    pub by_element: bool,
    /// Of the hits that all others let pass: so many are rejected, so many pass then.
    pub skip: u64,
    pub count: u64,
    passed: AtomicU64,
    /// The first condition that could not be evaluated (`AgentError::pack`), and for which instruction.
    failed: AtomicU64,
    failed_at: AtomicU64,
}

impl Default for Filter {
    fn default() -> Filter {
        Filter {
            changed: false,
            thread: 0,
            pc: None,
            caller: None,
            unit: 0,
            conditions: Vec::new(),
            by_element: false,
            skip: 0,
            count: u64::MAX,
            passed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            failed_at: AtomicU64::new(0),
        }
    }
}

/// Addresses inside or outside of these.
pub struct Ranges {
    pub inside: bool,
    /// `[start, end)`, ascending and disjoint.
    pub list: Vec<(u64, u64)>,
}

impl Ranges {
    fn contain(&self, at: u64) -> bool {
        let after = self.list.partition_point(|r| r.0 <= at);
        let before = after.checked_sub(1).and_then(|n| self.list.get(n));
        before.is_some_and(|r| at < r.1)
    }
}

/// What a filter sees.
pub struct Hit<'a> {
    pub t: Current,
    pub gprs: &'a Gprs,
    pub pc: u64,
    /// The bytes that access and watch have in common.
    pub start: u64,
    pub len: u64,
    pub kind: AccessKind,
    pub range: WatchRange,
    /// What stood there before, or its first bytes.
    pub old: Option<&'a [u8]>,
    pub silent: bool,
    /// Of this watch, the first is 1.
    pub number: u64,
}

impl Filter {
    pub fn passes(&self, hit: &Hit) -> bool {
        if self.changed && (hit.silent || !hit.kind.writes()) {
            return false;
        }
        if self.thread != 0 && self.thread != hit.t.tid() as u32 {
            return false;
        }
        if let Some(r) = &self.pc
            && r.contain(hit.pc) != r.inside
        {
            return false;
        }
        if let Some(r) = &self.caller
            && callers(hit).into_iter().flatten().any(|at| r.contain(at)) != r.inside
        {
            return false;
        }
        if !self.conditions.is_empty() && !self.conditions_hold(hit) {
            return false;
        }
        if self.skip == 0 && self.count == u64::MAX {
            return true;
        }
        let passed = self.passed.fetch_add(1, Relaxed);
        passed >= self.skip && passed - self.skip < self.count
    }

    fn conditions_hold(&self, hit: &Hit) -> bool {
        let end = hit.start + hit.len;
        let mut at = hit.start;
        if self.unit != 0 {
            at -= (hit.start - hit.range.start.0) % self.unit;
        }
        for _ in 0..MOST_ELEMENTS {
            let len = match self.unit {
                0 => (end - at).min(8),
                unit => unit.min(hit.range.end().0 - at),
            };
            let mut machine = Machine { hit, at, len };
            let mut all = true;
            for code in &self.conditions {
                match agent::eval(code, &mut machine) {
                    Ok(0) => {
                        all = false;
                        break;
                    }
                    Ok(_) => {}
                    Err(e) => self.fail(e, hit.pc),
                }
            }
            if all {
                return true;
            }
            at += self.unit;
            if self.unit == 0 || !self.by_element || at >= end {
                return false;
            }
        }
        true
    }

    fn fail(&self, e: AgentError, pc: u64) {
        if self.failed.load(Relaxed) == 0
            && self
                .failed_at
                .compare_exchange(0, pc, AcqRel, Relaxed)
                .is_ok()
        {
            self.failed.store(e.pack(), Release);
            FAILED.store(true, SeqCst);
            notify();
        }
    }

    /// What went wrong first, and where; once.
    pub fn take_failure(&self) -> Option<(AgentError, u64)> {
        let error = AgentError::unpack(self.failed.load(Acquire))?;
        (self.failed.swap(TOLD, AcqRel) != TOLD).then(|| (error, self.failed_at.load(Relaxed)))
    }

    /// Goes on counting where `before` was.
    pub fn goes_on(&self, before: &Filter) {
        self.passed.store(before.passed.load(Relaxed), Relaxed);
    }
}

/// Where the function was called. Where no unwind tables tell: the word on top of the stack is the return
/// address of a function that has pushed nothing (`memcpy`, a system call's wrapper), the word behind rbp
/// that of one with a frame.
fn callers(hit: &Hit) -> [Option<u64>; 2] {
    let gprs = hit.gprs;
    if let Some(at) = unwind::caller(hit.t, gprs) {
        return [Some(at.wrapping_sub(1)), None];
    }
    let framed = gprs.rbp & 7 == 0 && gprs.rbp >= gprs.rsp;
    let top = memory::get::<u64>(gprs.rsp);
    let frame = framed
        .then(|| memory::get::<u64>(gprs.rbp.wrapping_add(8)))
        .flatten();
    // A call may be the last instruction of its function.
    [top, frame].map(|at| at.map(|at| at.wrapping_sub(1)))
}

/// One element of a hit, for agent expressions.
struct Machine<'a> {
    hit: &'a Hit<'a>,
    at: u64,
    len: u64,
}

impl Machine<'_> {
    fn new_bytes(&self) -> Option<[u8; 8]> {
        let mut bytes = [0; 8];
        let to = bytes.get_mut(..self.len as usize)?;
        (memory::read(self.at, to) == to.len()).then_some(bytes)
    }

    /// The old bytes of the access between the bytes beside it, which are as they were.
    fn old_bytes(&self) -> Option<[u8; 8]> {
        let mut bytes = self.new_bytes()?;
        let hit = self.hit;
        if hit.kind.writes() {
            let from = self.at.max(hit.start);
            let end = (self.at + self.len).min(hit.start + hit.len);
            let old = hit
                .old?
                .get((from - hit.start) as usize..(end - hit.start) as usize)?;
            let to = bytes.get_mut((from - self.at) as usize..(end - self.at) as usize)?;
            to.copy_from_slice(old);
        }
        Some(bytes)
    }
}

impl agent::AgentContext for Machine<'_> {
    fn reg(&mut self, n: u16) -> Option<u64> {
        agent::register(self.hit.gprs, n)
    }
    fn read(&mut self, addr: u64, buf: &mut [u8]) -> bool {
        memory::read(addr, buf) == buf.len()
    }
    fn variable(&mut self, number: u16) -> Option<u64> {
        let hit = self.hit;
        Some(match number {
            variable::OLD => u64::from_le_bytes(self.old_bytes()?),
            variable::NEW => u64::from_le_bytes(self.new_bytes()?),
            variable::ADDR => self.at,
            variable::LEN => hit.len,
            variable::TID => hit.t.tid() as u64,
            variable::PID => hit.t.tgid() as u64,
            variable::KIND => hit.kind as u64,
            variable::HITS => hit.number,
            variable::PC => hit.pc,
            variable::THREAD_POINTER => park::bases(hit.t).0,
            _ => return None,
        })
    }
}
