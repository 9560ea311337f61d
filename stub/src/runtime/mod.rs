//! Code that runs on the program's own threads, inside signal handlers.
//!
//! Rules (DESIGN.md section 8, rule 3): it allocates nothing, waits only at the points named `park`
//! and `request`, formats nothing, never enters code of the program, and leaves errno alone (there
//! is no errno here: system calls are raw). Asynchronous signals are blocked throughout, except
//! inside `asm::ulpf_blocking`, where a blocking call of the program runs under its own mask, and while a
//! guarded access is served (`signals::close` ends that). One that strikes there is noted, and dealt with on
//! the way out (`Thread::attention`).

pub mod asm;
pub mod debug_registers;
pub mod memory;
pub mod park;
pub mod robust;
pub mod signals;
pub mod thread;
pub mod waiting;

pub use ulpf_engine::frame;
