//! ptrace(2) among the processes of the program. A process that is traced by another one of them reports the same as
//! without us: by then, nothing of ours is in it.
//! ```text
//!     PTRACE_TRACEME      the thread stops; the command lets go of its process, and the call is made there once more
//!     PTRACE_ATTACH,      the thread stops; the command lets go of the process that it names, if that is watched;
//!     PTRACE_SEIZE        then the call is made; one that the kernel refuses changes nothing
//! ```
//! A task besides the threads may trace them and share their memory (`crate::runtime::tracer`).
//!
//! A vfork child that wants to be traced has our memory, and its parent, which waits for it, cannot see it stop. So it
//! is traced from its exec on, which is not followed. A process that a debugger traces cannot be traced a second time.
//! A program that was started by `ulpf run` has no tracer. Its call returns success, as it does under a shell.

use core::sync::atomic::{AtomicBool, Ordering::*};

use linux_raw_sys::general as k;
use linux_raw_sys::prctl::{PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_OFF};
use linux_raw_sys::ptrace::*;
use ulpf_lib::AccessKind;
use ulpf_lib::sys;
use ulpf_lib::sys::failure::{EIO, ESRCH};

use super::call::{Args, EPERM, Outcome, RESTART, raw};
use super::ordinary::{ordinary, watches_kernel};
use super::scratch::Scratch;
use super::vectors::IoVec;
use super::{buffers, put_off};
use crate::global::{boot_block, follows, g};
use crate::runtime::events::Event;
use crate::runtime::frame::UContext;
use crate::runtime::memory;
use crate::runtime::park::{self, park};
use crate::runtime::thread::{Call, Current};

/// A vfork child is traced by the program, and not followed into what it executes.
pub static UNFOLLOWED: AtomicBool = AtomicBool::new(false);
/// The program believes to be traced by its parent.
static BELIEVED: AtomicBool = AtomicBool::new(false);

