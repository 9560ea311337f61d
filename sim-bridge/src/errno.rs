// SPDX-License-Identifier: GPL-2.0-or-later
//! What a system call of the program answers if it fails, with the sign that Linux gives it.

pub const EPERM: i64 = -1;
pub const ENOENT: i64 = -2;
pub const ESRCH: i64 = -3;
pub const EINTR: i64 = -4;
pub const EBADF: i64 = -9;
pub const ECHILD: i64 = -10;
pub const EAGAIN: i64 = -11;
pub const ENOMEM: i64 = -12;
pub const EACCES: i64 = -13;
pub const EFAULT: i64 = -14;
pub const EBUSY: i64 = -16;
pub const EINVAL: i64 = -22;
pub const ENOTTY: i64 = -25;
pub const EDEADLK: i64 = -35;
pub const ENOSYS: i64 = -38;
pub const E2BIG: i64 = -7;
pub const ENOEXEC: i64 = -8;
pub const ENXIO: i64 = -6;
pub const EPROTONOSUPPORT: i64 = -93;
pub const EOPNOTSUPP: i64 = -95;
