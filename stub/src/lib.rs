//! The image that ulpf loads into the watched program: no libc, no thread-local storage, nothing
//! shared with the program but its memory. See ARCHITECTURE.md.
//!
//! Two kinds of code live here. `runtime/`, `syscalls/` and `fault` run on the program's threads
//! inside signal handlers. `control/` and `gdb/` run on the stub's own task, which shares only the
//! address space with the program.
#![no_std]
#![allow(static_mut_refs)]
extern crate alloc;

mod arena;
mod attributes;
mod boot;
mod control;
mod cshim;
mod direct;
mod fault;
mod filter;
mod gdb;
mod global;
mod hits;
mod inferior;
mod library;
mod log;
mod ours;
mod patches;
mod runs;
mod runtime;
mod syscalls;
mod unwind;
mod upcall;

pub use global::g;

use linux_raw_sys::general as k;
use ulpf_lib::sys;

/// The stub cannot go on. Says so on the program's standard error and ends the program: going on
/// would mean wrong answers.
pub fn fatal(why: &str) -> ! {
    write_stderr("ulpf: internal error, the program cannot go on: ");
    write_stderr(why);
    write_stderr("\n");
    // SAFETY: ends the program and this task.
    unsafe {
        let pid = g().pid.load(core::sync::atomic::Ordering::Relaxed);
        if pid > 0 {
            let _ = sys!(k::__NR_kill, pid, 9);
        }
        let _ = sys!(k::__NR_exit_group, 125);
    }
    loop {
        core::hint::spin_loop();
    }
}

/// A forked child cannot go on; its parent can.
pub fn fatal_child(why: &str) -> ! {
    write_stderr("ulpf: ");
    write_stderr(why);
    write_stderr("\n");
    loop {
        // SAFETY: ends the child.
        let _ = unsafe { sys!(k::__NR_exit_group, 125) };
    }
}

/// The program's standard error; the stub's own task has none, and tells the command.
pub fn write_stderr(s: &str) {
    use core::sync::atomic::Ordering::Relaxed;
    // SAFETY: asks for a number; writes a string.
    unsafe {
        if sys!(k::__NR_getpid) == Ok(g().stub_tid.load(Relaxed) as u64) {
            return control::notices::tell(s);
        }
        let _ = sys!(k::__NR_write, 2, s.as_ptr(), s.len());
    }
}

/// As [`fatal`], with the place and the address of a fault in our own code.
pub fn fatal_fault(why: &str, pc: u64, addr: u64) -> ! {
    let hex = |v: u64, to: &mut [u8; 18]| {
        to[0] = b'0';
        to[1] = b'x';
        let mut n = 0;
        while n < 16 {
            to[2 + n] = b"0123456789abcdef"[(v >> (60 - 4 * n)) as usize & 15];
            n += 1;
        }
    };
    let (mut a, mut b, mut c) = ([0u8; 18], [0u8; 18], [0u8; 18]);
    hex(pc.wrapping_sub(g().image.0), &mut a);
    hex(addr, &mut b);
    hex(pc, &mut c);
    for s in [
        &b"ulpf: fault at image+"[..],
        &a,
        b" (pc ",
        &c,
        b") address ",
        &b,
        b"\n",
    ] {
        write_stderr(core::str::from_utf8(s).unwrap_or_default());
    }
    fatal(why)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    use core::fmt::Write;
    struct Err;
    impl Write for Err {
        fn write_str(&mut self, s: &str) -> core::fmt::Result {
            write_stderr(s);
            Ok(())
        }
    }
    let _ = writeln!(Err, "ulpf: {info}");
    fatal("panic")
}
