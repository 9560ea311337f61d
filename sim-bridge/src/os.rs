// SPDX-License-Identifier: GPL-2.0-or-later
//! System calls: what a static C program needs, done by this process or made up. What is not known
//! ends the run, with its name where it has one; nothing is silently wrong.

use crate::elf::Elf;
use crate::machine::{End, State, Uc};
use crate::memory::{PAGE, STACK_TOP, USER_END, up};
use anyhow::{Result, anyhow, ensure};
use std::collections::HashMap;
use std::ffi::CString;
use unicorn_engine::RegisterX86 as R;

/// The thesis's system calls (Listing 3.3), where Linux has none.
pub const REGISTER_ULI: u64 = 0x1000;
pub const SET_RO: u64 = 0x1001;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum File {
    Host(i32),
    Ulpf,
    /// Written text is kept; nothing is there to be read.
    Kept,
}

/// The program's descriptors.
pub struct Os {
    pub files: HashMap<u64, File>,
    pub kept: Vec<u8>,
    random: u64,
}

impl Default for Os {
    fn default() -> Os {
        Os {
            files: (0..3).map(|n| (n, File::Host(n as i32))).collect(),
            kept: vec![],
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }
}

pub const EPERM: i64 = -1;
pub const ENOENT: i64 = -2;
pub const EBADF: i64 = -9;
pub const ENOMEM: i64 = -12;
pub const EACCES: i64 = -13;
pub const EFAULT: i64 = -14;
pub const EBUSY: i64 = -16;
pub const EINVAL: i64 = -22;
pub const ENOTTY: i64 = -25;
const ENOSYS: i64 = -38;

/// Names of calls that programs make and that the machine does not know.
const UNKNOWN: [(u64, &str); 24] = [
    (7, "poll"),
    (22, "pipe"),
    (29, "shmget"),
    (32, "dup"),
    (33, "dup2"),
    (37, "alarm"),
    (38, "setitimer"),
    (41, "socket"),
    (42, "connect"),
    (49, "bind"),
    (56, "clone"),
    (57, "fork"),
    (58, "vfork"),
    (59, "execve"),
    (61, "wait4"),
    (101, "ptrace"),
    (202, "futex"),
    (213, "epoll_create"),
    (282, "signalfd"),
    (293, "pipe2"),
    (298, "perf_event_open"),
    (319, "memfd_create"),
    (425, "io_uring_setup"),
    (435, "clone3"),
];

impl Os {
    /// The same bytes in every run.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    pub fn add(&mut self, file: File) -> u64 {
        let n = (0..)
            .find(|n| !self.files.contains_key(n))
            .unwrap_or(u64::MAX);
        self.files.insert(n, file);
        n
    }
}

/// Arguments, environment and auxiliary vector, as Linux leaves them; returns the stack pointer.
pub fn first_stack(uc: &mut Uc, elf: &Elf, args: &[String], environment: &[String]) -> Result<u64> {
    let total: usize = args.iter().chain(environment).map(|s| s.len() + 9).sum();
    ensure!(
        total < 1 << 20,
        "arguments and environment have {total} bytes; the machine takes a mebibyte"
    );
    let mut at = STACK_TOP - 64;
    let mut put = |bytes: &[u8]| {
        at -= bytes.len() as u64;
        uc.mem_write(at, bytes)
            .map(|()| at)
            .map_err(|e| anyhow!("unicorn: {e:?}"))
    };
    let mut strings = |all: &[String]| -> Result<Vec<u64>> {
        all.iter()
            .map(|s| put(&[s.as_bytes(), &[0]].concat()))
            .collect()
    };
    let argv = strings(args)?;
    let envp = strings(environment)?;
    let random = put(&[0x5a; 16])?;
    let name = argv.first().copied().unwrap_or(random);
    let auxv = [
        [3, elf.headers_at],
        [4, 56],
        [5, elf.headers.into()],
        [6, PAGE],
        [9, elf.entry],
        [11, 0],
        [12, 0],
        [13, 0],
        [14, 0],
        [16, 0],
        [17, 100],
        [23, 0],
        [25, random],
        [31, name],
        [0, 0],
    ];
    let mut words = vec![argv.len() as u64];
    words.extend(argv.iter().chain(&[0]).chain(&envp).chain(&[0]));
    words.extend(auxv.iter().flatten());
    let sp = (random - 8 * words.len() as u64) & !15;
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    uc.mem_write(sp, &bytes)
        .map_err(|e| anyhow!("unicorn: {e:?}"))?;
    Ok(sp)
}

