//! In a forked child: restores the program's original code, and writes the last code of ours.

use linux_raw_sys::general as k;
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;
use ulpf_stub_tables::edit::LONGEST;
use ulpf_stub_tables::edits::Edits;

use crate::runtime::memory;

pub fn open_mem() -> Result<u64, Errno> {
    // SAFETY: opens a file.
    unsafe {
        sys!(
            k::__NR_openat,
            -100i64,
            c"/proc/self/mem".as_ptr(),
            k::O_RDWR | k::O_CLOEXEC,
            0
        )
    }
}

/// In a forked child, whose descriptor table lacks ours: puts the original bytes back where ours are. It uses a
/// descriptor of its own or, where there is no /proc, makes the page writable for the moment.
pub fn put_back(edits: &Edits) {
    with_mem_of_child(|fd| {
        edits.each_of_child(|edit| {
            let mut now = [0; LONGEST];
            let ours = edit.ours();
            let now = now.get_mut(..ours.len()).unwrap_or(&mut []);
            if memory::read(edit.start(), now) == ours.len() && now == ours {
                put(fd, edit.start(), edit.original());
            }
        });
    });
}

fn with_mem_of_child<R>(f: impl FnOnce(Result<u64, Errno>) -> R) -> R {
    let fd = open_mem();
    let result = f(fd);
    if let Ok(fd) = fd {
        // SAFETY: our own descriptor.
        let _ = unsafe { sys!(k::__NR_close, fd) };
    }
    result
}

fn put(fd: Result<u64, Errno>, to: u64, bytes: &[u8]) -> bool {
    let (from, len) = (bytes.as_ptr(), bytes.len() as u64);
    // SAFETY: the child's own text; this thread is its only one, and runs in our image.
    unsafe {
        if fd.is_ok_and(|fd| sys!(k::__NR_pwrite64, fd, from, len, to) == Ok(len)) {
            return true;
        }
        let page = to & !4095;
        let size = (to + len - page).next_multiple_of(4096);
        if sys!(k::__NR_mprotect, page, size, k::PROT_READ | k::PROT_WRITE).is_err() {
            return false;
        }
        core::ptr::copy_nonoverlapping(from, to as *mut u8, len as usize);
        sys!(k::__NR_mprotect, page, size, k::PROT_READ | k::PROT_EXEC).is_ok()
    }
}

/// In a forked child: writes to executable memory of its program. Returns `false` if that fails.
pub fn write_in_child(to: u64, bytes: &[u8]) -> bool {
    with_mem_of_child(|fd| put(fd, to, bytes))
}
