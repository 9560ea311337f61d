//! Which hits of a watch matter (`ulpf_lib::filter`): asked on the thread that made the access, without
//! stopping it. Here is what a filter counts, and where it finds the thread's registers, memory and callers.
//!
//! A condition that cannot be evaluated counts as true: the user is told why, once for each filter.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use ulpf_engine::agent::{self, AgentError};
use ulpf_engine::cpu::Gprs;
use ulpf_lib::filter::{Candidate, Filter, Program};

use crate::runtime::memory;
use crate::runtime::park::{self, notify};
use crate::runtime::thread::Thread;
use crate::unwind;

/// In `CountedFilter::failed`: the user knows.
const TOLD: u64 = u64::MAX;

/// Some filter has failed since the stub's task has looked.
pub static FAILED: AtomicBool = AtomicBool::new(false);

/// Made and replaced by the stub's task while all threads rest; they write the counters only.
pub struct CountedFilter {
    pub filter: Filter,
    /// Of the watch that it is for.
    pub unit: u64,
    passed: AtomicU64,
    /// The first condition that could not be evaluated (`AgentError::pack`), and for which instruction.
    failed: AtomicU64,
    failed_at: AtomicU64,
}

impl CountedFilter {
    /// For a watch of `len` bytes; `None`: the heap.
    pub fn new(filter: Filter, len: Option<u64>) -> CountedFilter {
        CountedFilter {
            unit: filter.unit_of(len),
            filter,
            passed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            failed_at: AtomicU64::new(0),
        }
    }

    #[inline]
    pub fn passes(&self, t: &Thread, gprs: &Gprs, hit: &Candidate) -> bool {
        let passed = || self.passed.fetch_add(1, Relaxed);
        let verdict = self.filter.passes(hit, &mut AtHit { t, gprs }, passed);
        if let Some(error) = verdict.failed {
            self.fail(error, hit.pc);
        }
        verdict.passes
    }

    #[cold]
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
    pub fn goes_on(&self, before: &CountedFilter) {
        self.passed.store(before.passed.load(Relaxed), Relaxed);
    }
}

/// The thread that made the access, behind its instruction.
struct AtHit<'a> {
    t: &'a Thread,
    gprs: &'a Gprs,
}

impl Program for AtHit<'_> {
    fn register(&mut self, number: u16) -> Option<u64> {
        agent::register(self.gprs, number)
    }

    fn read(&mut self, addr: u64, to: &mut [u8]) -> bool {
        memory::read(addr, to) == to.len()
    }

    fn process(&mut self) -> u64 {
        self.t.tgid() as u64
    }

    fn thread_pointer(&mut self) -> Option<u64> {
        Some(park::bases(self.t).0)
    }

    /// Where no unwind tables tell: the word on top of the stack is the return address of a function that has
    /// pushed nothing (`memcpy`, a system call's wrapper), the word behind rbp that of one with a frame.
    fn callers(&mut self) -> [Option<u64>; 2] {
        let gprs = self.gprs;
        if let Some(at) = unwind::caller(self.t, gprs) {
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
}
