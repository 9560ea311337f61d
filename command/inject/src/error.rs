//! Errors of starting and attaching, as the user reads them.
#![forbid(unsafe_code)]

use crate::image::ImageError;
use std::io;
use thiserror::Error;
use ulpf_host::errno::error_text;
use ulpf_host::{process, signals};

/// Reason why a program could not be started or attached to, and what to do.
#[derive(Debug, Error)]
pub enum StartError {
    /// gdbserver's words, which tools parse.
    #[error("During startup program exited with code {code}.")]
    ExitedEarly {
        code: i32,
        exec_error: Option<ExecError>,
    },
    #[error("During startup program terminated with signal {}, {}.", signals::name(*signal), signals::description(*signal))]
    KilledEarly { signal: i32 },
    #[error(
        "The memory file for hits and counters cannot be made: {}. {}",
        error_text(source),
        memfd_hint(source)
    )]
    Shared { source: io::Error },
    #[error(
        "No program can be traced here: {}. {}",
        error_text(source),
        trace_hint()
    )]
    NotTraced { source: io::Error },
    #[error("Cannot start {program}: {}.", error_text(source))]
    Fork { program: String, source: io::Error },
    #[error(
        "{program} is a 32-bit program, and ulpf watches 64-bit x86 programs only. Build it without -m32, or use gdbserver for it."
    )]
    Bits32 { program: String },
    #[error(
        "{program} is not an x86-64 program (it may use the x32 ABI, or another machine's code through an emulator). ulpf watches 64-bit x86 programs only."
    )]
    NotX86 { program: String },
    #[error("{program} {}", unreadable(source))]
    Unreadable { program: String, source: io::Error },
    #[error("The program cannot get {} KiB of memory for the watchpoint stub: {}. A limit on its address space (ulimit -v, RLIMIT_AS) is the usual cause; raise or remove it.", bytes / 1024, error_text(source))]
    NoMemory { bytes: u64, source: io::Error },
    #[error(
        "Process {pid} may not make new memory executable: {}. A security policy (SELinux execmem, a seccomp filter) forbids it; ulpf needs an exception for this program.",
        error_text(source)
    )]
    Protect { pid: i32, source: io::Error },
    #[error(
        "The stub did not start in process {pid}: {source}. {}",
        boot_hint(source)
    )]
    Boot { pid: i32, source: io::Error },
    #[error(
        "Its own seccomp filters let no memory be mapped (mmap) in the way in which ulpf has to begin there; a program in a sandbox is watched where it may map libraries."
    )]
    Confined,
    #[error(
        "{program} gains rights by its exec (set-user-ID, set-group-ID, capabilities), so it is not followed. --follow-setuid follows such programs, too."
    )]
    Privileged { program: String },
    /// Starts with gdbserver's words.
    #[error("Cannot attach to process {pid}: {reason}")]
    Attach { pid: i32, reason: String },
    #[error("Cannot {step}: {}.", error_text(source))]
    Step {
        step: &'static str,
        source: io::Error,
    },
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// exec(2) itself failed, so no shell has told the user.
#[derive(Debug, Error)]
#[error("Cannot exec {program}\nError: {source}")]
pub struct ExecError {
    pub program: String,
    pub source: io::Error,
}

impl StartError {
    /// "Cannot `step`", and the reason.
    pub fn step(step: &'static str, source: io::Error) -> StartError {
        StartError::Step { step, source }
    }
}

/// Reason why a started program cannot be inspected.
fn unreadable(error: &io::Error) -> String {
    match std::path::Path::new("/proc/self").exists() {
        true => format!(
            "may be executed but not read, so the kernel lets no debugger look into it ({}). Make the file readable, or run ulpf as root.",
            error_text(error)
        ),
        false => "cannot be looked into: /proc is not mounted. mount -t proc proc /proc".into(),
    }
}

/// Advice on what restricts ptrace(2).
fn trace_hint() -> &'static str {
    match process::ptrace_scope() {
        Some(2) => {
            "Only root may trace (yama's ptrace_scope is 2). Run ulpf as root, or, until the next boot: echo 0 | sudo tee /proc/sys/kernel/yama/ptrace_scope"
        }
        Some(3) => {
            "This machine forbids it until the next boot (yama's ptrace_scope is 3). Boot with another setting of kernel.yama.ptrace_scope."
        }
        _ => {
            "A container's seccomp filter or a security policy is likely. In Docker: --cap-add=SYS_PTRACE, or --security-opt seccomp=unconfined."
        }
    }
}

fn memfd_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EFBIG) => {
            "A limit on file size (ulimit -f, RLIMIT_FSIZE) is in the way; it counts for memory files too. Raise it to at least 2 GiB."
        }
        Some(libc::EACCES) => {
            "The setting vm.memfd_noexec (sysctl) may be in the way: with 2, memory files without a flag of Linux 6.3 are refused. With 1 ulpf works."
        }
        Some(libc::ENOSYS | libc::EPERM) => {
            "memfd_create is forbidden here, by a container's seccomp filter as a rule; allow it."
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            "There are too many open files; raise the limit (ulimit -n)."
        }
        _ => "See `ulpf doctor` for what this machine offers.",
    }
}

fn boot_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "It may not look into the program itself: the program has protected itself from debuggers (PR_SET_DUMPABLE), or a security policy is in the way."
        }
        Some(libc::ENOSYS | libc::EINVAL) => {
            "The kernel lacks a system call that the stub needs (Linux 5.11 or later with syscall user dispatch); see `ulpf doctor`."
        }
        Some(libc::ENOMEM) => "The program is short of memory; raise its limits (ulimit -v).",
        _ => "See `ulpf doctor` for what this machine offers.",
    }
}
