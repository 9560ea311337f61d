//! The pages under watches, and the guards that they need.

use super::entry::Entry;
use crate::addr::{PAGE_SIZE, TargetAddr};
use crate::pages::{Guard, PageRun, page_up};

/// Sweep over the watches by page:
///
/// ```text
/// watches   ██write████        ██write█
///                ██read██████
/// runs      NoWr |NoAccess   |NoWrite
/// ```
pub(super) struct Pages<I: Iterator<Item = Entry>> {
    entries: core::iter::Peekable<I>,
    /// Everything below is reported.
    at: u64,
    /// Ends of the pages under the watches seen so far: of all of them, and of those that need
    /// [`Guard::NoAccess`].
    any_end: u64,
    full_end: u64,
}

impl<I: Iterator<Item = Entry>> Pages<I> {
    /// `entries` ascend.
    pub(super) fn of(entries: I) -> Pages<I> {
        Pages {
            entries: entries.peekable(),
            at: 0,
            any_end: 0,
            full_end: 0,
        }
    }
}

impl<I: Iterator<Item = Entry>> Iterator for Pages<I> {
    type Item = PageRun;

    fn next(&mut self) -> Option<PageRun> {
        if self.any_end <= self.at {
            self.at = self.entries.peek()?.start() & !(PAGE_SIZE - 1);
        }
        let start = self.at;
        let mut guard = None;
        loop {
            // Takes in every watch whose first page is not above `at`.
            while let Some(e) = self.entries.peek() {
                if e.start() & !(PAGE_SIZE - 1) > self.at {
                    break;
                }
                let end = page_up(TargetAddr(e.end())).0;
                self.any_end = self.any_end.max(end);
                if Guard::needed_by(e.kind()) == Guard::NoAccess {
                    self.full_end = self.full_end.max(end);
                }
                self.entries.next();
            }
            let here = if self.at < self.full_end {
                Some(Guard::NoAccess)
            } else if self.at < self.any_end {
                Some(Guard::NoWrite)
            } else {
                None
            };
            match (guard, here) {
                (None, _) => guard = here,
                (Some(a), b) if Some(a) != b => break,
                _ => {}
            }
            // The next place where the answer may change.
            let mut next = if self.at < self.full_end {
                self.full_end
            } else {
                self.any_end
            };
            if let Some(e) = self.entries.peek() {
                next = next.min(e.start() & !(PAGE_SIZE - 1));
            }
            if next <= self.at {
                break;
            }
            self.at = next;
        }
        guard.map(|guard| PageRun {
            start: TargetAddr(start),
            end: TargetAddr(self.at),
            guard,
        })
    }
}
