//! The system calls of the loader, each behind a safe function. All unsafe code of the loader is here, except that for
//! ptrace (`tracee.rs`) and fork (`launch.rs`).

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{self as rfs, MemfdFlags, SealFlags, SeekFrom};
use rustix::io::Errno;
use rustix::process::{self, Pid, PidfdFlags, PidfdGetfdFlags, Resource};
use rustix::rand::GetRandomFlags;
use rustix::termios::OptionalActions;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Converts an error of the C library: a negative result, and errno.
pub fn check(result: i64) -> io::Result<i64> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Waits up to `limit` for `events`; POLLHUP and POLLERR are always included. Returns the events, or none.
fn poll(fd: BorrowedFd<'_>, events: PollFlags, limit: Duration) -> PollFlags {
    let end = Instant::now() + limit;
    let mut polled = [PollFd::from_borrowed_fd(fd, events)];
    loop {
        let left = Timespec::try_from(end.saturating_duration_since(Instant::now())).ok();
        match rustix::event::poll(&mut polled, left.as_ref()) {
            // A signal to this process: a child has stopped.
            Err(Errno::INTR) => {}
            Ok(1..) => return polled[0].revents(),
            _ => return PollFlags::empty(),
        }
    }
}

/// Flags of memfd_create(2) for a file that takes seals, in the order of the attempts. The file is never executed, and
/// sysctl vm.memfd_noexec may insist that it is not executable. Kernels before 6.3 answer that flag with EINVAL.
pub const MEMFD_FLAGS: [u32; 2] = [
    libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_NOEXEC_SEAL,
    libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
];

/// A new memory file that takes seals.
pub fn memfd(name: &std::ffi::CStr) -> io::Result<File> {
    let [first, second] = MEMFD_FLAGS.map(MemfdFlags::from_bits_retain);
    let made = match rfs::memfd_create(name, first) {
        Err(Errno::INVAL) => rfs::memfd_create(name, second),
        made => made,
    };
    Ok(made?.into())
}

/// Seals of a memory file that two sides map: a side that could shrink it would kill the other with SIGBUS.
const SEALED: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

/// Fixes the length of the file.
pub fn seal(file: &File) -> io::Result<()> {
    Ok(rfs::fcntl_add_seals(file, SEALED)?)
}

/// Whether the file is memory (no user's file system serves its pages), has this length, and is sealed against changes
/// of it.
pub fn is_sealed_memory(file: &File, len: u64) -> io::Result<bool> {
    // Files that know no seals answer EINVAL.
    let sealed = rfs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALED));
    // The length last: it may change until the seals are there.
    Ok(sealed && is_memory(file)? && file.metadata()?.len() == len)
}

/// Whether it is a regular file of the kernel's memory file system, with pages of the usual size.
pub fn is_memory(file: &File) -> io::Result<bool> {
    // (The type differs between C libraries.)
    let is_tmpfs = i128::from(rfs::fstatfs(file)?.f_type) == i128::from(libc::TMPFS_MAGIC);
    Ok(is_tmpfs && file.metadata()?.is_file())
}

/// Opens a name of any kind of file (O_PATH): this reads nothing, never blocks, and calls no driver.
pub fn open_path(path: &std::path::Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    options.read(true).custom_flags(libc::O_PATH).open(path)
}

/// Unpredictable bytes.
pub fn random() -> u64 {
    let mut number = [0; 8];
    // (Such a small request never comes back short.)
    let _ = rustix::rand::getrandom(&mut number, GetRandomFlags::empty());
    u64::from_ne_bytes(number)
}

/// The time-stamp counter, in which the stub writes the times of hits.
pub fn tsc() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux leaves it to user programs.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Sets a file's length; fails with EFBIG beyond the limit on file size.
pub fn set_len(file: &File, len: u64) -> io::Result<()> {
    // Otherwise SIGXFSZ would kill us.
    // SAFETY: no handler, only a disposition; programs get the default back (see `launch`).
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    file.set_len(len)
}

/// A copy of another process's descriptor. Needs the right to trace that process.
pub fn pidfd_getfd(process: BorrowedFd<'_>, fd: i32) -> io::Result<OwnedFd> {
    Ok(process::pidfd_getfd(process, fd, PidfdGetfdFlags::empty())?)
}

/// A pidfd: it becomes readable when the process has ended.
pub fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // (`from_raw` panics at a negative number, and some come from a watched program.)
    let named = Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw);
    let pid = named.ok_or(Errno::SRCH)?;
    Ok(process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Sends a signal to the process of `fd`.
pub fn pidfd_signal(fd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    // SAFETY: a null siginfo pointer is allowed.
    check(unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            fd.as_raw_fd(),
            signal,
            std::ptr::null::<u8>(),
            0,
        )
    })?;
    Ok(())
}

