// SPDX-License-Identifier: GPL-2.0-or-later
//! System calls of this process.

use std::ffi::CStr;

/// The host's result, or its errno.
pub fn host(result: i64) -> i64 {
    match result {
        -1 => -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(5)),
        n => n,
    }
}

/// Creates a memory file that cannot be executed as a program, so that no value of sysctl
/// vm.memfd_noexec prevents it.
/// Returns -1 with errno.
pub fn memory_file(name: &CStr, flags: u32) -> i32 {
    // SAFETY: a C string.
    let create = |flags| unsafe { libc::memfd_create(name.as_ptr(), flags) };
    match create(flags | libc::MFD_NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag, and have no such setting.
        -1 if host(-1) == -i64::from(libc::EINVAL) => create(flags),
        fd => fd,
    }
}

/// Whether one of these events is there (poll(2)), after at most `ms` milliseconds.
pub fn ready(fd: i32, events: i16, ms: i32) -> bool {
    let mut p = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: one structure.
    unsafe { libc::poll(&raw mut p, 1, ms) != 0 }
}
