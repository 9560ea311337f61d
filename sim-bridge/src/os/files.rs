// SPDX-License-Identifier: GPL-2.0-or-later
//! Descriptors: those of this process, and the device's.

use super::File;
use super::numbers::*;
use crate::device::{calls as device, events};
use crate::errno::{EACCES, EBADF, EBUSY, EFAULT, EINTR, EINVAL, ENOENT, ENOMEM, ENOTTY};
use crate::host::{host, memory_file, ready};
use crate::memory::PAGE;
use crate::processes::calls as processes;
use crate::state::{State, Uc};
use crate::threads::{Later, Wait};
use crate::user_memory::{read_bytes, string, word, write_bytes};
use std::ffi::CString;

fn fd(s: &State, n: u64) -> Result<i32, i64> {
    match s.os.files.get(&n) {
        Some(File::Host(fd)) => Ok(*fd),
        Some(File::Ulpf(_) | File::Kept) => Err(EINVAL),
        None => Err(EBADF),
    }
}

pub fn call(uc: &mut Uc, s: &mut State, number: u64, a: &[u64; 6]) -> Option<Result<i64, i64>> {
    Some(match number {
        SYS_read | SYS_pread64 | SYS_readv => read(uc, s, number, a),
        SYS_write | SYS_pwrite64 | SYS_writev => write(uc, s, number, a),
        SYS_open => open(uc, s, libc::AT_FDCWD, a[0], a[1], a[2]),
        SYS_openat => open(uc, s, a[0] as i32, a[1], a[2], a[3]),
        SYS_close => close(s, a[0]),
        SYS_fstat | SYS_newfstatat => stat(uc, s, number, a),
        SYS_poll | SYS_ppoll => poll(uc, s, number, a),
        SYS_lseek => fd(s, a[0]).map(|fd| {
            // SAFETY: no memory is involved.
            host(unsafe { libc::lseek(fd, a[1] as i64, a[2] as i32) })
        }),
        SYS_ioctl => match s.os.files.get(&a[0]) {
            Some(&File::Ulpf(id)) => Ok(device::ioctl(uc, s, id, a[1], a[2])),
            Some(_) => Err(ENOTTY),
            None => Err(EBADF),
        },
        SYS_access => access(uc, s, libc::AT_FDCWD, a[0], a[1]),
        SYS_faccessat | SYS_faccessat2 => access(uc, s, a[0] as i32, a[1], a[2]),
        SYS_pipe | SYS_pipe2 => pipe(uc, s, a[0], if number == SYS_pipe { 0 } else { a[1] }),
        SYS_dup | SYS_dup2 | SYS_dup3 => duplicate(s, number, a),
        SYS_fcntl => control(s, a),
        SYS_ftruncate => fd(s, a[0]).map(|fd| {
            // SAFETY: no memory is involved.
            host(unsafe { libc::ftruncate(fd, a[1] as i64) }.into())
        }),
        SYS_fallocate => fd(s, a[0]).map(|fd| {
            // SAFETY: no memory is involved.
            host(unsafe { libc::fallocate(fd, a[1] as i32, a[2] as i64, a[3] as i64) }.into())
        }),
        SYS_memfd_create => string(uc, a[0]).map(|name| {
            // Whether it may be executed is the program's to say.
            let known = libc::MFD_ALLOW_SEALING | libc::MFD_NOEXEC_SEAL | libc::MFD_EXEC;
            let flags = libc::MFD_CLOEXEC | a[1] as u32 & known;
            // SAFETY: a C string of ours.
            match host(unsafe { libc::memfd_create(name.as_ptr(), flags) }.into()) {
                fd @ 0.. => {
                    let n = s.os.add(File::Host(fd as i32));
                    with_flags(s, n, a[1] as u32 & libc::MFD_CLOEXEC != 0) as i64
                }
                error => error,
            }
        }),
        SYS_unlink => string(uc, a[0]).map(|path| {
            // SAFETY: a C string of ours.
            host(unsafe { libc::unlink(path.as_ptr()) }.into())
        }),
        SYS_readlink | SYS_readlinkat => Err(ENOENT),
        _ => return None,
    })
}

