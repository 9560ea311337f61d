//! The identity of a descriptor's file. The inode identifies it, except on older kernels (5.11 to 5.15 among them):
//! there all rings, and other files without a name, share one inode. On these a ring is known by a number of ours,
//! which is written to padding in its memory, and read through another mapping of it.

use core::sync::atomic::{AtomicU64, Ordering::*};

use linux_raw_sys::general as k;
use linux_raw_sys::io_uring as u;
use ulpf_lib::sys;

/// The inode that several files share; [`UNASKED`]; or [`NONE`].
static SHARED: AtomicU64 = AtomicU64::new(UNASKED);
const UNASKED: u64 = u64::MAX;
const NONE: u64 = 0;
/// Bit of numbers of ours, which inodes do not have.
const OURS: u64 = 1 << 63;
static LAST: AtomicU64 = AtomicU64::new(OURS);
/// Offset of padding behind a ring's head, which has a cache line of its own (struct io_uring).
const PADDING: u64 = 8;
const CACHE_LINE: u32 = 64;

/// Gives an identity to a ring whose memory is mapped at `sq`, and returns it.
pub fn give(fd: i32, p: &u::io_uring_params, sq: u64) -> Option<u64> {
    if SHARED.load(Relaxed) == UNASKED {
        SHARED.store(shared().unwrap_or(NONE), Relaxed);
    }
    let ino = inode(fd)?;
    if ino != SHARED.load(Relaxed) {
        return Some(ino);
    }
    let (head, tail) = (p.sq_off.head, p.sq_off.tail);
    if (head, tail) != (0, CACHE_LINE) {
        return None;
    }
    let number = LAST.fetch_add(1, Relaxed) + 1;
    // SAFETY: padding within our view.
    unsafe { ((sq + PADDING) as *mut u64).write_volatile(number) };
    Some(number)
}

/// The identity of a descriptor's file; `None` if there is no file, or none of its own identity.
pub fn of(fd: i32) -> Option<u64> {
    let ino = inode(fd)?;
    if ino != SHARED.load(Relaxed) {
        return Some(ino);
    }
    let at = view(fd, PAGE, u::IORING_OFF_SQ_RING as u64)?;
    // SAFETY: a page that has just been mapped.
    let number = unsafe { ((at + PADDING) as *const u64).read_volatile() };
    unmap(at, PAGE);
    (number > OURS).then_some(number)
}

const PAGE: u64 = 4096;

/// The inode of a file that has no name and is not a ring.
fn shared() -> Option<u64> {
    // SAFETY: a fresh descriptor, which is closed again.
    unsafe {
        let fd = sys!(k::__NR_eventfd2, 0, k::O_CLOEXEC).ok()?;
        let ino = inode(fd as i32);
        let _ = sys!(k::__NR_close, fd);
        ino
    }
}

fn inode(fd: i32) -> Option<u64> {
    // SAFETY: plain numbers, filled by the kernel.
    let mut stat: k::stat = unsafe { core::mem::zeroed() };
    // SAFETY: fstat fills the structure.
    unsafe { sys!(k::__NR_fstat, fd as i64, &raw mut stat) }.ok()?;
    Some(stat.st_ino as u64)
}

/// Maps a ring's memory, which a forked child does not inherit.
pub fn view(fd: i32, len: u64, offset: u64) -> Option<u64> {
    let (prot, how) = (
        k::PROT_READ | k::PROT_WRITE,
        k::MAP_SHARED | k::MAP_POPULATE,
    );
    // SAFETY: a fresh mapping.
    unsafe {
        let at = sys!(k::__NR_mmap, 0, len, prot, how, fd, offset).ok()?;
        let _ = sys!(k::__NR_madvise, at, len, k::MADV_DONTFORK);
        Some(at)
    }
}

pub fn unmap(at: u64, len: u64) {
    // SAFETY: our own view.
    let _ = unsafe { sys!(k::__NR_munmap, at, len) };
}
