//! The part of the stub that runs on the program's own threads, inside signal handlers.
//!
//! Rules (DESIGN.md section 8, rule 3):
//! * It allocates nothing, formats nothing, and never enters code of the program.
//! * It waits only at the points named `park` and `request`; and, if no record may be lost, for room in its own ring
//!   ([`log`]).
//! * It takes only two kinds of locks: those of pages ([`locks`]), for which it never waits, and that of the program's
//!   rings ([`uring::rings::with`]). The holder of the latter waits only for the kernel, at the submission of requests,
//!   and no thread holds it while the world is stopped.
//! * It leaves errno alone: system calls are raw.
//!
//! This crate does not name `alloc`, and does not depend on the stub's task. A thread asks the task for services
//! ([`runtime::events::Request`]), and the task publishes its state for the handlers in [`global`].
//!
//! Asynchronous signals are blocked throughout, with two exceptions. Inside `asm::ulpf_blocking`, a blocking call of
//! the program runs under its own mask. A guarded access is served under the program's mask (until
//! `signals::masks::close`). A signal that strikes there is noted, and handled on the way out (`Thread::attention`).
#![cfg_attr(not(test), no_std)]

pub mod backtraces;
pub mod breakpoints;
pub mod cached_unwind;
pub mod cause;
pub mod check;
pub mod child;
pub mod crash;
pub mod direct;
pub mod direct_frame;
pub mod edits;
pub mod engine;
pub mod fault;
pub mod filter;
pub mod generated;
pub mod global;
pub mod hits;
pub mod hot_sites;
pub mod last_writer;
pub mod library;
pub mod locks;
pub mod log;
pub mod masked_stores;
pub mod origin;
pub mod ours;
pub mod patches;
pub mod paths;
pub mod rights;
pub mod runs;
pub mod runtime;
pub mod say;
pub mod sequences;
pub mod signals;
pub mod stopped;
pub mod syscalls;
pub mod unwind;
pub mod upcall;
pub mod uring;
pub mod walk;