/// Whether a host's call would wait. Then the thread waits, and makes the call again.
fn waits(s: &mut State, fd: i32, events: i16) -> Option<Result<i64, i64>> {
    // SAFETY: no memory is involved.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags & libc::O_NONBLOCK != 0 || ready(fd, events, 0) {
        return None;
    }
    if processes::interrupted(s) {
        return Some(Err(EINTR));
    }
    Some(s.later(Later::Again(Wait::File {
        fd,
        events,
        deadline: None,
    })))
}

/// The pieces of a vector: address and length.
fn vector(uc: &Uc, s: &mut State, at: u64, count: u64) -> Result<Vec<(u64, u64)>, i64> {
    let bytes = read_bytes(uc, s, at, count.min(1024) * 16)?;
    Ok(bytes
        .chunks_exact(16)
        .map(|v| (word(v, 0), word(v, 8).min(1 << 24)))
        .collect())
}

/// process_vm_readv and process_vm_writev of the program's own memory.
pub fn own_memory(uc: &mut Uc, s: &mut State, number: u64, a: &[u64; 6]) -> Result<i64, i64> {
    let (local, remote) = (vector(uc, s, a[1], a[2])?, vector(uc, s, a[3], a[4])?);
    let (from, to) = match number {
        SYS_process_vm_readv => (remote, local),
        _ => (local, remote),
    };
    let mut bytes = vec![];
    for (at, len) in from {
        bytes.extend(read_bytes(uc, s, at, len)?);
    }
    let mut done = 0;
    for (at, len) in to {
        let part = &bytes[done..bytes.len().min(done + len as usize)];
        match write_bytes(uc, s, at, part) {
            Err(_) if done > 0 => break,
            other => other?,
        }
        done += part.len();
    }
    Ok(done as i64)
}

fn read(uc: &mut Uc, s: &mut State, number: u64, a: &[u64; 6]) -> Result<i64, i64> {
    if let Some(&File::Ulpf(id)) = s.os.files.get(&a[0]) {
        return events::read(uc, s, id, a[1], a[2]);
    }
    let fd = fd(s, a[0])?;
    if let Some(result) = waits(s, fd, libc::POLLIN) {
        return result;
    }
    let places = match number {
        SYS_readv => vector(uc, s, a[1], a[2])?,
        _ => vec![(a[1], a[2].min(1 << 20))],
    };
    let total: u64 = places.iter().map(|p| p.1).sum();
    // As the kernel: what cannot be stored is not taken from the file.
    if places
        .iter()
        .any(|&(at, len)| len > 0 && (!s.space.permits(at, len, 2) || s.refuses(uc, at, len)))
    {
        return Err(EFAULT);
    }
    let mut buffer = vec![0u8; total.min(1 << 24) as usize];
    // SAFETY: the buffer is as large as we say.
    let n = host(unsafe {
        match number {
            SYS_pread64 => libc::pread(fd, buffer.as_mut_ptr().cast(), buffer.len(), a[3] as i64),
            _ => libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()),
        }
    } as i64);
    let mut rest = &buffer[..n.max(0) as usize];
    let mut done = 0;
    for (mut at, len) in places {
        let (mut part, behind) = rest.split_at((len as usize).min(rest.len()));
        // A page that stops it ends it short, with what has been done.
        while !part.is_empty() {
            let here = part.len().min((PAGE - at % PAGE) as usize);
            match write_bytes(uc, s, at, &part[..here]) {
                Err(_) if done > 0 => return Ok(done),
                other => other?,
            }
            done += here as i64;
            at += here as u64;
            part = &part[here..];
        }
        rest = behind;
    }
    Ok(n)
}

