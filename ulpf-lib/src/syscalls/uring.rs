//! Requests of io_uring by their operation; hits name them in place of the system call.

use super::row::{Len, Role};

/// Number of operation 0, NOP. No system call has such a number.
pub const FIRST: u64 = 1 << 16;

/// The memory of which the hit is a part, and its length.
pub(super) const ROLES: &[Role] = &[Role::OutRet(Len::Arg(1)), Role::Uint];

/// In the order of enum io_uring_op (include/uapi/linux/io_uring.h).
const NAMES: &[&str] = &[
    "io_uring nop",
    "io_uring readv",
    "io_uring writev",
    "io_uring fsync",
    "io_uring read_fixed",
    "io_uring write_fixed",
    "io_uring poll_add",
    "io_uring poll_remove",
    "io_uring sync_file_range",
    "io_uring sendmsg",
    "io_uring recvmsg",
    "io_uring timeout",
    "io_uring timeout_remove",
    "io_uring accept",
    "io_uring async_cancel",
    "io_uring link_timeout",
    "io_uring connect",
    "io_uring fallocate",
    "io_uring openat",
    "io_uring close",
    "io_uring files_update",
    "io_uring statx",
    "io_uring read",
    "io_uring write",
    "io_uring fadvise",
    "io_uring madvise",
    "io_uring send",
    "io_uring recv",
    "io_uring openat2",
    "io_uring epoll_ctl",
    "io_uring splice",
    "io_uring provide_buffers",
    "io_uring remove_buffers",
    "io_uring tee",
    "io_uring shutdown",
    "io_uring renameat",
    "io_uring unlinkat",
    "io_uring mkdirat",
    "io_uring symlinkat",
    "io_uring linkat",
    "io_uring msg_ring",
    "io_uring fsetxattr",
    "io_uring setxattr",
    "io_uring fgetxattr",
    "io_uring getxattr",
    "io_uring socket",
    "io_uring uring_cmd",
    "io_uring send_zc",
    "io_uring sendmsg_zc",
    "io_uring read_multishot",
    "io_uring waitid",
    "io_uring futex_wait",
    "io_uring futex_wake",
    "io_uring futex_waitv",
    "io_uring fixed_fd_install",
    "io_uring ftruncate",
    "io_uring bind",
    "io_uring listen",
    "io_uring recv_zc",
    "io_uring epoll_wait",
    "io_uring readv_fixed",
    "io_uring writev_fixed",
    "io_uring pipe",
];

/// The name of a request's operation.
pub(super) fn name(number: u64) -> Option<&'static str> {
    let operation = number.checked_sub(FIRST).filter(|n| *n <= u8::MAX.into())?;
    Some(NAMES.get(operation as usize).copied().unwrap_or("io_uring"))
}
