//! Credentials with which one thread opens files, and opening of files below another root.
//!
//! The C library changes the credentials of all threads at once. The system calls here change only the calling thread,
//! which [`crate::foreign::files`] has started for this purpose.

use crate::sys::check;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Capabilities that read, search or own files whatever their mode (linux/capability.h):
/// CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID, CAP_MAC_OVERRIDE.
const FILE_CAPABILITIES: u64 = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 32;

/// From now on the calling thread opens files with the rights of this user and these groups.
pub fn assume(user: u32, group: u32, groups: &[u32]) -> io::Result<()> {
    // SAFETY: the list of groups outlives the call; the other calls take only numbers. All of them change the
    // credentials of the calling thread and nothing else.
    unsafe {
        check(libc::syscall(
            libc::SYS_setgroups,
            groups.len(),
            groups.as_ptr(),
        ))?;
        // These two report no error; they return the previous value.
        for (call, number) in [(libc::SYS_setfsgid, group), (libc::SYS_setfsuid, user)] {
            libc::syscall(call, number);
            if libc::syscall(call, -1) != i64::from(number) {
                return Err(io::Error::from_raw_os_error(libc::EPERM));
            }
        }
    }
    Ok(())
}

/// Drops the calling thread's capabilities that override a file's mode.
pub fn drop_file_capabilities() -> io::Result<()> {
    /// _LINUX_CAPABILITY_VERSION_3: two words for each set.
    const VERSION: u32 = 0x2008_0522;
    let mut header = [VERSION, 0];
    // Effective, permitted, inheritable; the lower words, then the upper ones.
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: header and sets are as large as the version says, and outlive the calls; process number 0 is
    // the calling thread.
    unsafe {
        check(libc::syscall(
            libc::SYS_capget,
            header.as_mut_ptr(),
            sets.as_mut_ptr(),
        ))?;
        sets[0][0] &= !(FILE_CAPABILITIES as u32);
        sets[1][0] &= !((FILE_CAPABILITIES >> 32) as u32);
        check(libc::syscall(
            libc::SYS_capset,
            header.as_mut_ptr(),
            sets.as_ptr(),
        ))?;
    }
    Ok(())
}

/// Names the file at `path` below `root` without opening it (O_PATH). Symbolic links and `..` stay below `root`, and
/// the magic links of /proc are refused.
pub fn name_below(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    // struct open_how: flags, mode, resolve.
    let how: [u64; 3] = [
        (libc::O_PATH | libc::O_CLOEXEC) as u64,
        0,
        libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS,
    ];
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `path` is a C string and `how` is a struct open_how; the returned descriptor is new.
    unsafe {
        let fd = check(libc::syscall(
            libc::SYS_openat2,
            root.as_raw_fd(),
            path.as_ptr(),
            how.as_ptr(),
            size_of_val(&how),
        ))?;
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

/// Processor time of the calling thread.
pub fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
