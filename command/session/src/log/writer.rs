//! Writes the file: whole blocks, each by one system call, so that the file of a killed writer can be read.

use crate::log::format::{HEAD_LEN, Head, LARGEST, MAGIC, What};
use crate::log::words::Word;
use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use ulpf_host::say::{json, say};

/// A log that several threads write.
#[derive(Clone)]
pub struct Log(Arc<Mutex<Writer>>);

struct Writer {
    to: File,
    broken: Option<io::ErrorKind>,
}

impl Log {
    /// Starts a log in an empty file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin(mut to: File) -> io::Result<Log> {
        to.write_all(MAGIC)?;
        Ok(Log(Arc::new(Mutex::new(Writer { to, broken: None }))))
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes words in order.
    pub fn words<'a>(&self, words: impl IntoIterator<Item = Word<'a>>) {
        let (mut text, mut line) = (String::new(), String::new());
        for word in words {
            line.clear();
            json::append(&mut line, &word);
            if line.len() > LARGEST {
                say!(
                    "the log leaves out a line of {} bytes: it has room for {LARGEST}",
                    line.len()
                );
                continue;
            }
            if text.len() + line.len() > LARGEST {
                self.block(&Head::new(What::Words, 0, 0), text.as_bytes());
                text.clear();
            }
            text.push_str(&line);
        }
        if !text.is_empty() {
            self.block(&Head::new(What::Words, 0, 0), text.as_bytes());
        }
    }

    /// Writes one block.
    pub fn block(&self, head: &Head, payload: &[u8]) {
        let head = head.bytes(payload);
        let mut writer = self.writer();
        if writer.broken.is_some() {
            return;
        }
        if let Err(error) = put(&mut writer.to, &head, payload) {
            // Reported now: the program may run for days.
            say!("the log ends here: {error}; the program goes on, and its hits are counted");
            writer.broken = Some(error.kind());
        }
    }

    /// The error that made the file incomplete, if any.
    pub fn broken(&self) -> Option<io::Error> {
        self.writer().broken.map(io::Error::from)
    }
}

fn put(to: &mut File, head: &[u8; HEAD_LEN], payload: &[u8]) -> io::Result<()> {
    let whole = head.len() + payload.len();
    let mut done = match to.write_vectored(&[IoSlice::new(head), IoSlice::new(payload)]) {
        Ok(n) => n,
        Err(e) if e.kind() == io::ErrorKind::Interrupted => 0,
        Err(e) => return Err(e),
    };
    if done < head.len() {
        to.write_all(&head[done..])?;
        done = head.len();
    }
    if done < whole {
        to.write_all(&payload[done - head.len()..])?;
    }
    Ok(())
}
