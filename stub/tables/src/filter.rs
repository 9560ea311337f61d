//! Filter of a watch (`ulpf_lib::filter`) with its counters.
//!
//! A condition that cannot be evaluated counts as true; the reason is reported to the user once for each filter.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use ulpf_engine::agent::AgentError;
use ulpf_lib::filter::{Candidate, Filter, Program};

/// In `CountedFilter::failed`: the failure has been reported to the user.
const REPORTED: u64 = u64::MAX;

/// Some filter has failed since the stub's task last looked.
pub static FAILED: AtomicBool = AtomicBool::new(false);

/// The stub's task makes and replaces it while all threads are stopped; handlers write the counters only.
pub struct CountedFilter {
    pub filter: Filter,
    /// [`Filter::unit_of`] its watch.
    pub unit: u64,
    passed: AtomicU64,
    /// The first condition that could not be evaluated (`AgentError::pack`), and its instruction.
    failed: AtomicU64,
    failed_at: AtomicU64,
    /// For the debugger's own condition: state that the debugger does not know yet.
    debuggers: Option<Unsettled>,
}

/// Effects of rejected hits that the debugger does not know about.
#[derive(Default)]
struct Unsettled {
    /// A rejected hit has left another value than the debugger knows.
    changed: AtomicBool,
    /// Number of hits rejected by `skip` that have been reported.
    reported: AtomicU64,
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

    /// Notes that a rejected hit has left another value.
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
        skipped.saturating_sub(of.reported.load(Relaxed))
    }

    /// Returns whether it has rejected hits that the debugger would have noticed.
    pub fn is_unsettled(&self) -> bool {
        let of = self.debuggers.as_ref();
        of.is_some_and(|of| of.changed.load(Relaxed) || self.skipped(of) > 0)
    }

    /// Marks the rejected hits as reported. Returns how many hits `skip` has rejected since the last call.
    pub fn settle(&self) -> u64 {
        let Some(of) = &self.debuggers else { return 0 };
        of.changed.store(false, Relaxed);
        let skipped = self.skipped(of);
        of.reported.fetch_add(skipped, Relaxed);
        skipped
    }

    /// Returns whether the hit matters. Calls `failed` when an evaluation error should be reported to the user.
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

    /// Records an evaluation error. Returns `true` for the first one.
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

    /// The first evaluation error and its instruction; returned once.
    pub fn take_failure(&self) -> Option<(AgentError, u64)> {
        let error = AgentError::unpack(self.failed.load(Acquire))?;
        (self.failed.swap(REPORTED, AcqRel) != REPORTED)
            .then(|| (error, self.failed_at.load(Relaxed)))
    }

    /// Continues counting from the count of `before`.
    pub fn goes_on(&self, before: &CountedFilter) {
        self.passed.store(before.passed.load(Relaxed), Relaxed);
    }
}
