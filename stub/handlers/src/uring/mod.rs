//! io_uring of the program. The kernel reads and writes the program's memory by the addresses that stand in requests,
//! at any time and from threads of its own: guarded pages would make requests fail, and what they write would be seen
//! by nobody. So the program's rings are known here ([`rings`]); requests are changed when the program hands them to
//! the kernel ([`operands`]), and back afterwards, and noted until their completion ([`flight`]).
//!
//! ```text
//!  io_uring_enter ─▶ requests changed, noted ─▶ submitted ─▶ put back ─▶ waits, as any call ─▶ completions: hits
//! ```
//! Memory that a request in flight holds is neither moved nor given back ([`in_use`]), so that the address that the
//! kernel has got stays right.

pub mod flight;
pub mod held;
pub mod identity;
pub mod kept;
pub mod provided;
pub mod registered;
pub mod rings;
pub mod skipped;
pub mod span;
