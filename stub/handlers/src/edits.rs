//! Edits of code, as the program's threads meet them (`ulpf_stub_tables::edits` has the table).

use core::sync::atomic::Ordering::*;

use crate::global::tables;
use crate::patches;
use crate::runtime::areas;
use crate::stopped::Stopped;
use crate::syscalls::sites;
use crate::{child, generated};

/// True if a patch, a trampoline, or a page that was write-protected for patches is in `[start, end)`, whose mapping is
/// about to change.
pub fn touch_mappings(start: u64, end: u64) -> bool {
    let tables = tables();
    tables.edits.calls.touches(start, end)
        || tables.edits.accesses.touches(start, end)
        || tables.caves.touches(start, end)
        || tables.patches.code_pages(start, end).next().is_some()
}

/// Restores the original bytes in a forked child.
pub fn remove_in_child(stopped: &mut Stopped) {
    if areas::SOME.load(Relaxed) {
        areas::disable();
    }
    patches::ENABLED.store(false, SeqCst);
    sites::ENABLED.store(false, SeqCst);
    child::put_back(&tables().edits);
    generated::open_in_child();
    for cave in tables().caves.iter().filter(|cave| cave.reserved) {
        patches::close_reserved(cave.start, cave.len());
    }
    areas::SOME.store(false, SeqCst);
    sites::SOME.store(false, SeqCst);
    patches::drop_tables(stopped);
}
