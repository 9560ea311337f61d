//! Where the program's files are mapped: data of theirs are no blocks of an allocator.

use core::sync::atomic::{AtomicU64, Ordering::*};

/// So many files are known. Of more, some addresses in their data may be taken for blocks.
const MOST: usize = 512;

/// `[start, end)` of each, with the zeroed data behind it.
static FILES: [[AtomicU64; 2]; MOST] = [const { [const { AtomicU64::new(0) }; 2] }; MOST];

/// By the stub's task, at rest: these are all files.
pub fn are(all: impl Iterator<Item = (u64, u64)>) {
    let none = core::iter::repeat((0, 0));
    for ([start, end], (from, to)) in FILES.iter().zip(all.chain(none)) {
        start.store(from, Relaxed);
        end.store(to, Relaxed);
    }
}

/// Is the byte at `addr` one of a file's?
pub fn has(addr: u64) -> bool {
    let files = FILES
        .iter()
        .map(|[start, end]| (start.load(Relaxed), end.load(Relaxed)));
    files
        .take_while(|(start, _)| *start != 0)
        .any(|(start, end)| (start..end).contains(&addr))
}
