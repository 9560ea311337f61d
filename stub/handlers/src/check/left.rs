//! Detach from a program that ran before its heap was checked and holds no block of ours. Its own allocator serves it
//! again, the functions begin as they did, and nothing of ours stays.

use core::sync::atomic::AtomicBool;

use super::{blocks, old};

/// We have detached from such a program. Changes with the world stopped.
pub static LEFT: AtomicBool = AtomicBool::new(false);

/// True if the program holds blocks that only we can serve. Called by the stub's task with the world stopped.
pub fn holds() -> bool {
    let mut any = old::waiting().next().is_some();
    blocks::each(|_, _| any = true);
    any
}
