//! Numbers and sets of signals, and the flags of their actions (signal.h).

use ulpf_lib::boot::PARK_SIGNAL;

pub const SIGTRAP: i32 = 5;
pub const SIGBUS: i32 = 7;
pub const SIGSEGV: i32 = 11;
pub const SIGSYS: i32 = 31;
pub const SIGCHLD: i32 = 17;
pub const SIGCONT: i32 = 18;
pub const SIGSTOP: i32 = 19;
pub const SIGKILL: i32 = 9;

pub const fn bit(sig: i32) -> u64 {
    1 << (sig - 1)
}
/// Never blocked in the kernel.
pub const HIDDEN: u64 = bit(SIGSEGV) | bit(SIGBUS) | bit(SIGTRAP) | bit(SIGSYS) | bit(PARK_SIGNAL);
/// Blocked while our handlers run: everything that is not synchronous.
pub const HANDLER_MASK: u64 =
    !(bit(SIGSEGV) | bit(SIGBUS) | bit(SIGTRAP) | bit(SIGSYS) | bit(4) | bit(8));
/// Cannot be blocked by anybody.
pub const UNBLOCKABLE: u64 = bit(SIGKILL) | bit(SIGSTOP);

pub const SIG_DFL: u64 = 0;
pub const SIG_IGN: u64 = 1;
pub const SA_NOCLDSTOP: u64 = 1;
pub const SA_NOCLDWAIT: u64 = 2;
pub const SA_SIGINFO: u64 = 4;
pub const SA_RESTORER: u64 = 0x0400_0000;
pub const SA_ONSTACK: u64 = 0x0800_0000;
pub const SA_RESTART: u64 = 0x1000_0000;
pub const SA_NODEFER: u64 = 0x4000_0000;
pub const SA_RESETHAND: u64 = 0x8000_0000;
