//! Copies of the program's memory as the program sees it: guarded memory is read at its alias.

use linux_raw_sys::general as k;
use ulpf_lib::{PAGE_SIZE, TargetAddr, sys};

use crate::shared::{S, Unchanging};
use crate::stub_link;

/// Copies from the program's memory through the kernel, whose accesses match no register; returns the number of bytes.
pub fn read_by_kernel(from: u64, to: &mut [u8]) -> u64 {
    // SAFETY: the caller's buffer of this length.
    unsafe { copy_by_kernel(to.as_mut_ptr() as u64, from, to.len() as u64) }
}

/// As [`read_by_kernel`], between any two addresses.
///
/// # Safety
/// Memory at `to`, if there is any, may be changed.
pub unsafe fn copy_by_kernel(to: u64, from: u64, len: u64) -> u64 {
    if stub_link::present() {
        // SAFETY: the caller's promise.
        return unsafe { stub_link::copy(to, from, len) }.unwrap_or(0);
    }
    let (local, remote) = ([to, len], [from, len]);
    // SAFETY: the kernel checks both sides; else the caller's promise.
    unsafe {
        sys!(k::__NR_getpid).and_then(|pid| {
            sys!(
                k::__NR_process_vm_readv,
                pid,
                local.as_ptr(),
                1,
                remote.as_ptr(),
                1,
                0
            )
        })
    }
    .unwrap_or(0)
}

/// Copies between existing mappings; guarded memory is read at its alias.
pub fn read(_: &Unchanging, addr: u64, to: &mut [u8]) -> bool {
    let n = to.len() as u64;
    let Some(alias) = S.table.pages.open(TargetAddr(addr), n, false) else {
        // Not guarded: it is in a debug register.
        return read_by_kernel(addr, to) == n;
    };
    // SAFETY: the alias of `n` bytes that the program may read.
    unsafe { core::ptr::copy_nonoverlapping(alias.0 as *const u8, to.as_mut_ptr(), n as usize) };
    true
}

/// Copies the bytes of moved memory to another address.
///
/// # Safety
/// There are `len` bytes of ours at `to`.
pub unsafe fn save(_: &Unchanging, to: u64, from: u64, len: u64) -> bool {
    let mut done = 0;
    while done < len {
        let at = TargetAddr(from + done);
        let n = (PAGE_SIZE - at.0 % PAGE_SIZE).min(len - done);
        match S.table.pages.entry(at).alias(at) {
            // SAFETY: the alias of memory that stays where it is; room by the caller's promise.
            Some(alias) => unsafe {
                core::ptr::copy_nonoverlapping(
                    alias.0 as *const u8,
                    (to + done) as *mut u8,
                    n as usize,
                )
            },
            // SAFETY: the caller's promise.
            None if unsafe { stub_link::copy(to + done, at.0, n) } == Some(n) => {}
            None => return false,
        }
        done += n;
    }
    true
}