pub fn read_bytes(uc: &Uc, s: &State, at: u64, len: u64) -> Result<Vec<u8>, i64> {
    if !s.space.is_mapped(at, len) {
        return Err(EFAULT);
    }
    uc.mem_read_as_vec(at, len as usize).map_err(|_| EFAULT)
}

pub fn write_bytes(uc: &mut Uc, s: &State, at: u64, bytes: &[u8]) -> Result<(), i64> {
    if !s.space.is_mapped(at, bytes.len() as u64) {
        return Err(EFAULT);
    }
    uc.mem_write(at, bytes).map_err(|_| EFAULT)
}

fn string(uc: &Uc, at: u64) -> Result<CString, i64> {
    let mut bytes = vec![];
    for n in 0..4096 {
        let mut b = [0];
        uc.mem_read(at.wrapping_add(n), &mut b)
            .map_err(|_| EFAULT)?;
        if b[0] == 0 {
            return CString::new(bytes).map_err(|_| EINVAL);
        }
        bytes.push(b[0]);
    }
    Err(-36)
}

/// The host's result, or its errno.
fn host(result: i64) -> i64 {
    match result {
        -1 => -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(5)),
        n => n,
    }
}

pub fn call(uc: &mut Uc, s: &mut State) {
    let get = |uc: &Uc, r| uc.reg_read(r).unwrap_or(0);
    let number = get(uc, R::RAX);
    let a = [R::RDI, R::RSI, R::RDX, R::R10, R::R8, R::R9].map(|r| get(uc, r));
    let result = dispatch(uc, s, number, &a).unwrap_or_else(|e| e);
    let _ = uc.reg_write(R::RAX, result as u64);
}

