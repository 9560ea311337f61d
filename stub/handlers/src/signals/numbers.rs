//! Numbers and sets of signals, and the flags of their actions (signal.h).

use linux_raw_sys::general as k;
use ulpf_lib::boot::PARK_SIGNAL;
pub use ulpf_lib::sys::uapi::{SIG_DFL, SIG_IGN};

pub const SIGABRT: i32 = k::SIGABRT as i32;
pub const SIGILL: i32 = k::SIGILL as i32;
pub const SIGFPE: i32 = k::SIGFPE as i32;
pub const SIGTRAP: i32 = k::SIGTRAP as i32;
pub const SIGBUS: i32 = k::SIGBUS as i32;
pub const SIGSEGV: i32 = k::SIGSEGV as i32;
pub const SIGSYS: i32 = k::SIGSYS as i32;
pub const SIGCHLD: i32 = k::SIGCHLD as i32;
pub const SIGCONT: i32 = k::SIGCONT as i32;
pub const SIGTTIN: i32 = k::SIGTTIN as i32;
pub const SIGTTOU: i32 = k::SIGTTOU as i32;
pub const SIGSTOP: i32 = k::SIGSTOP as i32;
pub const SIGKILL: i32 = k::SIGKILL as i32;

pub const fn bit(sig: i32) -> u64 {
    1 << (sig - 1)
}
/// Never blocked in the kernel.
pub const HIDDEN: u64 = bit(SIGSEGV) | bit(SIGBUS) | bit(SIGTRAP) | bit(SIGSYS) | bit(PARK_SIGNAL);
/// Blocked while our handlers run: everything that is not synchronous.
pub const HANDLER_MASK: u64 =
    !(bit(SIGSEGV) | bit(SIGBUS) | bit(SIGTRAP) | bit(SIGSYS) | bit(SIGILL) | bit(SIGFPE));
/// Signals that cannot be blocked.
pub const UNBLOCKABLE: u64 = bit(SIGKILL) | bit(SIGSTOP);

pub const SA_NOCLDSTOP: u64 = k::SA_NOCLDSTOP as u64;
pub const SA_NOCLDWAIT: u64 = k::SA_NOCLDWAIT as u64;
pub const SA_SIGINFO: u64 = k::SA_SIGINFO as u64;
pub const SA_RESTORER: u64 = k::SA_RESTORER as u64;
pub const SA_ONSTACK: u64 = k::SA_ONSTACK as u64;
pub const SA_RESTART: u64 = k::SA_RESTART as u64;
pub const SA_NODEFER: u64 = k::SA_NODEFER as u64;
pub const SA_RESETHAND: u64 = k::SA_RESETHAND as u64;