/// Whether the process of `fd` has ended (it may be a zombie).
pub fn has_ended(fd: BorrowedFd<'_>) -> bool {
    !poll(fd, PollFlags::IN, Duration::ZERO).is_empty()
}

/// Sends a signal to a process. The caller knows that `pid` is its own unreaped child or a tracee.
pub fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::kill(pid, signal) } as i64)?;
    Ok(())
}

/// Sends a signal to one thread.
pub fn kill_thread(pid: i32, tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: plain call.
    check(unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, signal) }).map(drop)
}

/// The number of the calling thread.
pub fn thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Reaps `pid` if it is a child of ours that has ended, and returns its wait status.
pub fn try_reap(pid: i32) -> io::Result<Option<i32>> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let got =
        check(unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG | libc::__WALL) } as i64)?;
    Ok((got != 0).then_some(status))
}

/// Whether the file has capabilities (setcap).
pub fn has_capabilities(file: &std::path::Path) -> bool {
    rfs::getxattr_query(file, c"security.capability").is_ok_and(|size| size > 0)
}

/// The wait status of a child of ours that has ended. It is not reaped.
pub fn ended(pid: i32) -> io::Result<Option<i32>> {
    let info = wait_info(pid, libc::WEXITED | libc::WNOWAIT)?;
    Ok(info.and_then(|(code, status)| match code {
        libc::CLD_EXITED => Some((status & 0xff) << 8),
        libc::CLD_KILLED => Some(status),
        libc::CLD_DUMPED => Some(status | 0x80),
        // Stopped tracees are reported as well.
        _ => None,
    }))
}

/// The wait status of the next stop of a tracee; never its end.
pub fn try_stop(tid: i32) -> io::Result<Option<i32>> {
    let info = wait_info(tid, libc::WSTOPPED)?;
    Ok(info.map(|(_, status)| status << 8 | 0x7f))
}

/// Calls waitid(2) without waiting: `si_code` and `si_status`.
fn wait_info(pid: i32, what: i32) -> io::Result<Option<(i32, i32)>> {
    let flags = what | libc::WNOHANG | libc::__WALL;
    // SAFETY: all-zero is a valid siginfo_t, and it outlives the call, which fills in what is read.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        check(libc::waitid(libc::P_PID, pid as u32, &mut info, flags) as i64)?;
        Ok((info.si_pid() != 0).then(|| (info.si_code, info.si_status())))
    }
}

/// Lets the kernel detect that the peer's machine has vanished.
pub fn keep_alive(socket: &impl AsFd) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_socket_keepalive(socket, true)?)
}

/// Waits until the other end is closed; bytes that it sent before may remain to be read.
pub fn wait_for_hangup(socket: &impl AsFd, limit: Duration) -> bool {
    !poll(socket.as_fd(), PollFlags::RDHUP, limit).is_empty()
}

/// Whether the other end of this device is closed: of a port of virtio-serial, or of a terminal.
pub fn is_hung_up(device: &impl AsFd) -> bool {
    poll(device.as_fd(), PollFlags::empty(), Duration::ZERO).contains(PollFlags::HUP)
}

/// Registers a file so that a task can wait for it.
pub fn ready_or_not(file: File) -> io::Result<tokio::io::unix::AsyncFd<File>> {
    // SAFETY: a File owns its descriptor, keeps it to its end, and always names the same one.
    unsafe { tokio::io::unix::AsyncFd::register(file) }.map_err(io::Error::from)
}

/// Makes a serial line pass our bytes unchanged. Other devices do so anyway.
pub fn make_raw(device: &impl AsFd) {
    if let Ok(mut settings) = rustix::termios::tcgetattr(device) {
        settings.make_raw();
        let _ = rustix::termios::tcsetattr(device, OptionalActions::Now, &settings);
    }
}

/// Exit status from the kernel's pidfd information, which is available even for another process's child (Linux 6.15 and
/// later).
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
    let mut info = PidfdInfo {
        mask: PIDFD_INFO_EXIT,
        ..Default::default()
    };
    // SAFETY: the kernel writes at most size_of::<PidfdInfo>() bytes, the size encoded in the request.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as libc::Ioctl, &mut info) };
    (result == 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
}

/// Puts process group `group` into the foreground of the terminal behind stderr, as gdbserver does, and returns the
/// previous group.
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

