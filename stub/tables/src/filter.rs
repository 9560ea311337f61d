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
    /// The debugger's own condition, and what it has to hear of it.
    debuggers: Option<Unsettled>,
}

/// What the debugger would have done at hits that it has not heard of.
#[derive(Default)]
struct Unsettled {
    /// It would know another value.
    changed: AtomicBool,
    /// So many hits that `skip` has rejected are told.
    told: AtomicU64,
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
            debuggers: None,
        }
    }

    /// The same as a condition of one of the debugger's own watches.
    pub fn of_debugger(filter: Filter, len: u64) -> CountedFilter {
        CountedFilter {
            debuggers: Some(Unsettled::default()),
            ..CountedFilter::new(filter, Some(len))
        }
    }

    pub fn is_debuggers(&self) -> bool {
        self.debuggers.is_some()
    }

    /// A rejected hit has left another value.
    #[inline]
    pub fn changed_unseen(&self) {
        if let Some(of) = &self.debuggers
            && !of.changed.load(Relaxed)
        {
            of.changed.store(true, Relaxed);
        }
    }

    fn skipped(&self, of: &Unsettled) -> u64 {
        let skipped = self.passed.load(Relaxed).min(self.filter.skip);
        skipped.saturating_sub(of.told.load(Relaxed))
    }

    /// Has it rejected hits that the debugger would have taken note of?
    pub fn is_unsettled(&self) -> bool {
        let of = self.debuggers.as_ref();
        of.is_some_and(|of| of.changed.load(Relaxed) || self.skipped(of) > 0)
    }

    /// The debugger hears of it now; how many hits `skip` has rejected since it did the last time.
    pub fn settle(&self) -> u64 {
        let Some(of) = &self.debuggers else { return 0 };
        of.changed.store(false, Relaxed);
        let skipped = self.skipped(of);
        of.told.fetch_add(skipped, Relaxed);
        skipped
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
        if self.debuggers.is_some() && verdict.failed.is_some() {
            // The debugger evaluates it, says that it cannot, and counts.
            if self.filter.skip > 0 {
                self.passed.fetch_sub(1, Relaxed);
            }
            return true;
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
