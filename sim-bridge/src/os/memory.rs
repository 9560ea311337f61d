// SPDX-License-Identifier: GPL-2.0-or-later
//! Memory: mmap, munmap, mprotect, madvise, brk.

use super::File;
use super::numbers::*;
use crate::device::mapping as device;
use crate::errno::{EACCES, EBADF, EEXIST, EINVAL, ENOMEM};
use crate::host::host;
use crate::memory::{Backing, PAGE, USER_END, up};
use crate::state::{State, Uc};

pub fn call(uc: &mut Uc, s: &mut State, number: u64, a: &[u64; 6]) -> Option<Result<i64, i64>> {
    Some(match number {
        SYS_mmap => mmap(uc, s, a),
        SYS_mprotect => range(a[0], a[1]).and_then(|(at, len)| match s.space.is_mapped(at, len) {
            false => Err(ENOMEM),
            true if a[2] as i32 & libc::PROT_WRITE != 0
                && s.space
                    .parts(at, len)
                    .iter()
                    .any(|p| matches!(p.2, Backing::Ring(_))) =>
            {
                Err(EACCES)
            }
            true => {
                s.fetches |= a[2] as i32 & libc::PROT_EXEC != 0 && s.space.has_device(at, len);
                let done = s.space.protect(uc, at, len, a[2]);
                done.map_or(Err(ENOMEM), |()| Ok(0))
            }
        }),
        SYS_munmap => range(a[0], a[1]).and_then(|(at, len)| {
            s.unmapping(uc, at, len);
            s.space.unmap(uc, at, len).map_err(|_| EINVAL)?;
            s.release_device();
            Ok(0)
        }),
        SYS_brk => Ok(s.space.set_brk(uc, a[0]) as i64),
        // Device mappings cannot move: permissions belong to addresses. For others the allocator
        // falls back to copying.
        SYS_mremap if s.space.has_device(a[0], a[1].max(1)) => Err(EINVAL),
        SYS_mremap => Err(ENOMEM),
        SYS_madvise => range(a[0], a[1]).and_then(|(at, len)| advise(uc, s, at, len, a[2] as i32)),
        // msync, mlock and munlock, their kin for all.
        SYS_msync | SYS_mlock | SYS_munlock | SYS_mlockall | SYS_munlockall | SYS_mlock2 => Ok(0),
        _ => return None,
    })
}

fn advise(uc: &mut Uc, s: &mut State, at: u64, len: u64, what: i32) -> Result<i64, i64> {
    if !s.space.is_mapped(at, len) {
        return Err(ENOMEM);
    }
    let gone = |b: Backing| match what {
        libc::MADV_DONTNEED => b == Backing::Private,
        libc::MADV_REMOVE => b != Backing::Private,
        _ => false,
    };
    for (from, to, backing) in s.space.parts(at, len) {
        if gone(backing) && backing == Backing::Private {
            s.space.stale_code |= s.space.may_hold_code(from, to - from);
            s.space.give_back(from, to);
        } else if gone(backing) {
            s.space.stale_code |= s.space.may_hold_code(from, to - from);
            for page in (from..to).step_by(PAGE as usize) {
                uc.mem_write(page, &[0; PAGE as usize])
                    .map_err(|_| EINVAL)?;
            }
        }
    }
    Ok(0)
}

fn range(at: u64, len: u64) -> Result<(u64, u64), i64> {
    let len = up(len).ok_or(EINVAL)?;
    let fits = at.checked_add(len).is_some_and(|end| end <= USER_END);
    match at.is_multiple_of(PAGE) && len > 0 && fits {
        true => Ok((at, len)),
        false => Err(EINVAL),
    }
}

/// Only what the file has: an access behind its end would be this process's SIGBUS.
fn shared_file(
    uc: &mut Uc,
    s: &mut State,
    (at, len): (u64, u64),
    protection: u64,
    fd: i32,
    offset: u64,
) -> Result<i64, i64> {
    // SAFETY: a structure of ours; a new mapping, which stays until this process ends.
    let mapped = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        let known = host(libc::fstat(fd, &raw mut status).into());
        if known < 0 {
            return Err(known);
        }
        if up(status.st_size as u64).is_none_or(|size| offset + len > size) {
            s.fail("a shared mapping beyond the end of its file".into());
            return Err(EINVAL);
        }
        let null = std::ptr::null_mut();
        let both = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(
            null,
            len as usize,
            both,
            libc::MAP_SHARED,
            fd,
            offset as i64,
        )
    };
    if mapped == libc::MAP_FAILED {
        return Err(host(-1));
    }
    // SAFETY: it is never unmapped.
    unsafe {
        s.space
            .map_host(uc, at, len, protection, mapped.cast(), Backing::Shared)
    }
    .map_err(|_| ENOMEM)?;
    Ok(at as i64)
}

fn mmap(uc: &mut Uc, s: &mut State, a: &[u64; 6]) -> Result<i64, i64> {
    let (at, len, protection, flags) = (a[0], up(a[1]).ok_or(ENOMEM)?, a[2], a[3] as i32);
    if len == 0 || at % PAGE != 0 || !a[5].is_multiple_of(PAGE) {
        return Err(EINVAL);
    }
    let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    let free = at != 0
        && (0..len)
            .step_by(PAGE as usize)
            .all(|n| !s.space.is_mapped(at.wrapping_add(n), PAGE));
    if flags & libc::MAP_FIXED_NOREPLACE != 0 && !free {
        return Err(EEXIST);
    }
    let at = match fixed || (free && s.space.fits(at, len)) {
        true => at,
        false => s.space.find_hole(len).ok_or(ENOMEM)?,
    };
    if !s.space.fits(at, len) {
        return Err(ENOMEM);
    }
    if s.space.is_mapped(at, PAGE) || fixed {
        s.unmapping(uc, at, len);
    }
    if flags & libc::MAP_ANONYMOUS != 0 {
        match flags & libc::MAP_SHARED != 0 {
            true => s.space.map_shared(uc, at, len, protection),
            false => s.space.map(uc, at, len, protection),
        }
        .map_err(|_| ENOMEM)?;
        return Ok(at as i64);
    }
    let fd = match s.os.files.get(&a[4]) {
        None => return Err(EBADF),
        Some(&File::Ulpf(id)) => {
            return device::mmap(uc, s, id, (at, len), protection, flags, a[5]);
        }
        Some(File::Kept) => return Err(EACCES),
        Some(File::Host(fd)) => *fd,
    };
    // SAFETY: no memory is involved.
    let mode = unsafe { libc::fcntl(fd, libc::F_GETFL) } & libc::O_ACCMODE;
    if flags & libc::MAP_SHARED != 0
        && mode != libc::O_RDWR
        && protection as i32 & libc::PROT_WRITE != 0
    {
        return Err(EACCES);
    }
    if flags & libc::MAP_SHARED != 0 && mode == libc::O_RDWR {
        return shared_file(uc, s, (at, len), protection, fd, a[5]);
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
