//! Programs in their own sandbox: checks whether their seccomp filters let the stub work.
//!
//! A filter that a program installs under ulpf does no harm (`stub/handlers/src/syscalls/seccomp.rs`). Filters from
//! before an attach apply to the stub's calls, and may kill it. So they are evaluated first.
#![forbid(unsafe_code)]

use crate::error::StartError;
use crate::tracee::Tracee;
use libc::*;
use ulpf_host::process::Status;
use ulpf_lib::seccomp::{Data, Instruction, Verdict, X86_64, run, strictest};
use ulpf_lib::syscalls;

/// System calls that the stub makes in the program. Where filters may check arguments, they are those of the stub.
const NEEDED: [(c_long, [u64; 6]); 44] = {
    const fn plain(nr: c_long) -> (c_long, [u64; 6]) {
        (nr, [0; 6])
    }
    const READ_WRITE: u64 = (PROT_READ | PROT_WRITE) as u64;
    const PRIVATE: u64 = (MAP_PRIVATE | MAP_ANONYMOUS) as u64;
    const NONE: u64 = u64::MAX;
    const AT_FDCWD: u64 = libc::AT_FDCWD as u64;
    [
        (SYS_mmap, [0, 4096, READ_WRITE, PRIVATE, NONE, 0]),
        (
            SYS_mmap,
            [
                4096,
                4096,
                READ_WRITE,
                (MAP_SHARED | MAP_FIXED) as u64,
                3,
                0,
            ],
        ),
        (
            SYS_mprotect,
            [4096, 4096, (PROT_READ | PROT_EXEC) as u64, 0, 0, 0],
        ),
        (SYS_mprotect, [4096, 4096, 0, 0, 0, 0]),
        plain(SYS_munmap),
        plain(SYS_mremap),
        (SYS_madvise, [0, 0, MADV_DONTNEED as u64, 0, 0, 0]),
        plain(SYS_memfd_create),
        plain(SYS_ftruncate),
        plain(SYS_fallocate),
        plain(SYS_fcntl),
        (
            SYS_socketpair,
            [AF_UNIX as u64, SOCK_STREAM as u64, 0, 0, 0, 0],
        ),
        plain(SYS_close),
        plain(SYS_close_range),
        (
            SYS_openat,
            [AT_FDCWD, 0, (O_RDONLY | O_CLOEXEC) as u64, 0, 0, 0],
        ),
        plain(SYS_read),
        plain(SYS_pread64),
        plain(SYS_write),
        plain(SYS_pwrite64),
        plain(SYS_sendto),
        plain(SYS_recvfrom),
        plain(SYS_poll),
        (SYS_clone, [CLONE_VM as u64, 0, 0, 0, 0, 0]),
        plain(SYS_exit),
        plain(SYS_exit_group),
        plain(SYS_wait4),
        (SYS_prctl, [59, 1, 0, 0, 0, 0]), // PR_SET_SYSCALL_USER_DISPATCH
        plain(SYS_arch_prctl),
        (SYS_futex, [0, FUTEX_WAIT as u64, 0, 0, 0, 0]),
        (SYS_futex, [0, FUTEX_WAKE as u64, 0, 0, 0, 0]),
        plain(SYS_rt_sigaction),
        plain(SYS_rt_sigprocmask),
        plain(SYS_rt_sigreturn),
        plain(SYS_rt_sigtimedwait),
        plain(SYS_rt_tgsigqueueinfo),
        plain(SYS_sigaltstack),
        plain(SYS_tgkill),
        plain(SYS_kill),
        plain(SYS_gettid),
        plain(SYS_getpid),
        plain(SYS_getppid),
        plain(SYS_sched_yield),
        plain(SYS_set_tid_address),
        plain(SYS_process_vm_readv),
    ]
};

/// Refuses a program whose filters would not let the stub work, or cannot be read.
pub fn permits(pid: i32, threads: &[Tracee]) -> Result<(), StartError> {
    let ours = Status::of(std::process::id() as i32).map_or(0, |status| status.seccomp_filters());
    for thread in threads {
        let theirs =
            Status::of_thread(pid, thread.tid).map_or(0, |status| status.seccomp_filters());
        // Filters of a container around both of us.
        if theirs <= ours {
            continue;
        }
        let refuse = |reason| Err(StartError::Attach { pid, reason });
        match filters(thread) {
            Some(filters) => {
                if let Some(name) = forbidden(&filters) {
                    return refuse(format!(
                        "it has put itself into a sandbox (seccomp) that forbids {name}, which ulpf needs in there. Start it \
                         with ulpf: what ulpf does is let pass then."
                    ));
                }
            }
            None => {
                return refuse(
                    "it has put itself into a sandbox (seccomp), which may forbid what ulpf does in there, and only root can \
                     look. Start it with ulpf, or attach as root."
                        .into(),
                );
            }
        }
    }
    Ok(())
}

/// The thread's filters, oldest first. `None` if the kernel does not show them, or in strict mode.
pub fn filters(thread: &Tracee) -> Option<Vec<Vec<Instruction>>> {
    let mut all = Vec::new();
    while let Some(filter) = thread.seccomp_filter(all.len()).ok()? {
        all.push(filter);
    }
    Some(all).filter(|all| !all.is_empty())
}

/// The first call among [`NEEDED`] that does not pass.
fn forbidden(filters: &[Vec<Instruction>]) -> Option<&'static str> {
    let passes = |nr: c_long, args: [u64; 6]| {
        let data = Data {
            nr: nr as i32,
            arch: X86_64,
            instruction_pointer: 0,
            args,
        };
        Verdict::of(strictest(filters.iter().rev().map(|f| run(f, &data)))) == Verdict::Allow
    };
    let (nr, _) = NEEDED.iter().find(|(nr, args)| !passes(*nr, *args))?;
    Some(syscalls::row(*nr as u64).map_or("a system call", |row| row.name))
}
