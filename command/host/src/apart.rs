//! Reads another process's memory through a helper process.
//!
//! A page of a file may be on a file system that never answers (FUSE, a network). A process that reads it then waits in
//! the kernel, where not even SIGKILL reaches it. So a child of ours reads, and we abandon it if it hangs:
//!
//! ```text
//!   ulpf ── address, length ──▶ child ── pread(/proc/PID/mem) ─▶ kernel ─▶ the target's file system
//!    ▲ poll, with a timeout      │
//!    └──── how many bytes ◀──────┘     the bytes: in a page buffer that both have mapped
//! ```
//! The child is forked and never calls exec. Other threads of ours may have held locks, so it makes only system calls.

use crate::signals;
use crate::sys::check;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// Bytes of one read.
const PIECE: usize = 1 << 20;
/// Time limit for the answer of a file system.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of the checks for signals meanwhile.
const TURN: Duration = Duration::from_millis(100);

/// A child that reads the memory of one process, and the buffer for the bytes.
pub struct Apart {
    child: i32,
    to: UnixStream,
    buffer: Buffer,
    /// The child has not answered, and is not asked again.
    silent: bool,
}

/// Memory that child and parent share.
struct Buffer(NonNull<u8>);

impl Buffer {
    fn new() -> io::Result<Buffer> {
        // SAFETY: a fresh mapping.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PIECE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        match NonNull::new(at.cast::<u8>()) {
            Some(start) if at != libc::MAP_FAILED => Ok(Buffer(start)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: our own mapping, with no references left.
        unsafe { libc::munmap(self.0.as_ptr().cast(), PIECE) };
    }
}

impl Apart {
    /// `memory` is /proc/PID/mem, open.
    ///
    /// # Errors
    /// The kernel cannot create another process.
    pub fn new(memory: &File) -> io::Result<Apart> {
        let (ours, theirs) = UnixStream::pair()?;
        let buffer = Buffer::new()?;
        let (memory, theirs) = (memory.as_raw_fd(), theirs.as_raw_fd());
        // SAFETY: the child makes system calls only.
        let child = check(i64::from(unsafe { libc::fork() }))? as i32;
        if child == 0 {
            // SAFETY: this is that child.
            unsafe { serve(memory, theirs, buffer.0.as_ptr()) }
        }
        ours.set_read_timeout(Some(TURN))?;
        Ok(Apart {
            child,
            to: ours,
            buffer,
            silent: false,
        })
    }

    /// Reads memory at `at` as far as it is readable, and returns the number of bytes.
    ///
    /// # Errors
    /// `TimedOut`: a file system has not answered, and this reader is unusable from now on. `Interrupted`: a signal
    /// asks us to end.
    pub fn read_at(&mut self, at: u64, to: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        for part in to.chunks_mut(PIECE) {
            let n = self.piece(at.wrapping_add(done as u64), part)?;
            done += n;
            if n < part.len() {
                break;
            }
        }
        Ok(done)
    }

    fn piece(&mut self, at: u64, to: &mut [u8]) -> io::Result<usize> {
        if self.silent {
            return Err(ErrorKind::TimedOut.into());
        }
        self.silent = true;
        let mut request = [0; 16];
        request[..8].copy_from_slice(&at.to_ne_bytes());
        request[8..].copy_from_slice(&to.len().to_ne_bytes());
        self.to.write_all(&request)?;
        let end = Instant::now() + TIMEOUT;
        let mut answer = [0; 8];
        loop {
            match self.to.read(&mut answer) {
                // (The child writes the answer in one piece.)
                Ok(8) => break,
                Ok(_) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e),
                Err(_) if Instant::now() > end => return Err(ErrorKind::TimedOut.into()),
                Err(_) => {}
            }
            if signals::asked_to_end() {
                return Err(ErrorKind::Interrupted.into());
            }
        }
        self.silent = false;
        let n = usize::from_ne_bytes(answer).min(to.len()).min(PIECE);
        // SAFETY: the buffer has PIECE bytes, and the child does not write to it until the next request.
        unsafe { std::ptr::copy_nonoverlapping(self.buffer.0.as_ptr(), to.as_mut_ptr(), n) };
        Ok(n)
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        // SAFETY: an unreaped child of ours. If it waits for a file system, it ends later, as an orphan.
        unsafe {
            libc::kill(self.child, libc::SIGKILL);
            let options = if self.silent { libc::WNOHANG } else { 0 };
            libc::waitpid(self.child, std::ptr::null_mut(), options);
        }
    }
}

/// Loop of the child, until the socket closes. It keeps only these two descriptors, so that a reader of our output does
/// not wait for it.
///
/// # Safety
/// The caller is a process that was forked for this. `buffer` has [`PIECE`] bytes.
unsafe fn serve(memory: i32, socket: i32, buffer: *mut u8) -> ! {
    // SAFETY: system calls only; all that they write to is on this stack or in `buffer`.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        // Our signal handlers must not run here.
        libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        // Above all other numbers, so that neither descriptor overwrites the other.
        let socket = libc::fcntl(socket, libc::F_DUPFD, 100);
        let memory = libc::fcntl(memory, libc::F_DUPFD, socket + 1);
        libc::syscall(libc::SYS_close_range, 0, socket - 1, 0);
        libc::syscall(libc::SYS_close_range, socket + 1, memory - 1, 0);
        libc::syscall(libc::SYS_close_range, memory + 1, u32::MAX, 0);
        let mut request = [0u64; 2];
        while socket >= 0 && libc::read(socket, request.as_mut_ptr().cast(), 16) == 16 {
            let len = (request[1] as usize).min(PIECE);
            let n = libc::pread64(memory, buffer.cast(), len, request[0] as i64).max(0) as usize;
            if libc::write(socket, (&raw const n).cast(), 8) != 8 {
                break;
            }
        }
        libc::_exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_memory() {
        let memory = File::open("/proc/self/mem").unwrap();
        let mut apart = Apart::new(&memory).unwrap();
        let bytes: Vec<u8> = (0..3 * PIECE).map(|n| (n % 251) as u8).collect();
        let mut read = vec![0; bytes.len()];
        let at = bytes.as_ptr() as u64;
        assert_eq!(apart.read_at(at, &mut read).unwrap(), bytes.len());
        assert!(read == bytes);
        assert_eq!(apart.read_at(16, &mut read).unwrap(), 0);
        assert_eq!(apart.read_at(at + 1, &mut read[..5]).unwrap(), 5);
        assert_eq!(read[..5], [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_child_that_is_gone() {
        let memory = File::open("/proc/self/mem").unwrap();
        let mut apart = Apart::new(&memory).unwrap();
        // SAFETY: a child of ours.
        unsafe { libc::kill(apart.child, libc::SIGKILL) };
        let bytes = [1u8; 4];
        assert!((0..2).any(|_| apart.read_at(bytes.as_ptr() as u64, &mut [0; 4]).is_err()));
    }
}
