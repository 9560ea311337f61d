//! A file for other programs; writing to it may fail.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use ulpf_host::say::say;

/// A file that another program reads; the first write error is reported, and later ones are not.
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
