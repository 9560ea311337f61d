//! Files of /proc.

use alloc::vec;
use alloc::vec::Vec;

use linux_raw_sys::general as k;
use ulpf_lib::sys;

/// A whole file from /proc. `path` ends with a NUL.
pub fn read_file(path: &str) -> Option<Vec<u8>> {
    read_up_to(path, usize::MAX)
}

/// The beginning of a file from /proc that says all it has at once (`stat`, `comm`). `path` ends with a NUL.
pub fn read_short(path: &str) -> Option<Vec<u8>> {
    read_by(path, 1 << 10, 1)
}

/// The same as [`read_file`], until there are `most` bytes or some more.
pub fn read_up_to(path: &str, most: usize) -> Option<Vec<u8>> {
    read_by(path, 32 << 10, most)
}

fn read_by(path: &str, piece: usize, most: usize) -> Option<Vec<u8>> {
    // SAFETY: a NUL-terminated path; a new descriptor of the stub's own table.
    let fd = unsafe {
        sys!(
            k::__NR_openat,
            k::AT_FDCWD,
            path.as_ptr(),
            k::O_RDONLY | k::O_CLOEXEC,
            0
        )
    }
    .ok()?;
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
