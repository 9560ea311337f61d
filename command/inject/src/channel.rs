//! The connection with a stub: the control channel, and the area for hits and counters.
//!
//! Both are created inside the program and fetched from there. We may inspect the program, but the program need not be
//! allowed to inspect us (another user's program, one in a container). Docker's filter in a container may forbid the
//! fetch of descriptors. The program then connects to us instead, and we open its memory file by its name in /proc.

use crate::error::StartError;
use crate::gate::Gate;
use crate::tracee::{Memory, Tracee};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use ulpf_area::shared::{self, SharedArea};
use ulpf_host::sys;

const WHAT: &str = "make a channel to the program";

/// Our ends, and the program's descriptors of the other ends. The stub copies these, and then they are closed.
pub struct Channel {
    pub control: UnixStream,
    pub shared: File,
    /// Descriptor in the program's table.
    pub theirs: i32,
    pub shared_fd: i32,
}

/// Makes system calls in the program.
struct Caller<'a> {
    t: &'a mut Tracee,
    gate: &'a Gate,
    pid: i32,
    memory: &'a Memory,
    /// Memory in the program that may be overwritten.
    scratch: u64,
}

impl Caller<'_> {
    fn call(&mut self, number: i64, [a, b, c, d]: [u64; 4]) -> io::Result<u64> {
        self.t
            .syscall(self.gate, number, [a, b, c, d, 0, 0])?
            .map_err(io::Error::from_raw_os_error)
    }

    fn close(&mut self, fd: i32) {
        // A failure cannot be handled, and does no harm.
        let _ = self.call(libc::SYS_close, [fd as u64, 0, 0, 0]);
    }

    /// Our end of a connection, and the program's descriptor.
    fn control(&mut self, process: BorrowedFd<'_>) -> io::Result<(UnixStream, i32)> {
        let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as u64;
        let pair_at = self.scratch + 2048;
        self.call(
            libc::SYS_socketpair,
            [libc::AF_UNIX as u64, kind, 0, pair_at],
        )?;
        let mut pair = [[0; 4]; 2];
        self.memory.read(pair_at, pair.as_flattened_mut())?;
        let [ours, theirs] = pair.map(i32::from_le_bytes);
        let fetched = sys::pidfd_getfd(process, ours);
        self.close(ours);
        match fetched {
            Ok(control) => Ok((control.into(), theirs)),
            Err(why) => {
                self.close(theirs);
                self.connected().map_err(|_| why)
            }
        }
    }

    /// The same, but the program connects to a socket of ours with a random name.
    fn connected(&mut self) -> io::Result<(UnixStream, i32)> {
        let name = format!("ulpf-{:016x}{:016x}", sys::random(), sys::random());
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        listener.set_nonblocking(true)?;
        let family = (libc::AF_UNIX as u16).to_le_bytes();
        let address = [&family[..], &[0], name.as_bytes()].concat();
        let address_at = self.scratch + 2048;
        self.memory.write(address_at, &address)?;
        // Non-blocking, so that another process that fills our queue does not make the program wait.
        let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u64;
        let theirs = self.call(libc::SYS_socket, [libc::AF_UNIX as u64, kind, 0, 0])?;
        let len = address.len() as u64;
        let ours = self
            .call(libc::SYS_connect, [theirs, address_at, len, 0])
            .and_then(|_| {
                let flags = libc::O_RDWR as u64;
                self.call(libc::SYS_fcntl, [theirs, libc::F_SETFL as u64, flags, 0])
            })
            .and_then(|_| accept(&listener, self.pid));
        match ours {
            Ok(ours) => Ok((ours, theirs as i32)),
            Err(why) => {
                self.close(theirs as i32);
                Err(why)
            }
        }
    }

    /// A memory file, and its descriptor in the program's table.
    fn shared(&mut self, process: BorrowedFd<'_>) -> io::Result<(File, i32)> {
        let name_at = self.scratch + 1024;
        self.memory
            .write(name_at, shared::NAME.to_bytes_with_nul())?;
        let mut made = Err(io::Error::from_raw_os_error(libc::EINVAL));
        for flags in sys::MEMFD_FLAGS {
            made = self.call(libc::SYS_memfd_create, [name_at, flags.into(), 0, 0]);
            let unknown = |e: &io::Error| e.raw_os_error() == Some(libc::EINVAL);
            if !made.as_ref().is_err_and(unknown) {
                break;
            }
        }
        let fd = made? as i32;
        match self.fetched(process, fd) {
            Ok(file) => Ok((file, fd)),
            Err(why) => {
                self.close(fd);
                Err(why)
            }
        }
    }

    fn fetched(&self, process: BorrowedFd<'_>, fd: i32) -> io::Result<File> {
        let file = sys::pidfd_getfd(process, fd)
            .map(File::from)
            .or_else(|why| {
                let name = format!("/proc/{}/fd/{fd}", self.pid);
                let opened = File::options().read(true).write(true).open(name);
                opened.map_err(|_| why)
            })?;
        // A process that shares the program's descriptors may have replaced the file meanwhile. So only a memory file
        // is changed, and `SharedArea` maps only a sealed one.
        if !sys::is_memory(&file)? {
            return Err(io::ErrorKind::InvalidData.into());
        }
        SharedArea::size(&file)?;
        Ok(file)
    }
}

/// Accepts the connection of this process among the waiting ones.
fn accept(listener: &UnixListener, pid: i32) -> io::Result<UnixStream> {
    loop {
        let (stream, _) = listener.accept()?;
        if sys::peer(&stream)?.1 == pid {
            stream.set_nonblocking(false)?;
            return Ok(stream);
        }
    }
}

impl Channel {
    /// `scratch` is a page in the program that may be overwritten.
    pub fn open(
        pid: i32,
        t: &mut Tracee,
        memory: &Memory,
        gate: &Gate,
        scratch: u64,
    ) -> Result<Channel, StartError> {
        let step = |e| StartError::step(WHAT, e);
        let process = sys::pidfd_open(pid).map_err(step)?;
        let mut caller = Caller {
            t,
            gate,
            pid,
            memory,
            scratch,
        };
        let (control, theirs) = caller.control(process.as_fd()).map_err(step)?;
        match caller.shared(process.as_fd()) {
            Ok((shared, shared_fd)) => Ok(Channel {
                control,
                shared,
                theirs,
                shared_fd,
            }),
            Err(source) => {
                caller.close(theirs);
                Err(StartError::Shared { source })
            }
        }
    }

    /// Closes the program's descriptors. A failure cannot be handled, and does no harm.
    pub fn close_in_program(&self, t: &mut Tracee, gate: &Gate) {
        for fd in [self.theirs, self.shared_fd] {
            let _ = t.syscall(gate, libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0]);
        }
    }
}
