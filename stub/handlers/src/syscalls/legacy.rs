//! `int 0x80`: the system calls of 32-bit programs, made by 64-bit code.
//!
//! They have other numbers and 32-bit arguments. A call with the same meaning and structures in both ABIs is made as
//! the 64-bit one. The kernel makes other calls unchanged, with all guards lifted. A call that would change what only
//! we may change (memory, threads, signals) fails with ENOSYS, and the user is informed.

use core::arch::asm;
use core::sync::atomic::AtomicBool;

use linux_raw_sys::general as k;
use ulpf_lib::addr::USER_END;
use ulpf_lib::guard::flags;
use ulpf_lib::seccomp::I386;

use super::call::{Args, ENOSYS, Outcome};
use super::{confined, emulate, finish, seccomp, settle, user_dispatch};
use crate::global::g;
use crate::runtime::events::Request;
use crate::runtime::frame::{SigInfo, UContext};
use crate::runtime::park;
use crate::runtime::thread::Current;

/// A call was not made.
pub static REFUSED: AtomicBool = AtomicBool::new(false);

/// True if the program has made a 32-bit call. (`si_arch` of the signal.)
pub fn is_meant(info: &SigInfo) -> bool {
    (info.data[1] >> 32) as u32 == I386
}

/// Calls with the same meaning: the 32-bit number (`syscall_32.tbl`), and the 64-bit one.
const SAME: [(u32, u32); 62] = [
    (1, k::__NR_exit),
    (2, k::__NR_fork),
    (3, k::__NR_read),
    (4, k::__NR_write),
    (5, k::__NR_open),
    (6, k::__NR_close),
    (8, k::__NR_creat),
    (9, k::__NR_link),
    (10, k::__NR_unlink),
    (12, k::__NR_chdir),
    (14, k::__NR_mknod),
    (15, k::__NR_chmod),
    (20, k::__NR_getpid),
    (27, k::__NR_alarm),
    (29, k::__NR_pause),
    (33, k::__NR_access),
    (36, k::__NR_sync),
    (37, k::__NR_kill),
    (38, k::__NR_rename),
    (39, k::__NR_mkdir),
    (40, k::__NR_rmdir),
    (41, k::__NR_dup),
    (42, k::__NR_pipe),
    (57, k::__NR_setpgid),
    (60, k::__NR_umask),
    (61, k::__NR_chroot),
    (63, k::__NR_dup2),
    (64, k::__NR_getppid),
    (65, k::__NR_getpgrp),
    (66, k::__NR_setsid),
    (83, k::__NR_symlink),
    (85, k::__NR_readlink),
    (91, k::__NR_munmap),
    (118, k::__NR_fsync),
    (125, k::__NR_mprotect),
    (132, k::__NR_getpgid),
    (133, k::__NR_fchdir),
    (144, k::__NR_msync),
    (147, k::__NR_getsid),
    (148, k::__NR_fdatasync),
    (150, k::__NR_mlock),
    (151, k::__NR_munlock),
    (158, k::__NR_sched_yield),
    (168, k::__NR_poll),
    (172, k::__NR_prctl),
    (183, k::__NR_getcwd),
    (199, k::__NR_getuid),
    (200, k::__NR_getgid),
    (201, k::__NR_geteuid),
    (202, k::__NR_getegid),
    (218, k::__NR_mincore),
    (219, k::__NR_madvise),
    (224, k::__NR_gettid),
    (238, k::__NR_tkill),
    (252, k::__NR_exit_group),
    (258, k::__NR_set_tid_address),
    (270, k::__NR_tgkill),
    (295, k::__NR_openat),
    (307, k::__NR_faccessat),
    (330, k::__NR_dup3),
    (331, k::__NR_pipe2),
    (355, k::__NR_getrandom),
];

/// Calls that are refused: they change memory, threads or signals in a way of their own, or wait for a child or a
/// signal. They are execve, brk, signal, sigaction, sigsuspend, mmap, sigreturn, clone, sigprocmask, mremap, the rt_
/// ones, sigaltstack, vfork, mmap2, robust lists, execveat, rseq, clone3, …
const REFUSED_CALLS: [u32; 29] = [
    7, 11, 45, 48, 67, 68, 69, 72, 73, 90, 114, 119, 120, 123, 126, 163, 173, 174, 175, 176, 177,
    178, 179, 186, 190, 192, 311, 358, 435,
];

pub fn dispatch(t: Current, uc: &mut UContext) {
    g().count_syscall();
    let nr = uc.gprs.rax as u32;
    let r = &uc.gprs;
    let args = [r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp].map(|a| a & u64::from(u32::MAX));
    let outcome = match user_dispatch::takes(t, uc, nr.into(), I386) {
        true => Some(Outcome::Leave),
        false => seccomp::judge_as(t, uc, nr.into(), I386, &args),
    };
    let outcome = match outcome {
        Some(outcome) => outcome,
        None => make(t, uc, nr, &args),
    };
    finish(uc, nr.into(), outcome);
    settle(t, uc, false);
}

fn make(t: Current, uc: &mut UContext, nr: u32, args: &Args) -> Outcome {
    if let Some((_, ours)) = SAME.iter().find(|(theirs, _)| *theirs == nr) {
        return emulate(t, uc, (*ours).into(), args);
    }
    if REFUSED_CALLS.contains(&nr) {
        park::tell(t, uc, &REFUSED);
        return Outcome::Value(ENOSYS);
    }
    let guarded = g().guarded();
    if guarded {
        let (start, end) = (0, USER_END);
        park::request(t, uc, Request::OpenBegin { start, end });
    }
    flags::lost();
    let result = int80(nr, args);
    if guarded {
        park::request(t, uc, Request::End);
    }
    confined::legacy(t, uc, nr);
    Outcome::Value(result)
}

/// The kernel exempts calls from our image from dispatch, these too.
fn int80(nr: u32, a: &Args) -> i64 {
    let result: i64;
    // SAFETY: the program's own call. rbx and rbp cannot be operands, so they are exchanged around it.
    unsafe {
        asm!(
            "push rbp",
            "push rbx",
            "mov rbx, [r8]",
            "mov rbp, [r8 + 40]",
            "int 0x80",
            "pop rbx",
            "pop rbp",
            in("r8") a.as_ptr(),
            inlateout("rax") i64::from(nr) => result,
            in("rcx") a[1],
            in("rdx") a[2],
            in("rsi") a[3],
            in("rdi") a[4],
            lateout("r9") _,
            lateout("r10") _,
            lateout("r11") _,
        )
    };
    result
}