fn dispatch(uc: &mut Uc, s: &mut State, number: u64, a: &[u64; 6]) -> Result<i64, i64> {
    let fd = |s: &State, n: u64| match s.os.files.get(&n) {
        Some(File::Host(fd)) => Ok(*fd),
        Some(File::Ulpf | File::Kept) => Err(EINVAL),
        None => Err(EBADF),
    };
    Ok(match number {
        0 | 17 => {
            let fd = fd(s, a[0])?;
            let mut buffer = vec![0u8; a[2].min(1 << 20) as usize];
            // SAFETY: the buffer is as large as we say.
            let n = host(unsafe {
                match number {
                    0 => libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()),
                    _ => libc::pread(fd, buffer.as_mut_ptr().cast(), buffer.len(), a[3] as i64),
                }
            } as i64);
            if n > 0 {
                write_bytes(uc, s, a[1], &buffer[..n as usize])?;
            }
            n
        }
        1 if s.os.files.get(&a[0]) == Some(&File::Kept) => {
            let bytes = read_bytes(uc, s, a[1], a[2].min(1 << 24))?;
            s.os.kept.extend(&bytes);
            bytes.len() as i64
        }
        1 => write(fd(s, a[0])?, &read_bytes(uc, s, a[1], a[2].min(1 << 24))?),
        20 => {
            let (fd, count) = (fd(s, a[0])?, a[2].min(1024));
            let mut all = vec![];
            for v in read_bytes(uc, s, a[1], count * 16)?.chunks_exact(16) {
                let word =
                    |n: usize| u64::from_le_bytes(v[n..n + 8].try_into().unwrap_or_default());
                all.extend(read_bytes(uc, s, word(0), word(8).min(1 << 24))?);
            }
            write(fd, &all)
        }
        2 => open(uc, s, libc::AT_FDCWD, a[0], a[1], a[2])?,
        257 => open(uc, s, a[0] as i32, a[1], a[2], a[3])?,
        3 => match s.os.files.remove(&a[0]) {
            // SAFETY: the descriptor is the program's, and no longer known to it.
            Some(File::Host(fd)) if fd > 2 => host(unsafe { libc::close(fd) }.into()),
            Some(_) => 0,
            None => EBADF,
        },
        5 | 262 => stat(uc, s, number, a)?,
        8 => {
            let fd = fd(s, a[0])?;
            // SAFETY: no memory is involved.
            host(unsafe { libc::lseek(fd, a[1] as i64, a[2] as i32) })
        }
        9 => mmap(uc, s, a)?,
        10 => {
            let (at, len) = range(a[0], a[1])?;
            match s.space.is_mapped(at, len) {
                false => ENOMEM,
                true if s.space.cuts_shared(at, len) => {
                    fail(s, "mprotect of a part of a mapping of /dev/ulpf".into());
                    EINVAL
                }
                true => s.space.protect(uc, at, len, a[2]).map_or(ENOMEM, |()| 0),
            }
        }
        11 => {
            let (at, len) = range(a[0], a[1])?;
            if s.space.cuts_shared(at, len) {
                fail(s, "munmap of a part of a mapping of /dev/ulpf".into());
                return Err(EINVAL);
            }
            s.space.unmap(uc, at, len).map_err(|_| EINVAL)?;
            s.unmapped(uc, at, len);
            0
        }
        12 => s.space.set_brk(uc, a[0]) as i64,
        // Signals never come, so handlers and masks only have to be taken.
        13 | 14 | 131 => 0,
        16 => match s.os.files.get(&a[0]) {
            Some(File::Ulpf) => crate::device::ioctl(uc, s, a[1], a[2]),
            Some(_) => ENOTTY,
            None => EBADF,
        },
        21 | 269 => ENOENT,
        24 | 28 | 35 | 203 | 230 => 0,
        25 => ENOMEM,
        39 | 186 | 218 => 1000,
        60 | 231 => {
            s.end = Some(End::Exit(a[0] as i32 & 0xff));
            0
        }
        62 | 200 | 234 => {
            let signal = if number == 234 { a[2] } else { a[1] };
            if signal != 0 {
                s.end = Some(End::Signal(
                    signal as i32,
                    "the program sent it to itself".into(),
                ));
            }
            0
        }
        63 => {
            let mut names = vec![0u8; 65 * 6];
            for (n, text) in ["Linux", "ulpf", "5.10.0", "#1", "x86_64"]
                .iter()
                .enumerate()
            {
                names[n * 65..n * 65 + text.len()].copy_from_slice(text.as_bytes());
            }
            write_bytes(uc, s, a[0], &names)?;
            0
        }
        72 => 0,
        89 | 267 => ENOENT,
        96 | 201 | 228 => clock(uc, s, number, a)?,
        102 | 104 | 107 | 108 => 0,
        157 => EINVAL,
        158 => match a[0] {
            0x1001 | 0x1002 => {
                let base = if a[0] == 0x1001 {
                    R::GS_BASE
                } else {
                    R::FS_BASE
                };
                uc.reg_write(base, a[1]).map_or(EPERM, |()| 0)
            }
            _ => EINVAL,
        },
        // One thread: there is nobody to wake, and nobody who would wake it.
        202 if a[1] & 0x7f == 1 => 0,
        273 => 0,
        302 => ENOSYS,
        318 => {
            let bytes: Vec<u8> = (0..a[1].min(256)).map(|_| s.os.random() as u8).collect();
            write_bytes(uc, s, a[0], &bytes)?;
            bytes.len() as i64
        }
        332 | 334 => ENOSYS,
        REGISTER_ULI => {
            if !s.space.is_mapped(a[0], 1) {
                return Err(EFAULT);
            }
            s.mmu.cr18 = a[0];
            s.mmu.write_once = true;
            if s.mmu.cr16 == 0 {
                s.mmu.cr16 = s.mmu.tables.frame();
            }
            0
        }
        SET_RO => crate::device::bind(s, a[0], a[1]),
        _ => {
            let name = UNKNOWN.iter().find(|u| u.0 == number).map_or("", |u| u.1);
            let more = match number {
                56 | 57 | 58 | 435 => "; the machine has one thread and one process, so far",
                202 => " that waits; the machine has one thread, so far",
                _ => "",
            };
            fail(
                s,
                format!(
                    "system call {number}{}{name}{more}",
                    if name.is_empty() { "" } else { ", " }
                ),
            );
            ENOSYS
        }
    })
}

fn fail(s: &mut State, what: String) {
    s.end = Some(End::Failed(format!("the machine does not know {what}")));
}

fn range(at: u64, len: u64) -> Result<(u64, u64), i64> {
    let len = up(len).ok_or(EINVAL)?;
    let fits = at.checked_add(len).is_some_and(|end| end <= USER_END);
    match at % PAGE == 0 && len > 0 && fits {
        true => Ok((at, len)),
        false => Err(EINVAL),
    }
}

