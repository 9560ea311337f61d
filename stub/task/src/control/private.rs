//! Private memory of the program, which no other process can change while the program is stopped.
//!
//! For memory that we have moved, the page map knows it. For other memory the kernel reports it, page by page, in
//! /proc/self/pagemap (Documentation/admin-guide/mm/pagemap.rst):
//!
//! ```text
//!  63        62        61               …
//!  present   swapped   of a file, or shared anonymous memory
//! ```
//! A private page of a file that was not written to is the file's own page, and so not private.

use core::sync::atomic::{AtomicI32, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_lib::addr::PAGE_SIZE;
use ulpf_lib::{TargetAddr, sys::Errno};
use ulpf_lib::{kept, sys};
use ulpf_stub_handlers::global::g;

const THERE: u64 = 3 << 62;
const OF_FILE_OR_SHARED: u64 = 1 << 61;

static PAGEMAP: AtomicI32 = AtomicI32::new(-1);

/// A kernel may be built without it: then nothing is known to be private.
fn pagemap() -> Result<u64, Errno> {
    let fd = PAGEMAP.load(Relaxed);
    if fd >= 0 {
        return Ok(fd as u64);
    }
    // It goes with the stub.
    let fd = kept::open(c"/proc/self/pagemap")?;
    PAGEMAP.store(fd, Relaxed);
    Ok(fd as u64)
}

/// Returns whether all of `[addr, addr + len)` is private memory that is present.
pub fn is_private(addr: u64, len: u64) -> bool {
    let Some(end) = addr.checked_add(len) else {
        return false;
    };
    (addr & !(PAGE_SIZE - 1)..end)
        .step_by(PAGE_SIZE as usize)
        .all(page_is_private)
}

fn page_is_private(page: u64) -> bool {
    let entry = g().page_map.entry(TargetAddr(page));
    if entry.moved() {
        return !entry.shared();
    }
    let mut bits = 0u64;
    // SAFETY: fills `bits`.
    let read = pagemap().and_then(|fd| unsafe {
        sys!(
            k::__NR_pread64,
            fd,
            &mut bits as *mut u64,
            8,
            page / PAGE_SIZE * 8
        )
    });
    read == Ok(8) && bits & THERE != 0 && bits & OF_FILE_OR_SHARED == 0
}