pub fn call(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> Outcome {
    match a[0] as u32 {
        PTRACE_TRACEME => trace_me(t, uc, nr, a),
        PTRACE_ATTACH | PTRACE_SEIZE if g().follows(follows::TRACES) && t.is_programs() => {
            let number = a[1] as i32;
            if number > 0 && would_be_made(a) {
                park(t, uc, Event::Traces { number });
            }
            Outcome::Value(ordinary(t, uc, nr, a))
        }
        PTRACE_ATTACH | PTRACE_SEIZE => {
            // Before the call: the thread may stop at once.
            if !t.is_programs() && g().threads.find(a[1] as i32).is_some() {
                t.own().traces.set(true);
            }
            Outcome::Value(ordinary(t, uc, nr, a))
        }
        PTRACE_GETREGSET => Outcome::Value(register_set(t, uc, nr, a, AccessKind::Write)),
        PTRACE_SETREGSET => Outcome::Value(register_set(t, uc, nr, a, AccessKind::Read)),
        _ => {
            let result = ordinary(t, uc, nr, a);
            // The last thread may have been released.
            put_off::serve(t, uc);
            Outcome::Value(result)
        }
    }
}

/// PTRACE_GETREGSET and PTRACE_SETREGSET: the last argument points to a vector, whose length the kernel writes back.
fn register_set(t: Current, uc: &mut UContext, nr: u64, a: &Args, kind: AccessKind) -> i64 {
    /// Bytes of the largest register set.
    const MOST: u64 = 64 << 10;
    let Some(vector) = memory::get::<IoVec>(a[3]).filter(|_| watches_kernel()) else {
        return ordinary(t, uc, nr, a);
    };
    let length_at = a[3] + 8;
    let len = vector.len.min(MOST);
    let mut s = Scratch::new(t);
    s.keep(length_at, 8);
    if kind.writes() {
        s.keep(vector.base, len);
    }
    let mut copy = IoVec {
        base: s.place(vector.base, len, kind, false),
        len: vector.len,
    };
    let mut given = *a;
    given[3] = &raw mut copy as u64;
    let result = raw(nr, &given);
    if result != 0 {
        return result;
    }
    let moved = copy.len.min(len);
    if kind.writes() {
        s.written(vector.base, moved);
    }
    memory::put(length_at, &copy.len);
    let call = Call {
        nr,
        args: *a,
        result,
    };
    for (at, len, kind) in [
        (a[3], 16, AccessKind::Read),
        (vector.base, moved, kind),
        (length_at, 8, AccessKind::Write),
    ] {
        buffers::hit(t, uc, &call, at, len, kind, &s.kept);
    }
    result
}

/// True if the kernel would start to trace by this PTRACE_ATTACH or PTRACE_SEIZE. It may still refuse later.
fn would_be_made(a: &Args) -> bool {
    let [request, number, address, options, ..] = *a;
    // A thread cannot trace itself (EPERM), which the kernel checks after the options (EIO).
    let own = raw(k::__NR_gettid.into(), &[0; 6]) as u64;
    let call = [request, own, address, options, 0, 0];
    if request as u32 == PTRACE_SEIZE && raw(k::__NR_ptrace.into(), &call) == EIO {
        return false;
    }
    // Reading another process's memory needs the same rights, and the kernel checks them before the address, which is
    // unmapped.
    let mut byte = 0u8;
    let here = [&raw mut byte as u64, 1];
    let there = [0u64, 1];
    let call = [number, here.as_ptr() as u64, 1, there.as_ptr() as u64, 1, 0];
    let read = raw(k::__NR_process_vm_readv.into(), &call);
    read != EPERM && read != ESRCH
}

fn trace_me(t: Current, uc: &mut UContext, nr: u64, a: &Args) -> Outcome {
    if t.own().spawned.get() {
        t.own().traced.set(true);
        return Outcome::Value(0);
    }
    if !t.is_programs() {
        return Outcome::Value(ordinary(t, uc, nr, a));
    }
    if g().follows(follows::TRACED) {
        park(t, uc, Event::Traces { number: 0 });
        if !t.leaving.load(Relaxed) {
            return Outcome::Value(EPERM);
        }
        wait_to_be_held();
        return Outcome::Value(RESTART);
    }
    let believes = g().follows(follows::TRACES) && !BELIEVED.swap(true, SeqCst);
    Outcome::Value(if believes { 0 } else { EPERM })
}

/// Waits until the command traces the thread out of our code; no other process may trace it meanwhile.
fn wait_to_be_held() {
    // SAFETY: the block exists as long as the image.
    let held = || unsafe { (&raw const (*boot_block()).held).read_volatile() != 0 };
    // Limited, since the command may have ended.
    for _ in 0..2000 {
        if held() {
            return;
        }
        let tick = [0u64, 1_000_000];
        // SAFETY: sleeps a millisecond.
        let _ = unsafe { sys!(k::__NR_nanosleep, tick.as_ptr(), 0) };
    }
}

/// True if the vfork child must be traced from its exec on, which it is about to make.
pub fn from_exec(t: Current, uc: &mut UContext) -> bool {
    let traced = t.own().traced.get();
    if traced && g().follows(follows::SPAWN) {
        park::tell(t, uc, &UNFOLLOWED);
    }
    traced
}

/// Starts tracing right before the exec of this file. If the exec failed, the child would be traced in the middle of
/// our signals, which its parent cannot handle. Returns `false` if the exec will fail.
pub fn begin(dir: i32, path_at: u64) -> bool {
    if !is_program(dir, path_at) {
        return false;
    }
    let _ = raw(
        k::__NR_ptrace.into(),
        &[PTRACE_TRACEME.into(), 0, 0, 0, 0, 0],
    );
    true
}

/// True if the file is executable, and begins as programs and scripts do. (Assumed if it is not readable.)
fn is_program(dir: i32, path_at: u64) -> bool {
    const X_OK: u64 = 1;
    // SAFETY: the program's own path, or a copy of it.
    if unsafe { sys!(k::__NR_faccessat, dir, path_at, X_OK) }.is_err() {
        return false;
    }
    // SAFETY: as above.
    let Ok(fd) = (unsafe { sys!(k::__NR_openat, dir, path_at, k::O_RDONLY | k::O_CLOEXEC) }) else {
        return true;
    };
    let mut magic = [0u8; 4];
    // SAFETY: our own descriptor.
    let read = unsafe { sys!(k::__NR_read, fd, magic.as_mut_ptr(), magic.len()) };
    // SAFETY: as above.
    let _ = unsafe { sys!(k::__NR_close, fd) };
    read.is_ok() && (magic == *b"\x7fELF" || magic.starts_with(b"#!"))
}

/// The exec has failed. The child continues without dispatch, since each signal of ours would be reported to its
/// tracer.
pub fn exec_has_failed() {
    // SAFETY: switches this thread's dispatch off.
    let _ = unsafe {
        sys!(
            k::__NR_prctl,
            PR_SET_SYSCALL_USER_DISPATCH,
            PR_SYS_DISPATCH_OFF,
            0,
            0,
            0
        )
    };
}
