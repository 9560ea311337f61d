//! io_uring of the program. The kernel reads and writes the program's memory by the addresses in requests, at any time
//! and from threads of its own. Guarded pages would make requests fail, and their writes would go unnoticed. So the
//! program's rings are known here ([`rings`]). Requests are rewritten when the program hands them to the kernel
//! (`syscalls/io_uring/operands.rs`), and restored afterwards; they are noted until their completion ([`flight`]).
//!
//! ```text
//!  io_uring_enter ─▶ requests changed, noted ─▶ submitted ─▶ put back ─▶ waits, as any call ─▶ completions: hits
//! ```
//! Memory that a request in flight holds is neither moved nor given back ([`queries::in_use`]), so the address that the kernel
//! has got stays valid.

pub mod flight;
pub mod identity;
pub mod kept;
pub mod provided;
pub mod queries;
pub mod registered;
pub mod rings;
pub mod skipped;
pub mod span;
