//! Files of /proc.

use alloc::vec;
use alloc::vec::Vec;

use core::ffi::CStr;

use linux_raw_sys::general as k;
use ulpf_lib::{kept, sys};

/// A whole file from /proc. `path` ends with a NUL.
pub fn read_file(path: &str) -> Option<Vec<u8>> {
    read_up_to(path, usize::MAX)
}

/// The beginning of a file from /proc that returns all its content at once (`stat`, `comm`). `path` ends with a NUL.
pub fn read_short(path: &str) -> Option<Vec<u8>> {
    read_by(path, 1 << 10, 1)
}

/// The same as [`read_file`], until there are `most` bytes or some more.
pub fn read_up_to(path: &str, most: usize) -> Option<Vec<u8>> {
    read_by(path, 32 << 10, most)
}

fn read_by(path: &str, piece: usize, most: usize) -> Option<Vec<u8>> {
    let fd = kept::open(CStr::from_bytes_with_nul(path.as_bytes()).ok()?).ok()?;
    let mut all = Some(Vec::new());
    let mut buf = vec![0u8; piece];
    while let Some(read) = all.as_mut().filter(|all| all.len() < most) {
        // SAFETY: fills `buf` at most.
        match unsafe { sys!(k::__NR_read, fd, buf.as_mut_ptr(), buf.len()) } {
            Ok(0) => break,
            Ok(n) => read.extend_from_slice(buf.get(..n as usize).unwrap_or(&[])),
            Err(_) => all = None,
        }
    }
    // SAFETY: our descriptor, opened above.
    let _ = unsafe { sys!(k::__NR_close, fd) };
    all
}
