//! The system calls of the loader, each behind a safe function. All unsafe code of the loader that
//! is not ptrace (`tracee.rs`) or fork (`launch.rs`) is here.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

pub fn check(result: i64) -> io::Result<i64> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub fn memfd(name: &std::ffi::CStr, len: u64) -> io::Result<File> {
    // SAFETY: `name` is a C string; the returned descriptor is new and owned by the File.
    let file = unsafe {
        let fd = check(libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) as i64)?;
        File::from_raw_fd(fd as i32)
    };
    file.set_len(len)?;
    Ok(file)
}

/// A pidfd: becomes readable when the process has ended.
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; the returned descriptor is new (and close-on-exec).
    unsafe {
        let fd = check(libc::syscall(libc::SYS_pidfd_open, pid, 0))?;
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

pub fn pidfd_signal(fd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: a null siginfo pointer is allowed.
    check(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), signal, std::ptr::null::<u8>(), 0) })?;
    Ok(())
}

/// Sends a signal to a process. The caller knows that `pid` is its own unreaped child or a tracee.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::kill(pid, signal) } as i64)?;
    Ok(())
}

/// Reaps `pid` if it is a child of ours that has ended: its wait status.
pub fn try_reap(pid: i32) -> io::Result<Option<i32>> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let got = check(unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG | libc::__WALL) } as i64)?;
    Ok((got != 0).then_some(status))
}

/// Lets every process of the same user look into this one (yama's ptrace_scope 1 would forbid the
/// stub to fetch its two descriptors). Called around the boot only. Errors do not matter: without
/// yama the call is unknown and not needed.
pub fn allow_tracers(allow: bool) {
    const PR_SET_PTRACER_ANY: libc::c_ulong = libc::c_ulong::MAX;
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, if allow { PR_SET_PTRACER_ANY } else { 0 }, 0, 0, 0) };
}

/// Exit status from the kernel's pidfd information, which is there even for somebody else's child
/// (Linux 6.15 and later).
pub fn pidfd_exit_status(fd: BorrowedFd<'_>) -> Option<i32> {
    const PIDFD_INFO_EXIT: u64 = 1 << 3;
    #[repr(C)]
    #[derive(Default)]
    struct PidfdInfo {
        mask: u64,
        cgroup: u64,
        pid_tgid_ppid: [u32; 3],
        ids: [u32; 8],
        exit_code: i32,
    }
    // _IOWR(0xFF, 11, struct pidfd_info)
    let request = (3u64 << 30) | ((size_of::<PidfdInfo>() as u64) << 16) | (0xff << 8) | 11;
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..Default::default() };
    // SAFETY: the kernel writes at most size_of::<PidfdInfo>() bytes, the size encoded in the request.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, &mut info) };
    (result == 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
}

/// Puts process group `group` into the foreground of the terminal behind stderr, as gdbserver does;
/// returns the group that was there.
pub fn set_foreground(group: i32) -> Option<i32> {
    // SAFETY: no pointers; a stderr that is no terminal makes tcgetpgrp fail, and we leave it alone.
    unsafe {
        let old = libc::tcgetpgrp(2);
        if old < 0 {
            return None;
        }
        // A background process that changes the foreground group is stopped with SIGTTOU.
        libc::signal(libc::SIGTTOU, libc::SIG_IGN);
        libc::signal(libc::SIGTTIN, libc::SIG_IGN);
        libc::tcsetpgrp(2, group);
        Some(old)
    }
}

pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: sigaction with a null new action only reads.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    }
}

/// Waits a little longer each time; for polling a state that changes within microseconds.
pub struct Backoff(u32);

impl Backoff {
    pub fn new() -> Backoff {
        Backoff(0)
    }
    pub fn wait(&mut self) {
        self.0 += 1;
        match self.0 {
            0..=50 => std::thread::yield_now(),
            51..=200 => std::thread::sleep(Duration::from_micros(50)),
            _ => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Runs `work` with another umask. Process-wide, so only while the command starts.
pub fn with_umask<T>(mask: u32, work: impl FnOnce() -> T) -> T {
    // SAFETY: no pointers, cannot fail.
    let old = unsafe { libc::umask(mask) };
    let result = work();
    // SAFETY: as above.
    unsafe { libc::umask(old) };
    result
}

/// Ends this process by the default action of a signal, so that our parent sees what happened.
pub fn die_by(signal: i32) -> ! {
    // SAFETY: default disposition, unblocked, raised at ourselves.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::raise(signal);
        libc::_exit(128 + signal)
    }
}

/// Lets the runtime watch a descriptor for readability.
pub fn watch_readable(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: the AsyncFd owns the descriptor, so it stays open and the same while registered.
    unsafe { tokio::io::unix::AsyncFd::register_with_interest(fd, tokio::io::Interest::READABLE) }.map_err(|e| io::Error::other(e.to_string()))
}
