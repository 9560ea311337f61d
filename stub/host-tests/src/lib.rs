//! The stub's protocol layer, compiled for the host as it is.
//!
//! The stub itself is a freestanding image and cannot be run by a test harness; `stub/src/gdb`
//! only needs an [`inferior::Inferior`], and here are two: [`fake::Recorder`], which notes what it
//! is asked, and [`ptrace::Traced`], a real program, so that real debuggers can talk to the layer
//! without the rest of the stub (`cargo run -p ulpf-stub-host-tests -- PORT PROG ARGS…`).
extern crate alloc;

#[path = "../../src/gdb/mod.rs"]
pub mod gdb;
#[path = "../../src/inferior.rs"]
pub mod inferior;

pub mod fake;
pub mod ptrace;
pub mod server;
