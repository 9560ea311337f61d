//! A system call of the program: its arguments, errors and outcome.

use ulpf_lib::sys;

use crate::runtime::frame::UContext;

pub use ulpf_lib::sys::failure::{EFAULT, EINTR, EINVAL, ENOSYS, EPERM};
/// The call has not happened and must be made again (after a signal handler, if one is due).
pub const RESTART: i64 = -512;
/// The debugger has sent the thread elsewhere: leave the context alone.
pub const ABANDONED: i64 = -513;
pub type Args = [u64; 6];

pub fn arguments(uc: &UContext) -> Args {
    let r = &uc.gprs;
    [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9]
}

/// The outcome of a call.
pub enum Outcome {
    /// rax for the program.
    Value(i64),
    /// The context is complete as it is.
    Leave,
}

/// The bare call.
pub fn raw(nr: u64, a: &Args) -> i64 {
    // SAFETY: the program's own call with its own arguments.
    unsafe { sys::syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]) }
}
