//! Last resort: prints a few words on the program's standard error, and ends the program.

use core::sync::atomic::{AtomicPtr, Ordering::*};

use linux_raw_sys::general as k;
use ulpf_lib::sys;

use crate::global::{g, machine};

/// Ends the program after an internal error, with a message on its standard error: continuing would mean wrong answers.
pub fn fatal(why: &str) -> ! {
    write_stderr("ulpf: internal error, the program cannot go on: ");
    write_stderr(why);
    write_stderr("\n");
    // SAFETY: ends the program and this task.
    unsafe {
        let pid = g().pid.load(Relaxed);
        if pid > 0 {
            let _ = sys!(k::__NR_kill, pid, k::SIGKILL);
        }
        let _ = sys!(k::__NR_exit_group, 125);
    }
    loop {
        core::hint::spin_loop();
    }
}

/// Ends a forked child that cannot continue; its parent can.
pub fn fatal_child(why: &str) -> ! {
    write_stderr("ulpf: ");
    write_stderr(why);
    write_stderr("\n");
    loop {
        // SAFETY: ends the child.
        let _ = unsafe { sys!(k::__NR_exit_group, 125) };
    }
}

/// Output of the stub's task, which has no standard error: `fn(&str)`, or null.
static TASK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sends messages of the stub's task to the command from now on. `tell` allocates nothing.
pub fn task_tells(tell: fn(&str)) {
    TASK.store(tell as *mut (), Release);
}

/// Writes to the program's standard error; from the stub's task, to the command.
pub fn write_stderr(s: &str) {
    // SAFETY: a query.
    let me = unsafe { sys!(k::__NR_getpid) };
    if me == Ok(g().stub_tid.load(Relaxed) as u64) {
        let tell = TASK.load(Acquire);
        if !tell.is_null() {
            // SAFETY: `task_tells` has put it there.
            let tell: fn(&str) = unsafe { core::mem::transmute(tell) };
            tell(s);
        }
        return;
    }
    // SAFETY: writes a string.
    let _ = unsafe { sys!(k::__NR_write, k::STDERR_FILENO, s.as_ptr(), s.len()) };
}

/// As [`fatal`], with the place and the address of a fault in our own code.
pub fn fatal_fault(why: &str, pc: u64, addr: u64) -> ! {
    fault(pc, addr);
    fatal(why)
}

/// Prints the place of a fault in our own code, and its address.
pub fn fault(pc: u64, addr: u64) {
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
    hex(pc.wrapping_sub(machine().image.0), &mut a);
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
}
