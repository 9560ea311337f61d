//! Raw system calls: no libc, no errno variable, usable inside the fault handler.
#![allow(unsafe_code)]

pub mod failure;
pub mod uapi;

use core::arch::asm;

/// An errno value (positive), as the kernel names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

/// Result of a raw call: the kernel answers `-4095..=-1` for errors (syscall(2), "C library/kernel
/// differences").
///
/// # Errors
/// The errno, of a value in that range.
pub fn check(ret: i64) -> Result<u64, Errno> {
    if (-4095..0).contains(&ret) {
        Err(Errno(-ret as i32))
    } else {
        Ok(ret as u64)
    }
}

/// # Safety
/// As dangerous as the system call.
#[inline(always)]
pub unsafe fn syscall6(nr: u64, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> i64 {
    let ret: i64;
    // SAFETY: the kernel preserves all registers but rax, rcx and r11; the rest is the caller's duty.
    unsafe {
        asm!("syscall", inlateout("rax") nr as i64 => ret, in("rdi") a, in("rsi") b, in("rdx") c,
             in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _,
             options(nostack))
    };
    ret
}

/// Calls by name with up to six arguments: `sys!(NR_mmap, addr, len, …)` is `Result<u64, Errno>`.
#[macro_export]
macro_rules! sys {
    ($nr:expr $(,)?) => {
        $crate::sys!($nr, 0, 0, 0, 0, 0, 0)
    };
    ($nr:expr, $a:expr) => {
        $crate::sys!($nr, $a, 0, 0, 0, 0, 0)
    };
    ($nr:expr, $a:expr, $b:expr) => {
        $crate::sys!($nr, $a, $b, 0, 0, 0, 0)
    };
    ($nr:expr, $a:expr, $b:expr, $c:expr) => {
        $crate::sys!($nr, $a, $b, $c, 0, 0, 0)
    };
    ($nr:expr, $a:expr, $b:expr, $c:expr, $d:expr) => {
        $crate::sys!($nr, $a, $b, $c, $d, 0, 0)
    };
    ($nr:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr) => {
        $crate::sys!($nr, $a, $b, $c, $d, $e, 0)
    };
    ($nr:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => {
        $crate::sys::check($crate::sys::syscall6(
            $nr as u64, $a as u64, $b as u64, $c as u64, $d as u64, $e as u64, $f as u64,
        ))
    };
}