/// Whether our parent or we have set the signal to be ignored.
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: sigaction with a null new action only reads.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut old) == 0
            && old.sa_sigaction == libc::SIG_IGN
    }
}

/// Waits a little longer each time; for polling a state that changes within microseconds.
#[derive(Default)]
pub struct Backoff(u32);

impl Backoff {
    /// Sleeps, longer each time.
    pub fn wait(&mut self) {
        self.0 += 1;
        match self.0 {
            0..=50 => std::thread::yield_now(),
            51..=200 => std::thread::sleep(Duration::from_micros(50)),
            _ => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// Ends this process by the default action of a signal, so that our parent sees the reason.
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

/// Lets the kernel end this process (SIGVTALRM) after it has used this much more processor time; zero cancels that.
pub fn end_after(time: Duration) -> io::Result<()> {
    let zero = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let timer = libc::itimerval {
        it_interval: zero,
        it_value: libc::timeval {
            tv_sec: time.as_secs() as i64,
            tv_usec: i64::from(time.subsec_micros()),
        },
    };
    // SAFETY: the signal ends the process, whatever it inherited; the timer's setting outlives the call.
    let result = unsafe {
        libc::signal(libc::SIGVTALRM, libc::SIG_DFL);
        libc::setitimer(libc::ITIMER_VIRTUAL, &timer, std::ptr::null_mut())
    };
    check(result.into()).map(drop)
}

/// Lets the runtime watch a descriptor for readability.
pub fn watch_readable(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: the AsyncFd owns the descriptor, so it stays open and the same while registered.
    unsafe { tokio::io::unix::AsyncFd::register_with_interest(fd, tokio::io::Interest::READABLE) }
        .map_err(|e| io::Error::other(e.to_string()))
}

/// Whether two processes run in one address space. False if the kernel does not tell.
pub fn same_memory(a: i32, b: i32) -> bool {
    const KCMP_VM: i32 = 1;
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_VM, 0, 0) == 0 }
}

/// The parent of this user namespace, and the owner of this one.
pub fn outer_user_namespace(space: BorrowedFd<'_>) -> (io::Result<OwnedFd>, io::Result<u32>) {
    // linux/nsfs.h
    const NS_GET_PARENT: u64 = 0xb702;
    const NS_GET_OWNER_UID: u64 = 0xb704;
    let mut owner = 0u32;
    // SAFETY: the first call takes no pointer, and its descriptor is new; the second one writes a number.
    unsafe {
        let outer = libc::ioctl(space.as_raw_fd(), NS_GET_PARENT as libc::Ioctl, 0);
        let outer = check(outer.into()).map(|fd| OwnedFd::from_raw_fd(fd as i32));
        let result = libc::ioctl(
            space.as_raw_fd(),
            NS_GET_OWNER_UID as libc::Ioctl,
            &raw mut owner,
        );
        (outer, check(result.into()).map(|_| owner))
    }
}

/// State of a child of ours.
pub enum ChildState {
    Running,
    /// Wait status.
    Ended(i32),
    /// Stopped by this signal.
    Stopped(i32),
}

/// The change of a child's state since the last call.
pub fn child_state(pid: i32) -> io::Result<ChildState> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let got =
        check(unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG | libc::WUNTRACED) } as i64)?;
    Ok(match got {
        0 => ChildState::Running,
        _ if libc::WIFSTOPPED(status) => ChildState::Stopped(libc::WSTOPSIG(status)),
        _ => ChildState::Ended(status),
    })
}

/// The foreground process group of the terminal behind stderr.
pub fn foreground_group() -> Option<i32> {
    // SAFETY: no pointers.
    let group = unsafe { libc::tcgetpgrp(2) };
    (group >= 0).then_some(group)
}

/// Stops this process until it is continued, as Ctrl-Z does.
pub fn stop_here() {
    // SAFETY: SIGSTOP cannot be caught; execution goes on after SIGCONT.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Our process group.
pub fn own_group() -> i32 {
    process::getpgrp().as_raw_nonzero().get()
}

/// Our effective user.
pub fn user() -> u32 {
    process::geteuid().as_raw()
}

/// User and process at the other end.
pub fn peer(stream: &std::os::unix::net::UnixStream) -> io::Result<(u32, i32)> {
    let mut who = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `who` has room for `len` bytes and outlives the call.
    check(unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut len,
        )
    } as i64)?;
    Ok((who.uid, who.pid))
}

/// Whether our effective user is root.
pub fn is_root() -> bool {
    process::geteuid().is_root()
}

