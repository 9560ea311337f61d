//! Address ranges of the program's mapped files. Data in them are not blocks of an allocator.

use core::sync::atomic::{AtomicU64, Ordering::*};

/// Limit of known files. With more of them, some addresses in their data may be taken for blocks.
const MOST: usize = 512;

/// `[start, end)` of each file, including its zeroed data.
static FILES: [[AtomicU64; 2]; MOST] = [const { [const { AtomicU64::new(0) }; 2] }; MOST];

/// Sets the list of files. Called by the stub's task with the world stopped.
pub fn are(all: impl Iterator<Item = (u64, u64)>) {
    let none = core::iter::repeat((0, 0));
    for ([start, end], (from, to)) in FILES.iter().zip(all.chain(none)) {
        start.store(from, Relaxed);
        end.store(to, Relaxed);
    }
}

/// True if the byte at `addr` belongs to a file.
pub fn has(addr: u64) -> bool {
    let files = FILES
        .iter()
        .map(|[start, end]| (start.load(Relaxed), end.load(Relaxed)));
    files
        .take_while(|(start, _)| *start != 0)
        .any(|(start, end)| (start..end).contains(&addr))
}