fn write(uc: &mut Uc, s: &mut State, number: u64, a: &[u64; 6]) -> Result<i64, i64> {
    let places = match number {
        SYS_writev => vector(uc, s, a[1], a[2])?,
        _ => vec![(a[1], a[2].min(1 << 24))],
    };
    if s.os.files.get(&a[0]) == Some(&File::Kept) {
        let mut total = 0;
        for (at, len) in places {
            let bytes = read_bytes(uc, s, at, len)?;
            total += bytes.len() as i64;
            s.os.kept.extend(&bytes);
        }
        return Ok(total);
    }
    let fd = fd(s, a[0])?;
    if let Some(result) = waits(s, fd, libc::POLLOUT) {
        return result;
    }
    let mut bytes = vec![];
    for (at, len) in places {
        bytes.extend(read_bytes(uc, s, at, len)?);
    }
    // SAFETY: the slice is valid for its length.
    Ok(host(unsafe {
        match number {
            SYS_pwrite64 => libc::pwrite(fd, bytes.as_ptr().cast(), bytes.len(), a[3] as i64),
            _ => libc::write(fd, bytes.as_ptr().cast(), bytes.len()),
        }
    } as i64))
}

fn close(s: &mut State, n: u64) -> Result<i64, i64> {
    match s.os.files.remove(&n) {
        // SAFETY: the descriptor is the program's, and no longer known to it.
        Some(File::Host(fd)) if fd > 2 => Ok(host(unsafe { libc::close(fd) }.into())),
        Some(File::Ulpf(_)) => {
            s.release_device();
            Ok(0)
        }
        Some(_) => Ok(0),
        None => Err(EBADF),
    }
}

fn with_flags(s: &mut State, n: u64, close_on_exec: bool) -> u64 {
    match close_on_exec {
        true => s.os.closing.insert(n),
        false => s.os.closing.remove(&n),
    };
    n
}

fn pipe(uc: &mut Uc, s: &mut State, to: u64, flags: u64) -> Result<i64, i64> {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors.
    let result =
        host(unsafe { libc::pipe2(fds.as_mut_ptr(), flags as i32 | libc::O_CLOEXEC) }.into());
    if result < 0 {
        return Ok(result);
    }
    let closes = flags as i32 & libc::O_CLOEXEC != 0;
    let numbers = fds.map(|fd| {
        let n = s.os.add(File::Host(fd));
        with_flags(s, n, closes) as u32
    });
    write_bytes(uc, s, to, &numbers.map(u32::to_le_bytes).concat())?;
    Ok(0)
}

fn copy(file: File) -> Result<File, i64> {
    match file {
        File::Host(fd) => {
            // SAFETY: no memory is involved.
            let new = host(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) }.into());
            if new < 0 {
                Err(new)
            } else {
                Ok(File::Host(new as i32))
            }
        }
        other => Ok(other),
    }
}

fn duplicate(s: &mut State, number: u64, a: &[u64; 6]) -> Result<i64, i64> {
    let file = *s.os.files.get(&a[0]).ok_or(EBADF)?;
    if number == SYS_dup {
        let new = copy(file)?;
        return Ok(s.os.add(new) as i64);
    }
    match (a[0] == a[1], number) {
        (true, SYS_dup2) => return Ok(a[1] as i64),
        (true, _) => return Err(EINVAL),
        _ if a[1] > 1 << 20 => return Err(EBADF),
        _ => {}
    }
    let new = copy(file)?;
    let _ = close(s, a[1]);
    s.os.files.insert(a[1], new);
    with_flags(
        s,
        a[1],
        number == SYS_dup3 && a[2] as i32 & libc::O_CLOEXEC != 0,
    );
    Ok(a[1] as i64)
}