fn write(fd: i32, bytes: &[u8]) -> i64 {
    // SAFETY: the slice is valid for its length.
    host(unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) } as i64)
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
        return match s.device.opened {
            // A second space would need a second set of tables.
            true => Err(EBUSY),
            false => {
                s.device.opened = true;
                Ok(s.os.add(File::Ulpf) as i64)
            }
        };
    }
    let dir = match s.os.files.get(&(dir as u64)) {
        Some(File::Host(fd)) => *fd,
        _ if dir == libc::AT_FDCWD || path.as_bytes().starts_with(b"/") => libc::AT_FDCWD,
        _ => return Err(EBADF),
    };
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
        0.. => Ok(s.os.add(File::Host(fd as i32)) as i64),
        error => Err(error),
    }
}

/// fstat, newfstatat: the structure is the host's.
fn stat(uc: &mut Uc, s: &mut State, number: u64, a: &[u64; 6]) -> Result<i64, i64> {
    let (file, path, to, flags) = match number {
        5 => (a[0], CString::default(), a[1], libc::AT_EMPTY_PATH),
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
    let result = host(unsafe { libc::syscall(262, fd, path.as_ptr(), raw.as_mut_ptr(), flags) });
    if result == 0 {
        write_bytes(uc, s, to, &raw)?;
    }
    Ok(result)
}

/// Time is the model's: a cycle is a nanosecond. In functional mode it is the number of the call.
fn clock(uc: &mut Uc, s: &mut State, number: u64, a: &[u64; 6]) -> Result<i64, i64> {
    let ns = match s.full {
        true => s.stats.cycles,
        false => s.stats.system_calls,
    };
    let (seconds, rest) = (1_000_000_000 + ns / 1_000_000_000, ns % 1_000_000_000);
    let (to, part) = match number {
        96 => (a[0], rest / 1000),
        228 => (a[1], rest),
        _ => {
            if a[0] != 0 {
                write_bytes(uc, s, a[0], &seconds.to_le_bytes())?;
            }
            return Ok(seconds as i64);
        }
    };
    if to != 0 {
        write_bytes(
            uc,
            s,
            to,
            &[seconds.to_le_bytes(), part.to_le_bytes()].concat(),
        )?;
    }
    Ok(0)
}

fn mmap(uc: &mut Uc, s: &mut State, a: &[u64; 6]) -> Result<i64, i64> {
    let (at, len, protection, flags) = (a[0], up(a[1]).ok_or(ENOMEM)?, a[2], a[3] as i32);
    if len == 0 || at % PAGE != 0 || a[5] % PAGE != 0 {
        return Err(EINVAL);
    }
    let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    let free = at != 0
        && (0..len)
            .step_by(PAGE as usize)
            .all(|n| !s.space.is_mapped(at.wrapping_add(n), PAGE));
    if flags & libc::MAP_FIXED_NOREPLACE != 0 && !free {
        return Err(-17);
    }
    let at = match fixed || (free && s.space.fits(at, len)) {
        true => at,
        false => s.space.room(len).ok_or(ENOMEM)?,
    };
    if !s.space.fits(at, len) {
        return Err(ENOMEM);
    }
    if s.space.cuts_shared(at, len) {
        fail(s, "a mapping over a part of a mapping of /dev/ulpf".into());
        return Err(EINVAL);
    }
    s.unmapped(uc, at, len);
    if flags & libc::MAP_ANONYMOUS != 0 {
        s.space.map(uc, at, len, protection).map_err(|_| ENOMEM)?;
        return Ok(at as i64);
    }
    let fd = match s.os.files.get(&a[4]) {
        None => return Err(EBADF),
        Some(File::Ulpf) => return crate::device::mmap(uc, s, at, len, protection, flags, a[5]),
        Some(File::Kept) => return Err(EACCES),
        Some(File::Host(fd)) => *fd,
    };
    if flags & libc::MAP_SHARED != 0 && protection & 2 != 0 {
        fail(s, "mmap of a file, shared and writable".into());
        return Err(EINVAL);
    }
    let mut contents = vec![0u8; len as usize];
    // SAFETY: the buffer is as large as we say.
    let n = host(unsafe {
        libc::pread(
            fd,
            contents.as_mut_ptr().cast(),
            contents.len(),
            a[5] as i64,
        )
    } as i64);
    if n < 0 {
        return Err(EACCES);
    }
    s.space.map(uc, at, len, protection).map_err(|_| ENOMEM)?;
    uc.mem_write(at, &contents).map_err(|_| ENOMEM)?;
    Ok(at as i64)
}
