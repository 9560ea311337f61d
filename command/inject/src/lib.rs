//! Starts a program, or attaches to a running one, with the stub inside.
//!
//! ```text
//!     launch   attach   follow (exec, fork)         programs that are started, that run, that change or multiply
//!          └──────┼────────┘
//!               load        image    address_space  the stub's image, written and started in a stopped process
//!                 │         gate      confined      where it makes system calls for us; with its own filters
//!               tracee      threads    unaided      one thread under ptrace; all threads; calls that need no tracer
//!     remains    keeper                             removes what was ours after a detach, or after our own death
//!     client                                        requests to the stub, once it runs
//!     inferior/                                     a program with the stub inside, asynchronously: its end, exec, fork
//! ```
//! The work is synchronous, on the calling thread, because ptrace binds a tracee to the thread that traces it. When a
//! function of this crate returns, nothing is traced any more.
//!
//! Public functions return [`StartError`], whose text tells the user what failed, why, and what to do.
//! `FOLLOW.md` in this folder tells the whole story.

#![deny(unsafe_code)]

mod address_space;
pub mod attach;
pub mod backend;
mod channel;
pub mod client;
mod confined;
pub mod error;
pub mod follow;
mod gate;
pub mod image;
pub mod inferior;
pub mod injected;
pub mod keeper;
pub mod kept;
#[allow(unsafe_code)]
pub mod launch;
mod load;
pub mod placement;
mod refuse;
pub mod remains;
mod rseq;
mod sandbox;
pub mod settings;
mod threads;
#[allow(unsafe_code)]
mod tracee;
mod unaided;

pub use attach::attach;
pub use error::{ExecError, StartError};
pub use image::{provide, stub_image};
pub use injected::Injected;
pub use launch::{Arguments, Launch, Stdio, launch, quote};
pub use settings::Settings;
