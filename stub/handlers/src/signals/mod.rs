//! The program's signals. The kernel only ever sees our handlers, on our stacks; what the program
//! asked for (actions, masks, alternate stacks) is kept here and honoured by building its signal
//! frames ourselves.
//!
//! SIGSEGV, SIGBUS, SIGTRAP, SIGSYS and the park signal are never blocked in the kernel: a guarded
//! access, a breakpoint or a dispatched system call may come at any time, and a blocked synchronous
//! signal would kill the program. What the program believes about them is in `Own::hidden`.
//!
//! ```text
//! kernel ─▶ entry ─▶ guarded access, system call, breakpoint, debug register: fault, syscalls, direct
//!             └────▶ raise ─▶ the library's, the debugger's (park), or delivery: the program's handler
//! program ─▶ actions, masks, alternate: what it asks for
//! ```

pub mod actions;
pub mod alternate;
pub mod delivery;
pub mod entry;
pub mod kernel;
pub mod leaving;
pub mod masks;
pub mod numbers;
pub mod raise;
pub mod sigreturn;
pub mod waiting;
