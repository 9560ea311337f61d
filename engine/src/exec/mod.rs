//! Performs one instruction with its memory operands redirected to the alias.
//!
//! Everything here runs inside the fault handler, on the handler's stack. A signal that arrives meanwhile
//! is handled below us on the same stack: it is recorded, and its handler returns. The rules of this
//! folder:
//! * No allocation after [`Thunks::new`], no locks, no panics (no indexing, no `unwrap`), no
//!   formatting, no thread-local storage.
//! * The bases of fs and gs are the program's, and are neither used nor changed.
//! * The stack pointer always stays the handler's, also while the program's instruction runs.
//!   With the program's stack pointer, a nested fault would make the kernel start again at the
//!   top of the alternate stack and overwrite us.
//! * State changes only when the instruction has succeeded.
//!
//! There are two methods. A *thunk* is the original instruction, its operand rewritten to one register,
//! between loads and stores of the program's registers. It keeps the CPU's own semantics, such as
//! atomicity. *Emulation* performs accesses through implicit registers: stack and strings.

mod emit;
mod emulate;
mod native;
mod sites;
#[cfg(test)]
mod tests;
mod types;

pub(crate) use emit::{can_thunk, redirected};
pub use native::FaultInfo;
pub use sites::{Site, SiteError, Thunks};
pub use types::{AliasMap, CodeArena, DataArena, Open, Outcome, Slow};
