//! The stub's protocol layer on the host.
//!
//! The stub itself is a freestanding image, which a test harness cannot run. `stub/task/src/gdb` only needs an
//! [`inferior::Inferior`]. This crate has two: [`fake::Recorder`] records the calls it gets, and [`ptrace::Traced`] is
//! a real program. With the latter, real debuggers can talk to the layer without the rest of the stub (`cargo run -p
//! ulpf-stub-host-tests -- PORT PROG ARGS…`).
extern crate alloc;

pub use ulpf_stub_task::{gdb, inferior};

pub mod fake;
pub mod ptrace;
pub mod server;