/// Appends the ranges of a file's data between its holes.
pub fn data_within(file: &File, all: Range<u64>, to: &mut Vec<Range<u64>>) -> io::Result<()> {
    let seek = |to| match rfs::seek(file, to) {
        Ok(found) => Ok(Some(found)),
        // Only a hole follows.
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(io::Error::from(error)),
    };
    let mut at = all.start;
    while at < all.end
        && let Some(start) = seek(SeekFrom::Data(at))?
        && start < all.end
    {
        let end = seek(SeekFrom::Hole(start))?.map_or(all.end, |end| end.min(all.end));
        to.push(start..end);
        at = end;
    }
    Ok(())
}

/// RLIMIT_AS in bytes, if there is one.
pub fn address_space_limit() -> Option<u64> {
    process::getrlimit(Resource::As).current
}

/// Probes for kernel features.
pub mod probe {
    use super::*;
    use ulpf_lib::perf::Event;
    use ulpf_lib::{TargetAddr, WatchKind, WatchRange};

    /// Memory files.
    pub fn memfd() -> io::Result<()> {
        super::memfd(c"ulpf-probe").map(drop)
    }

    /// Syscall user dispatch (Linux 5.11).
    pub fn user_dispatch() -> io::Result<()> {
        const PR_SET_SYSCALL_USER_DISPATCH: i32 = 59;
        // Off needs no state and fails with EINVAL where the option is unknown.
        // SAFETY: no pointers.
        check(unsafe { libc::prctl(PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0) } as i64).map(drop)
    }

    /// Copies of another process's descriptors (Linux 5.6).
    pub fn pidfd_getfd() -> io::Result<()> {
        let me = pidfd_open(std::process::id() as i32)?;
        super::pidfd_getfd(me.as_fd(), me.as_raw_fd()).map(drop)
    }

    /// A traced child.
    pub fn ptrace() -> io::Result<()> {
        // SAFETY: the child only makes system calls.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: as above; `_exit` does not return.
            unsafe {
                libc::_exit(if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) < 0 {
                    *libc::__errno_location()
                } else {
                    0
                })
            }
        }
        check(pid as i64)?;
        let mut status = 0;
        // SAFETY: `status` outlives the call; `pid` is our child.
        while check(unsafe { libc::waitpid(pid, &mut status, 0) }.into())
            .is_err_and(|e| e.kind() == io::ErrorKind::Interrupted)
        {}
        match libc::WEXITSTATUS(status) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Number of debug registers that are available at once, and the error that limits it.
    pub fn debug_registers() -> (usize, Option<io::Error>) {
        let mut held = Vec::new();
        loop {
            match debug_register() {
                Ok(fd) if held.len() < 8 => held.push(fd),
                Ok(_) => return (held.len(), None),
                Err(e) => return (held.len(), Some(e)),
            }
        }
    }

    fn debug_register() -> io::Result<OwnedFd> {
        static VARIABLE: u64 = 0;
        let range = WatchRange::new(TargetAddr(&raw const VARIABLE as u64), 8);
        let range = range.ok_or(io::ErrorKind::InvalidInput)?;
        let event = Event::breakpoint(range, WatchKind::Write, 0).disabled();
        let fd = event
            .open(0)
            .map_err(|e| io::Error::from_raw_os_error(e.0))?;
        // SAFETY: the descriptor is new, and owned at once.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Memory protection keys, of the processor and the kernel.
    pub fn protection_key() -> io::Result<()> {
        // SAFETY: no pointers.
        unsafe {
            let key = check(libc::syscall(libc::SYS_pkey_alloc, 0, 0))?;
            libc::syscall(libc::SYS_pkey_free, key);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::*};

    extern "C" fn nothing(_: i32) {}

    /// Every stopping tracee interrupts its tracer by such a signal.
    #[test]
    fn a_signal_is_no_end_of_a_process() {
        let handler = nothing as extern "C" fn(i32) as libc::sighandler_t;
        // SAFETY: a handler that does nothing, for a signal with no other use; the thread asks for its own number.
        let me = unsafe {
            libc::signal(libc::SIGURG, handler);
            libc::pthread_self()
        };
        let own = pidfd_open(std::process::id() as i32).unwrap();
        let over = AtomicBool::new(false);
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    // SAFETY: the thread waits for this one.
                    unsafe { libc::pthread_kill(me, libc::SIGURG) };
                }
            });
            let ended = (0..20_000).filter(|_| has_ended(own.as_fd())).count();
            over.store(true, Relaxed);
            ended
        });
        assert_eq!(ended, 0);
    }
}
