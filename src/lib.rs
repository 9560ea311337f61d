//! The `ulpf` command as a library: starting programs with the stub inside ([`inferior`]), serving
//! debuggers ([`server`]), and the subcommands.
//!
#![doc = include_str!("../command/README.md")]
#![forbid(unsafe_code)]

#[macro_use]
mod say;

mod bench;
mod bridge;
pub mod cli;
pub mod coverage;
pub mod dap;
mod doctor;
mod export;
pub mod follow;
mod gdb;
pub mod inferior;
mod last;
pub mod plugin;
mod programs;
pub mod run;
pub mod server;
pub mod session;
pub mod sim;
pub mod top;

pub use ulpf_host::errno::errno_text;
pub use ulpf_host::{foreign, signals};
pub use ulpf_inject::{backend, placement, settings};
pub use ulpf_listen as listen;
use ulpf_listen::socket_dir;
pub use ulpf_rsp as rsp;
pub use ulpf_symbols as symbols;

/// Programs, the stub in them, and what is shared with it.
pub mod inject {
    pub use ulpf_area::{SharedArea, sessions};
    pub use ulpf_host::{foreground, process, sys};
    pub use ulpf_inject::*;
}
