//! Files of /proc.

use alloc::vec;
use alloc::vec::Vec;

use linux_raw_sys::general as k;
use ulpf_lib::sys;

/// A whole file from /proc. `path` ends with a NUL.
pub fn read_file(path: &str) -> Option<Vec<u8>> {
    // SAFETY: opens and reads a file.
    unsafe {
        let fd = sys!(
            k::__NR_openat,
            -100i64,
            path.as_ptr(),
            k::O_RDONLY | k::O_CLOEXEC,
            0
        )
        .ok()?;
        let mut all = Vec::new();
        let mut buf = vec![0u8; 32 << 10];
        while let Ok(n) = sys!(k::__NR_read, fd, buf.as_mut_ptr(), buf.len()) {
            if n == 0 {
                break;
            }
            all.extend_from_slice(buf.get(..n as usize)?);
        }
        let _ = sys!(k::__NR_close, fd);
        Some(all)
    }
}