fn control(s: &mut State, a: &[u64; 6]) -> Result<i64, i64> {
    let file = *s.os.files.get(&a[0]).ok_or(EBADF)?;
    match (file, a[1] as i32) {
        (_, how @ (libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)) => {
            let new = copy(file)?;
            let n = s.os.add_from(new, a[2]);
            Ok(with_flags(s, n, how == libc::F_DUPFD_CLOEXEC) as i64)
        }
        (_, libc::F_GETFD) => Ok(s.os.closing.contains(&a[0]).into()),
        (_, libc::F_SETFD) => {
            with_flags(s, a[0], a[2] as i32 & libc::FD_CLOEXEC != 0);
            Ok(0)
        }
        (File::Ulpf(id), libc::F_GETFL) => {
            let nonblocking = i32::from(s.device.of(id).nonblocking) * libc::O_NONBLOCK;
            Ok((libc::O_RDWR | nonblocking).into())
        }
        (File::Ulpf(id), libc::F_SETFL) => {
            s.device.of(id).nonblocking = a[2] as i32 & libc::O_NONBLOCK != 0;
            Ok(0)
        }
        (File::Host(fd), libc::F_GETFL | libc::F_SETFL) => {
            // SAFETY: no memory is involved.
            Ok(host(unsafe { libc::fcntl(fd, a[1] as i32, a[2]) }.into()))
        }
        (File::Kept, _) => Ok(0),
        _ => {
            s.fail(format!("fcntl command {}", a[1]));
            Err(EINVAL)
        }
    }
}

/// poll and ppoll; masks of the latter are left alone, since nothing comes between.
fn poll(uc: &mut Uc, s: &mut State, number: u64, a: &[u64; 6]) -> Result<i64, i64> {
    let span = match number {
        SYS_poll if (a[2] as i32) < 0 => None,
        SYS_poll => Some(a[2] * 1_000_000),
        _ if a[2] == 0 => None,
        _ => Some(super::time::span(uc, s, a[2])?),
    };
    let mut all = read_bytes(uc, s, a[0], a[1].min(1024) * 8)?;
    let mut found = 0;
    let mut first = None;
    for p in all.chunks_exact_mut(8) {
        let n = i32::from_le_bytes([p[0], p[1], p[2], p[3]]);
        let events = i16::from_le_bytes([p[4], p[5]]);
        let seen = match s.os.files.get(&(n as u64)) {
            _ if n < 0 => 0,
            None => libc::POLLNVAL,
            Some(&File::Ulpf(id)) => {
                events::polled(s, id) & (events | libc::POLLHUP | libc::POLLERR)
            }
            Some(File::Kept) => events & libc::POLLOUT,
            Some(File::Host(fd)) => {
                let mut q = libc::pollfd {
                    fd: *fd,
                    events,
                    revents: 0,
                };
                first = first.or(Some((*fd, events)));
                // SAFETY: one structure.
                unsafe { libc::poll(&raw mut q, 1, 0) };
                q.revents
            }
        };
        p[6..8].copy_from_slice(&seen.to_le_bytes());
        found += i64::from(seen != 0);
    }
    let now = s.now();
    let deadline = span.map(|span| *s.since.get_or_insert(now) + span);
    if found > 0 || deadline.is_some_and(|d| d <= now) {
        write_bytes(uc, s, a[0], &all)?;
        return Ok(found);
    }
    if processes::interrupted(s) {
        return Err(EINTR);
    }
    let (fd, events) = match first {
        Some(first) if all.len() == 8 => first,
        // Several, or the device: looked at again and again.
        _ => {
            let look = deadline.unwrap_or(u64::MAX).min(now + 1_000_000);
            return s.later(Later::Again(Wait::File {
                fd: -1,
                events: 0,
                deadline: Some(look),
            }));
        }
    };
    s.later(Later::Again(Wait::File {
        fd,
        events,
        deadline,
    }))
}

fn access(uc: &Uc, s: &State, dir: i32, path: u64, mode: u64) -> Result<i64, i64> {
    let path = string(uc, path)?;
    let dir = folder(s, dir, &path)?;
    // SAFETY: the path is a C string of ours.
    Ok(host(
        unsafe { libc::faccessat(dir, path.as_ptr(), mode as i32, 0) }.into(),
    ))
}

