//! The watchlist, the page guards and the user-level page-fault handler of ulpf.
//!
//! Freestanding (`no_std`): the stub that lives inside the watched program is built from it.
//!
#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code, missing_docs, clippy::missing_errors_doc)]
extern crate alloc;

pub mod addr;
#[allow(unsafe_code)]
pub mod agent;
pub mod arena;
pub mod boot;
pub mod command;
pub mod device;
pub mod eflags;
pub mod filter;
pub mod guard;
pub mod hash;
pub mod hot;
pub mod kept;
pub mod last_writer;
pub mod library_abi;
pub mod mapping;
pub mod number;
pub mod pages;
pub mod perf;
pub mod place;
pub mod refusal;
pub mod ring;
pub mod runtime_library;
pub mod seccomp;
pub mod signals;
pub mod staged;
pub mod sync;
pub mod sys;
pub mod syscalls;
pub mod watch;
pub mod watchlist;

pub use addr::{AliasAddr, PAGE_SIZE, TargetAddr};
pub use guard::{Guards, PageEntry, PageMap};
pub use pages::{Guard, PageRun};
pub use refusal::Refusal;
pub use staged::StagedWatches;
pub use watch::{AccessKind, WatchId, WatchKind, WatchRange};
pub use watchlist::Watchlist;
