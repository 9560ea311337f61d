//! What the kernel tells about the program in `/proc/PID`; the stub's task shares the program's
//! memory but has a process of its own, so `/proc/self` would be the wrong one.

use super::packet;
use alloc::format;
use alloc::vec::Vec;
use linux_raw_sys::general::{
    __NR_close, __NR_openat, __NR_read, __NR_readlinkat, AT_FDCWD, O_CLOEXEC, O_RDONLY,
};
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;
#[allow(unused_imports)]
use ulpf_lib::sys::syscall6;

/// More than any file of `/proc` that we read should have; a bound against surprises.
const MAX_FILE: usize = 16 << 20;

/// The whole of `/proc/PID/NAME`.
pub fn read(pid: i32, name: &str) -> Result<Vec<u8>, Errno> {
    let path = format!("/proc/{pid}/{name}\0");
    // SAFETY: a NUL-terminated path; a new descriptor of the stub's own table.
    #[allow(unsafe_code)]
    let fd = unsafe { sys!(__NR_openat, AT_FDCWD, path.as_ptr(), O_RDONLY | O_CLOEXEC) }?;
    let mut data = Vec::new();
    let result = loop {
        let have = data.len();
        if have >= MAX_FILE {
            break Ok(());
        }
        data.resize(have + (have.clamp(4096, 1 << 20)), 0);
        // SAFETY: the range lies inside `data`.
        #[allow(unsafe_code)]
        let got = unsafe { sys!(__NR_read, fd, data[have..].as_mut_ptr(), data.len() - have) };
        match got {
            Ok(n) => {
                data.truncate(have + n as usize);
                if n == 0 {
                    break Ok(());
                }
            }
            Err(e) => break Err(e),
        }
    };
    // SAFETY: our descriptor, opened above.
    #[allow(unsafe_code)]
    let _ = unsafe { sys!(__NR_close, fd) };
    result.map(|()| data)
}

/// Target of the link `/proc/PID/exe`.
pub fn exe(pid: i32) -> Result<Vec<u8>, Errno> {
    let path = format!("/proc/{pid}/exe\0");
    let mut buf = alloc::vec![0; 4096];
    // SAFETY: a NUL-terminated path and a buffer of the length given.
    #[allow(unsafe_code)]
    let n = unsafe {
        sys!(
            __NR_readlinkat,
            AT_FDCWD,
            path.as_ptr(),
            buf.as_mut_ptr(),
            buf.len()
        )
    }?;
    buf.truncate(n as usize);
    Ok(buf)
}

/// The CPU that the thread ran on last (field 39 of its `stat`, proc(5)).
pub fn core_of(pid: i32, tid: i32) -> Option<u32> {
    let stat = read(pid, &format!("task/{tid}/stat")).ok()?;
    let after_name = &stat[stat.iter().rposition(|b| *b == b')')? + 1..];
    let field = after_name
        .split(|b| *b == b' ')
        .filter(|f| !f.is_empty())
        .nth(39 - 3)?;
    core::str::from_utf8(field).ok()?.trim().parse().ok()
}

/// One line of `maps`.
pub struct Mapping<'a> {
    pub start: u64,
    pub end: u64,
    /// `rwxp` as the kernel writes it.
    pub permissions: &'a [u8],
    pub name: &'a [u8],
}

impl<'a> Mapping<'a> {
    pub fn parse(line: &'a [u8]) -> Option<Mapping<'a>> {
        let mut fields = line.splitn(6, |b| *b == b' ');
        let (start, end) = packet::split_once(fields.next()?, b'-')?;
        let permissions = fields.next()?;
        let name = fields.nth(3).unwrap_or_default().trim_ascii();
        Some(Mapping {
            start: packet::hex_u64(start)?,
            end: packet::hex_u64(end)?,
            permissions,
            name,
        })
    }
}
