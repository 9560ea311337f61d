//! Files of /proc about the memory of the stub's task, opened at its start. Later the program, and the task with it, may
//! enter a root without /proc, or lose the right to open them.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, Ordering::*};

use linux_raw_sys::general::*;

use crate::sys;
use crate::sys::Errno;

const PATHS: [&CStr; 4] = [
    c"/proc/self/maps",
    c"/proc/self/smaps",
    c"/proc/self/pagemap",
    c"/proc/self/stat",
];

static KEPT: [AtomicI32; PATHS.len()] = [const { AtomicI32::new(-1) }; PATHS.len()];
/// The process that owns these descriptors: handlers run with the program's table.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Opens all of them for the calling process.
pub fn keep() {
    for (kept, path) in KEPT.iter().zip(PATHS) {
        kept.store(open_anew(path).unwrap_or(-1), Relaxed);
    }
    OWNER.store(me(), SeqCst);
}

/// Opens a file for reading, or duplicates the kept descriptor if that fails. The caller closes the descriptor.
///
/// # Errors
/// Those of open(2).
pub fn open(path: &CStr) -> Result<i32, Errno> {
    open_anew(path).or_else(|e| again(path).ok_or(e))
}

fn open_anew(path: &CStr) -> Result<i32, Errno> {
    let flags = O_RDONLY | O_CLOEXEC;
    // SAFETY: the path is a C string; open touches no memory of ours.
    unsafe { sys!(__NR_openat, AT_FDCWD as i64, path.as_ptr(), flags, 0) }.map(|fd| fd as i32)
}

/// A duplicate of the kept descriptor, at position 0.
fn again(path: &CStr) -> Option<i32> {
    let kept = KEPT.get(PATHS.iter().position(|p| *p == path)?)?;
    let fd = kept.load(Relaxed);
    if fd < 0 || OWNER.load(SeqCst) != me() {
        return None;
    }
    // SAFETY: descriptors alone; no code reads through the kept one.
    unsafe {
        let fd = sys!(__NR_fcntl, fd, F_DUPFD_CLOEXEC, 0).ok()?;
        let _ = sys!(__NR_lseek, fd, 0, SEEK_SET);
        Some(fd as i32)
    }
}

fn me() -> i32 {
    // SAFETY: asks for a number.
    unsafe { sys!(__NR_getpid) }.map_or(0, |n| n as i32)
}
