//! The targets, a file each: `run` reads one input, `INPUTS` is the number of changed inputs in a plain test.
//! A file that is missing below does not compile: `build.rs` makes [`crate::TARGETS`] from the folder.

pub mod agent;
pub mod area;
pub mod bridge_front;
pub mod control_socket;
pub mod dap;
pub mod elf;
pub mod filter;
pub mod log_file;
pub mod maps;
pub mod mi;
pub mod monitor;
pub mod reports;
pub mod rings;
pub mod rsp;
pub mod server;
pub mod spec;
pub mod stub_packets;
pub mod suppressions;
