//! The program's signals. The kernel sees only our handlers, on our stacks. The program's settings (actions, masks,
//! alternate stacks) are kept here; we build its signal frames ourselves.
//!
//! SIGSEGV, SIGBUS, SIGTRAP, SIGSYS and the park signal are never blocked in the kernel. A guarded access, a breakpoint
//! or a dispatched system call may come at any time, and a blocked synchronous signal would kill the program.
//! `Own::hidden` has the ones that the program believes to have blocked.
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
pub mod home;
pub mod kernel;
pub mod leaving;
pub mod masks;
pub mod numbers;
pub mod raise;
pub mod sigreturn;
pub mod waiting;
