//! What of the stub runs on the program's own threads, inside signal handlers.
//!
//! Rules (DESIGN.md section 8, rule 3): it allocates nothing, waits only at the points named `park` and `request`
//! (and, where no record may be lost, for room in its own ring: [`log`]), takes no lock but those of pages ([`locks`],
//! which it never waits for) and that of the program's rings ([`uring::rings::with`]: its holder waits for nobody but
//! the kernel, at the submission of requests, and with the world at rest nobody holds it), formats nothing, never enters code of the program, and leaves errno alone (there is no
//! errno here: system calls are raw). This crate does not name `alloc`, and knows nothing of the stub's task: what a
//! thread needs of that, it asks for ([`runtime::events::Request`]), and what the task tells the handlers stands in
//! [`global`].
//!
//! Asynchronous signals are blocked throughout, except inside `asm::ulpf_blocking`, where a blocking call of the
//! program runs under its own mask, and while a guarded access is served (`signals::masks::close` ends that). One that
//! strikes there is noted, and dealt with on the way out (`Thread::attention`).
#![cfg_attr(not(test), no_std)]

pub mod breakpoints;
pub mod cause;
pub mod check;
pub mod child;
pub mod crash;
pub mod direct;
pub mod direct_frame;
pub mod engine;
pub mod fault;
pub mod filter;
pub mod frames;
pub mod generated;
pub mod global;
pub mod hits;
pub mod library;
pub mod locks;
pub mod log;
pub mod masked;
pub mod ours;
pub mod patches;
pub mod paths;
pub mod rest;
pub mod rights;
pub mod runs;
pub mod runtime;
pub mod say;
pub mod sections;
pub mod signals;
pub mod stacks;
pub mod syscalls;
pub mod unwind;
pub mod upcall;
pub mod uring;
pub mod walk;
pub mod warm;
