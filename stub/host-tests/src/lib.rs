//! The stub's protocol layer on the host.
//!
//! The stub itself is a freestanding image and cannot be run by a test harness; `stub/task/src/gdb`
//! only needs an [`inferior::Inferior`], and here are two: [`fake::Recorder`], which notes what it
//! is asked, and [`ptrace::Traced`], a real program, so that real debuggers can talk to the layer
//! without the rest of the stub (`cargo run -p ulpf-stub-host-tests -- PORT PROG ARGS…`).
extern crate alloc;

pub use ulpf_stub_task::{gdb, inferior};

pub mod fake;
pub mod ptrace;
pub mod server;
