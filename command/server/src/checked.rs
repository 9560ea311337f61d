//! The server's state for a program with a checked heap (`heap` asks the stub and reports).
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use ulpf_heap::error::Error;
use ulpf_heap::options::HeapOptions;
use ulpf_heap::sums::Sums;
use ulpf_lib::ring::findings::{Report, Wrong};
use ulpf_symbols::Program;

/// State of a program whose heap is checked or has been queried.
#[derive(Default)]
pub struct Checked {
    pub options: Arc<HeapOptions>,
    pub program: Option<Program>,
    pub sums: Sums,
    /// The final report has been given.
    pub ended: bool,
    /// The error of the last stop, in the form in which `heap-error` answers.
    pub last: Option<String>,
}

impl Checked {
    pub fn new(options: Arc<HeapOptions>) -> Checked {
        Checked {
            options,
            ..Checked::default()
        }
    }

    /// Whether a suppression matches this report.
    pub fn hides(&mut self, report: &Report) -> bool {
        // (The program may have written any value there.)
        let wrong = Wrong::of(report.wrong.load(Relaxed));
        let suppressions = &self.options.suppressions;
        wrong
            .filter(|_| !suppressions.is_empty())
            .is_some_and(|wrong| {
                let error = Error::of(wrong, report, self.program.get_or_insert_default());
                suppressions.find(&error.case()).is_some()
            })
    }

    /// The program with its present mappings.
    pub fn program(&mut self, pid: i32) -> &Program {
        let program = self.program.get_or_insert_default();
        // On failure the earlier mappings are better than none.
        let _ = program.refresh_from_process(pid);
        program
    }
}