fn folder(s: &State, dir: i32, path: &CString) -> Result<i32, i64> {
    match s.os.files.get(&(dir as u64)) {
        Some(File::Host(fd)) => Ok(*fd),
        _ if dir == libc::AT_FDCWD || path.as_bytes().starts_with(b"/") => Ok(libc::AT_FDCWD),
        _ => Err(EBADF),
    }
}

/// A file that is nowhere, with this in it.
fn in_memory(bytes: &[u8]) -> Result<i32, i64> {
    // SAFETY: a new descriptor; the slice is valid for its length.
    unsafe {
        let fd = memory_file(c"ulpf-sim", libc::MFD_CLOEXEC);
        if fd < 0 || libc::pwrite(fd, bytes.as_ptr().cast(), bytes.len(), 0) != bytes.len() as isize
        {
            return Err(ENOMEM);
        }
        Ok(fd)
    }
}

fn open(
    uc: &mut Uc,
    s: &mut State,
    dir: i32,
    path: u64,
    flags: u64,
    mode: u64,
) -> Result<i64, i64> {
    let path = string(uc, path)?;
    if path.as_bytes() == b"/dev/ulpf" {
        if flags as i32 & libc::O_ACCMODE != libc::O_RDWR {
            return Err(EACCES);
        }
        // A debugger's watches have the user's tables, and their one handler.
        if s.debug.has_watches() || !s.watches.is_empty() {
            return Err(EBUSY);
        }
        let id = s.device.open();
        let n = s.os.add(File::Ulpf(id));
        return Ok(with_flags(s, n, flags as i32 & libc::O_CLOEXEC != 0) as i64);
    }
    if path.as_bytes() == b"/proc/self/maps" {
        let fd = in_memory(s.space.listing(|id| s.device.store_of(id)).as_bytes())?;
        let n = s.os.add(File::Host(fd));
        return Ok(with_flags(s, n, flags as i32 & libc::O_CLOEXEC != 0) as i64);
    }
    // These files would describe the simulator.
    if path.as_bytes().starts_with(b"/proc/self/") && path.as_bytes() != b"/proc/self/exe" {
        return Err(ENOENT);
    }
    let dir = folder(s, dir, &path)?;
    // SAFETY: the path is a C string of ours.
    let fd = host(
        unsafe {
            libc::openat(
                dir,
                path.as_ptr(),
                flags as i32 | libc::O_CLOEXEC,
                mode as u32,
            )
        }
        .into(),
    );
    match fd {
        0.. => {
            let n = s.os.add(File::Host(fd as i32));
            Ok(with_flags(s, n, flags as i32 & libc::O_CLOEXEC != 0) as i64)
        }
        error => Err(error),
    }
}

/// fstat, newfstatat: the structure is the host's.
fn stat(uc: &mut Uc, s: &mut State, number: u64, a: &[u64; 6]) -> Result<i64, i64> {
    let (file, path, to, flags) = match number {
        SYS_fstat => (a[0], CString::default(), a[1], libc::AT_EMPTY_PATH),
        _ => (a[0], string(uc, a[1])?, a[2], a[3] as i32),
    };
    let fd = match s.os.files.get(&file) {
        Some(File::Host(fd)) => *fd,
        // As a pipe would say.
        Some(File::Kept) => 1,
        _ if file as i32 == libc::AT_FDCWD => libc::AT_FDCWD,
        _ => return Err(EBADF),
    };
    let mut raw = [0u8; size_of::<libc::stat>()];
    // SAFETY: the buffer has the structure's size; the kernel does not ask for its alignment.
    let result = host(unsafe {
        libc::syscall(
            libc::SYS_newfstatat,
            fd,
            path.as_ptr(),
            raw.as_mut_ptr(),
            flags,
        )
    });
    if result == 0 {
        write_bytes(uc, s, to, &raw)?;
    }
    Ok(result)
}
