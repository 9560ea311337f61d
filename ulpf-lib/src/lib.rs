//! The watchlist, the page guards and the user-level page-fault handler of ulpf.
//!
//! Freestanding (`no_std`): the stub that lives inside the watched program is built from it.
#![cfg_attr(not(test), no_std)]
extern crate alloc;

pub mod addr;
pub mod boot;
pub mod ring;
pub mod sys;
pub mod watch;

pub use addr::{AliasAddr, PAGE_SIZE, TargetAddr};
pub use watch::{AccessKind, WatchId, WatchKind, WatchRange};
