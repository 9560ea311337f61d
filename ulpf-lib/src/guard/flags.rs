//! Whether mappings may have flags that /proc/self/maps does not show, so that /proc/self/smaps need not be read where
//! they have none.

use core::sync::atomic::{AtomicBool, Ordering};

static FLAGS: AtomicBool = AtomicBool::new(true);

/// To be called before memory may get flags that /proc/self/maps does not show: another lot than to be copied
/// into forked children, a lock, a protection key. (What has happened before we came is looked for by itself.)
pub fn follow() {
    FLAGS.store(true, Ordering::SeqCst);
}

static LOCKS: AtomicBool = AtomicBool::new(false);

/// All memory to come is locked (mlockall(MCL_FUTURE)), or no longer.
pub fn locks_follow(yes: bool) {
    LOCKS.store(yes, Ordering::SeqCst);
}

/// May there be any such memory?
pub(super) fn any() -> bool {
    FLAGS.load(Ordering::SeqCst) || LOCKS.load(Ordering::SeqCst)
}

/// They have been looked for, and there are none.
pub(super) fn forget() {
    FLAGS.store(false, Ordering::SeqCst);
}
