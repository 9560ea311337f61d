//! What the server knows of a program whose heap is checked (`heap` asks and tells).
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use ulpf_heap::error::Error;
use ulpf_heap::options::HeapOptions;
use ulpf_heap::sums::Sums;
use ulpf_lib::ring::found::{Report, Wrong};
use ulpf_symbols::Program;

/// What is known of a program whose heap is checked, or asked about.
#[derive(Default)]
pub struct Checked {
    pub options: Arc<HeapOptions>,
    pub program: Option<Program>,
    pub sums: Sums,
    /// What there is at the end has been told.
    pub ended: bool,
    /// The error that it has stopped for last, as `heap-error` is answered.
    pub last: Option<String>,
}

impl Checked {
    pub fn new(options: Arc<HeapOptions>) -> Checked {
        Checked {
            options,
            ..Checked::default()
        }
    }

    /// Is it suppressed?
    pub fn hides(&mut self, report: &Report) -> bool {
        // (The program may have written anything there.)
        let wrong = Wrong::of(report.wrong.load(Relaxed));
        let suppressions = &self.options.suppressions;
        wrong
            .filter(|_| !suppressions.is_empty())
            .is_some_and(|wrong| {
                let error = Error::of(wrong, report, self.program.get_or_insert_default());
                suppressions.find(&error.case()).is_some()
            })
    }

    /// The program as it is now.
    pub fn program(&mut self, pid: i32) -> &Program {
        let program = self.program.get_or_insert_default();
        // What it had before is better than nothing.
        let _ = program.refresh_from_process(pid);
        program
    }
}
