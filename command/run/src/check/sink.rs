//! A file for other programs, of which writing may fail.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use ulpf_say::say;

/// A file that somebody else reads; what cannot be written is said once.
pub struct Sink(pub Option<Arc<File>>);

impl Sink {
    pub fn write(&mut self, text: &str) {
        let Some(mut file) = self.0.as_deref() else {
            return;
        };
        if let Err(error) = file.write_all(text.as_bytes()) {
            say!("the report is incomplete: {error}");
            self.0 = None;
        }
    }
}
