//! Which hits of a watch matter (`ulpf_lib::filter`), and what its filter counts.
//!
//! A condition that cannot be evaluated counts as true: the user is told why, once for each filter.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use ulpf_engine::agent::AgentError;
use ulpf_lib::filter::{Candidate, Filter, Program};

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

    /// Does the hit matter? `failed` is called when the user has to be told.
    #[inline]
    pub fn passes(
        &self,
        hit: &Candidate,
        program: &mut impl Program,
        failed: impl FnOnce(),
    ) -> bool {
        let passed = || self.passed.fetch_add(1, Relaxed);
        let verdict = self.filter.passes(hit, program, passed);
        if let Some(error) = verdict.failed
            && self.fail(error, hit.pc)
        {
            failed();
        }
        verdict.passes
    }

    /// `true`: for the first time.
    #[cold]
    fn fail(&self, e: AgentError, pc: u64) -> bool {
        let first = self.failed.load(Relaxed) == 0
            && self
                .failed_at
                .compare_exchange(0, pc, AcqRel, Relaxed)
                .is_ok();
        if first {
            self.failed.store(e.pack(), Release);
            FAILED.store(true, SeqCst);
        }
        first
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
