//! Writes text on a thread of its own. A terminal that is held (Ctrl-S) or a pager that waits takes nothing for as long as
//! its user likes. Meanwhile the callers of [`Writer::write`] go on.

use super::atomic_lines;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time for the reader to take a text. So the text is where its user sees it before the caller goes on, but for a reader
/// that takes nothing.
const MOMENT: Duration = Duration::from_millis(100);
/// Limit of the bytes that wait. Above it [`Writer::is_full`] holds, and callers keep further text.
const MOST: usize = 256 << 10;

/// A terminal, pipe or socket, and the thread that writes to it.
#[derive(Clone)]
pub struct Writer(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    texts: VecDeque<String>,
    /// Bytes of the texts that are not written yet, including the one that is being written.
    bytes: usize,
    /// The reader has not taken the last text in time.
    is_late: bool,
    broken: Option<(io::ErrorKind, String)>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.changed.wait(state);
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    /// `None` for a regular file, which takes everything at once.
    ///
    /// # Errors
    /// EMFILE and others, if the descriptor cannot be duplicated; EAGAIN, if there can be no more threads.
    pub fn of(to: BorrowedFd<'_>) -> io::Result<Option<Writer>> {
        let to = File::from(to.try_clone_to_owned()?);
        let kind = to.metadata()?.file_type();
        // Other processes may write to it as well, so a write that is too long could be torn.
        let pieces = kind.is_fifo() || kind.is_socket();
        if !pieces && !kind.is_char_device() {
            return Ok(None);
        }
        let shared = Arc::new(Shared::default());
        let writer = Writer(shared.clone());
        std::thread::Builder::new().spawn(move || run(&shared, to, pieces))?;
        Ok(Some(writer))
    }

    /// Hands over whole lines. Returns when they are written, or after 100 ms; at once if the reader was late with the
    /// text before. After an error all text is dropped.
    pub fn write(&self, text: &str) {
        let mut state = self.0.state();
        if state.broken.is_some() || text.is_empty() {
            return;
        }
        state.bytes += text.len();
        state.texts.push_back(text.to_string());
        self.0.changed.notify_all();
        if !state.is_late {
            let late = self
                .0
                .changed
                .wait_timeout_while(state, MOMENT, |state| state.bytes > 0);
            state = late.unwrap_or_else(PoisonError::into_inner).0;
            state.is_late = state.bytes > 0;
        }
    }

    /// Whether so much waits that a caller should wait, if it can.
    pub fn is_full(&self) -> bool {
        self.0.state().bytes > MOST
    }

    /// Waits until all is written.
    pub fn finish(&self) {
        let mut state = self.0.state();
        while state.bytes > 0 {
            state = self.0.wait(state);
        }
    }

    /// The error after which nothing more is written.
    pub fn broken(&self) -> Option<io::Error> {
        let state = self.0.state();
        let broken = state.broken.as_ref();
        broken.map(|(kind, text)| io::Error::new(*kind, text.clone()))
    }
}

fn run(shared: &Shared, mut to: File, pieces: bool) {
    let mut state = shared.state();
    loop {
        let Some(text) = state.texts.pop_front() else {
            state = shared.wait(state);
            continue;
        };
        drop(state);
        let written = match pieces {
            true => atomic_lines::put_pieces(&mut to, &text),
            false => atomic_lines::put(&mut to, text.as_bytes()),
        };
        state = shared.state();
        state.bytes -= text.len();
        if let Err(error) = written {
            state.broken = Some((error.kind(), error.to_string()));
            state.texts.clear();
            state.bytes = 0;
        }
        if state.bytes == 0 {
            state.is_late = false;
        }
        shared.changed.notify_all();
    }
}

/// The one of standard error; `None` if that is a file.
pub fn of_stderr() -> Option<&'static Writer> {
    static WRITER: std::sync::LazyLock<Option<Writer>> =
        std::sync::LazyLock::new(|| Writer::of(io::stderr().as_fd()).ok().flatten());
    WRITER.as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_reader_that_takes_nothing_delays_nobody() {
        let (mut reader, to) = io::pipe().unwrap();
        let writer = Writer::of(to.as_fd()).unwrap().unwrap();
        drop(to);
        let line = "x".repeat(1023) + "\n";
        // A pipe holds 64 KiB.
        for _ in 0..2000 {
            writer.write(&line);
        }
        assert!(writer.is_full());
        let mut all = vec![0; 2000 * line.len()];
        reader.read_exact(&mut all).unwrap();
        writer.finish();
        assert!(!writer.is_full());
        assert_eq!(all, line.repeat(2000).into_bytes());
        drop(reader);
        writer.write(&line);
        writer.finish();
        assert_eq!(writer.broken().unwrap().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_file_needs_none() {
        let file = tempfile::tempfile().unwrap();
        assert!(Writer::of(file.as_fd()).unwrap().is_none());
    }
}
