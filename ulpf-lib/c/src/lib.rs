//! Watchpoints for a program that watches itself: no debugger, no privilege, any number, any size.
//!
//! ```no_run
//! use libulpf::{Access, Watch};
//! use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
//!
//! static HITS: AtomicU32 = AtomicU32::new(0);
//! let data = Box::leak(Box::new([0u64; 8]));
//! let watch = Watch::new(&raw const data[3] as usize, 8, Access::Write)
//!     .handler(|hit| { HITS.fetch_add(hit.len() as u32, Relaxed); })
//!     .insert()?;
//! data[3] = 7;
//! assert_eq!(watch.counts().hits, 1);
//! # Ok::<(), libulpf::Failure>(())
//! ```
//! The C interface, with the thesis's names and Sentry-Watcher's, is `include/ulpf.h`; ulpf(3) says what
//! both promise.
//!
#![doc = include_str!("../README.md")]
#![deny(missing_docs, clippy::missing_errors_doc)]

mod alloc;
mod backend;
mod callbacks;
mod calls;
mod change;
mod code;
mod engine;
mod entry;
mod error;
mod exception_stacks;
pub mod ffi;
mod fork;
mod handler;
mod hits;
mod interpose;
mod io;
mod keys;
mod mask;
mod memory;
mod model;
mod pli;
mod poison;
mod registers;
mod setup;
mod shared;
mod signals;
mod slow;
mod stub_link;
mod stub_report;
mod thread;
mod upcall;
mod watch;

pub use alloc::Switch;
pub use backend::{backend, use_backend};
pub use error::Failure;
pub use pli::Permission;
pub use setup::unregister;
pub use watch::{Access, Counts, Hit, Stats, Watch, Watched, alias, insert_all, stats};
