//! The memory that `ulpf` shares with the stub of a watched program (`ulpf_lib::ring` describes it): a ring of hits for
//! each thread, counters, the list of watches.
//!
//! - [`shared`]: the area that the command maps when it starts a program;
//! - [`sessions`]: the areas of other `ulpf` processes;
//! - [`kept`]: the saved areas of programs that have ended.
#![deny(unsafe_code)]

pub mod kept;
pub mod sessions;
#[allow(unsafe_code)]
pub mod shared;

pub use shared::SharedArea;
