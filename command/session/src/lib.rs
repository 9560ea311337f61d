//! The state of a session: a program that a `ulpf` watches. It is read from the area that the program's threads write
//! to (`ulpf_lib::ring`), and from its owner's answers. `ulpf run`, `top`, `last`, `export`, the debug adapter and the
//! server all read it with this crate, which neither draws nor serves.
//!
//! ```text
//!     rings ──▶ merge (hits in order of time) ──▶ hit (a hit in words) ──▶ text · JSON · CSV · trace
//!     rings ──▶ drain (each ring's hits in their own order) ──▶ log/ (the compact log)
//!     rings, counters, table of watches ──▶ observer ──▶ snapshot (watches, sites, pages, threads, hits)
//!     the owner's control_socket ──▶ listing (the user's words)  ──┘         ▲
//!     sessions of this machine ──▶ find, watcher (all of them) ───────────────┘
//! ```
#![forbid(unsafe_code)]

pub mod arm;
pub mod armed;
pub mod control_socket;
pub mod drain;
pub mod find;
pub mod hit;
pub mod kept;
pub mod last_writers;
pub mod listing;
pub mod log;
pub mod memory;
pub mod merge;
pub mod names;
pub mod observer;
pub mod snapshot;
mod source;
pub mod suffix;
pub mod watcher;
pub mod words;
