//! The blocks that a program had before its heap was checked.

use std::sync::atomic::Ordering::Relaxed;
use ulpf_lib::ring::findings::{Findings, Old};
use ulpf_session::words::count;

const NEW_ONES: &str = "what is allocated from now on is checked";

/// Text for people; `None` if there were no such blocks.
pub fn text(f: &Findings) -> Option<String> {
    let [blocks, bytes] = [0, 1].map(|n| f.old_blocks.get(n).map_or(0, |n| n.load(Relaxed)));
    let unknown = |why: &str| {
        format!("the blocks that the program has already are not known, because {why}; {NEW_ONES}")
    };
    Some(match Old::of(f.old.load(Relaxed)) {
        Old::None => return None,
        Old::Walked => format!(
            "{} ({bytes} bytes) that the program has already {} checked, too, but not where they were allocated; \
             not known are blocks with a mapping of their own (128 KiB and more)",
            count(blocks, "block"),
            if blocks == 1 { "is" } else { "are" },
        ),
        Old::Unknown => {
            unknown("its allocator is not glibc's, or of a version whose heap looks otherwise")
        }
        Old::Damaged => {
            unknown("glibc's heap does not fit together: something has written into its books")
        }
        Old::Busy => unknown("some thread was always at work on the heap"),
        Old::Unwatched => unknown("their memory cannot be watched"),
    })
}
