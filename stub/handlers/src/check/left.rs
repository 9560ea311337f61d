//! After a detach from a program that ran before its heap was checked, and that holds no block of ours: its own allocator serves it
//! again. The functions begin as they did, and nothing of ours stays.

use core::sync::atomic::AtomicBool;

use super::{blocks, old};

/// We have left such a program. Changes at rest.
pub static LEFT: AtomicBool = AtomicBool::new(false);

/// Does the program hold blocks that only we can serve? By the stub's task, at rest.
pub fn holds() -> bool {
    let mut any = old::waits();
    blocks::each(|_, _| any = true);
    any
}
