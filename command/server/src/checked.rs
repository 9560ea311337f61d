//! What the server knows of a program whose heap is checked (`heap` asks and tells).
#![forbid(unsafe_code)]

use ulpf_heap::sums::Sums;
use ulpf_symbols::Program;

/// What is known of a program whose heap is checked, or asked about.
#[derive(Default)]
pub struct Checked {
    pub program: Option<Program>,
    pub sums: Sums,
    /// What there is at the end has been told.
    pub ended: bool,
    /// The error that it has stopped for last, as `heap-error` is answered.
    pub last: Option<String>,
}

impl Checked {
    /// The program as it is now.
    pub fn program(&mut self, pid: i32) -> &Program {
        let program = self.program.get_or_insert_default();
        // What it had before is better than nothing.
        let _ = program.refresh_from_process(pid);
        program
    }
}
