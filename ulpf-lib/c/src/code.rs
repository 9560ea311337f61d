//! The instruction at an address of the program, and what of the processor's state it needs beside the registers.

use linux_raw_sys::general as k;
use ulpf_lib::sys::uapi::arch::ARCH_GET_GS;
use ulpf_lib::{PAGE_SIZE, TargetAddr, sys};

use crate::shared::S;
use crate::stub_link;

/// Copies up to 15 bytes of code, as many as can be read.
pub fn code_at(pc: u64, to: &mut [u8; 15]) -> usize {
    if stub_link::present() {
        // The code may contain breakpoints and patches.
        // SAFETY: 15 bytes of the caller's.
        return unsafe { stub_link::copy(to.as_mut_ptr() as u64, pc, 15) }.unwrap_or(0) as usize;
    }
    // Code on guarded pages is readable at its alias. Other code has just been fetched, but the page behind it may not be
    // mapped.
    let first = (PAGE_SIZE - pc % PAGE_SIZE).min(15) as usize;
    let source = |at: u64| {
        S.table
            .pages
            .entry(TargetAddr(at))
            .alias(TargetAddr(at))
            .map_or(at, |a| a.0)
    };
    let mut n = 0;
    if S.table.pages.entry(TargetAddr(pc)).moved() || first == 15 {
        // SAFETY: within one page that code has just been fetched from.
        unsafe { core::ptr::copy_nonoverlapping(source(pc) as *const u8, to.as_mut_ptr(), first) };
        n = first;
    }
    if n == 15 {
        return n;
    }
    // Across a page edge: the kernel checks the second page.
    let rest = [(to.as_mut_ptr() as u64) + n as u64, 15 - n as u64];
    let remote = [source(pc.wrapping_add(n as u64)), 15 - n as u64];
    // SAFETY: the destination is ours.
    let copied = unsafe {
        sys!(k::__NR_getpid).and_then(|pid| {
            sys!(
                k::__NR_process_vm_readv,
                pid,
                rest.as_ptr(),
                1,
                remote.as_ptr(),
                1,
                0
            )
        })
    };
    match copied {
        Ok(got) if got > 0 => n + got as usize,
        // Forbidden (a sandbox): the part in the first page must suffice.
        _ if n == 0 => {
            // SAFETY: as above.
            unsafe { core::ptr::copy_nonoverlapping(pc as *const u8, to.as_mut_ptr(), first) };
            first
        }
        _ => n,
    }
}

/// Only an instruction with a gs prefix needs it.
pub fn gs_base(code: &[u8]) -> u64 {
    const PREFIX: u8 = 0x65;
    let mut gs = 0u64;
    if code.contains(&PREFIX) {
        // SAFETY: one word.
        let _ = unsafe { sys!(k::__NR_arch_prctl, ARCH_GET_GS, &mut gs as *mut u64) };
    }
    gs
}
