//! C symbols that capstone and compiler-generated code need. The stub links against no libc. It defines these symbols
//! itself and never calls the program's code.

use core::ffi::{c_char, c_int, c_void};

use ulpf_stub_handlers::say::fatal;

use crate::heap;

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(d: *mut u8, s: *const u8, n: usize) -> *mut u8 {
    // SAFETY: C contract; the direction flag is clear in all our code.
    unsafe {
        core::arch::asm!("rep movsb", inout("rcx") n => _, inout("rdi") d => _, inout("rsi") s => _, options(nostack, preserves_flags))
    };
    d
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(d: *mut u8, s: *const u8, n: usize) -> *mut u8 {
    if (d as usize).wrapping_sub(s as usize) >= n {
        // SAFETY: no forward overlap.
        return unsafe { memcpy(d, s, n) };
    }
    // SAFETY: C contract; copied from the end, and the direction flag is cleared again.
    unsafe {
        core::arch::asm!("std", "rep movsb", "cld", inout("rcx") n => _, inout("rdi") d.wrapping_add(n).wrapping_sub(1) => _,
            inout("rsi") s.wrapping_add(n).wrapping_sub(1) => _, options(nostack))
    };
    d
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(d: *mut u8, c: c_int, n: usize) -> *mut u8 {
    // SAFETY: C contract.
    unsafe {
        core::arch::asm!("rep stosb", inout("rcx") n => _, inout("rdi") d => _, in("al") c as u8, options(nostack, preserves_flags))
    };
    d
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> c_int {
    let mut i = 0;
    while i < n {
        // SAFETY: C contract.
        let (x, y) = unsafe {
            (
                core::ptr::read_volatile(a.add(i)),
                core::ptr::read_volatile(b.add(i)),
            )
        };
        if x != y {
            return x as c_int - y as c_int;
        }
        i += 1;
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> c_int {
    // SAFETY: the same contract.
    unsafe { memcmp(a, b, n) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(s: *const c_char) -> usize {
    let mut n = 0;
    // SAFETY: C contract. Volatile, or the loop becomes a call of strlen.
    while unsafe { core::ptr::read_volatile(s.add(n)) } != 0 {
        n += 1;
    }
    n
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strcmp(a: *const u8, b: *const u8) -> c_int {
    // SAFETY: C contract.
    unsafe { strncmp(a, b, usize::MAX) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strncmp(a: *const u8, b: *const u8, n: usize) -> c_int {
    let mut i = 0;
    while i < n {
        // SAFETY: C contract.
        let (x, y) = unsafe {
            (
                core::ptr::read_volatile(a.add(i)),
                core::ptr::read_volatile(b.add(i)),
            )
        };
        if x != y || x == 0 {
            return x as c_int - y as c_int;
        }
        i += 1;
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strcpy(d: *mut u8, s: *const u8) -> *mut u8 {
    // SAFETY: C contract.
    unsafe { memcpy(d, s, strlen(s as *const c_char) + 1) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strncpy(d: *mut u8, s: *const u8, n: usize) -> *mut u8 {
    let mut i = 0;
    let mut done = false;
    while i < n {
        let c = if done {
            0
        } else {
            // SAFETY: C contract.
            unsafe { core::ptr::read_volatile(s.add(i)) }
        };
        done |= c == 0;
        // SAFETY: C contract.
        unsafe { core::ptr::write_volatile(d.add(i), c) };
        i += 1;
    }
    d
}

#[unsafe(no_mangle)]
unsafe extern "C" fn strchr(s: *const u8, c: c_int) -> *const u8 {
    let mut p = s;
    loop {
        // SAFETY: C contract.
        let x = unsafe { core::ptr::read_volatile(p) };
        if x == c as u8 {
            return p;
        }
        if x == 0 {
            return core::ptr::null();
        }
        p = p.wrapping_add(1);
    }
}

#[unsafe(no_mangle)]
extern "C" fn malloc(n: usize) -> *mut u8 {
    heap::c_malloc(n)
}

#[unsafe(no_mangle)]
extern "C" fn calloc(n: usize, m: usize) -> *mut u8 {
    n.checked_mul(m)
        .map_or(core::ptr::null_mut(), heap::c_zeroed)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(p: *mut u8, n: usize) -> *mut u8 {
    let new = heap::c_malloc(n);
    if !p.is_null() && !new.is_null() {
        // SAFETY: both blocks hold that many bytes.
        unsafe { memcpy(new, p, n.min(heap::c_size(p))) };
        heap::c_free(p);
    }
    new
}

#[unsafe(no_mangle)]
extern "C" fn free(p: *mut u8) {
    heap::c_free(p);
}

/// Capstone formats operand text with it. The stub never reads that text, so it stays empty.
#[unsafe(no_mangle)]
unsafe extern "C" fn vsnprintf(
    s: *mut c_char,
    n: usize,
    _format: *const c_char,
    _args: *mut c_void,
) -> c_int {
    if n > 0 {
        // SAFETY: C contract.
        unsafe { *s = 0 };
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn __assert_fail(_: *const c_char, _: *const c_char, _: u32, _: *const c_char) -> ! {
    fatal("an assertion in capstone failed")
}

#[unsafe(no_mangle)]
extern "C" fn abort() -> ! {
    fatal("abort")
}

/// Referenced by the precompiled core library's unwind tables; panics abort, so never called.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    fatal("unwinding")
}
