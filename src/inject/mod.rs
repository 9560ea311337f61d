//! Starting a program, or taking hold of a running one, with the stub inside.
//!
//! The only unsafe code of the command lives below this module. Work is done synchronously, on the
//! calling thread, because ptrace binds a tracee to the thread that traces it; when a function here
//! returns, nothing is traced any more (see [`crate::inferior`] for the asynchronous side).
#![allow(unsafe_code)]

pub mod attach;
pub mod follow;
pub mod foreground;
pub mod image;
pub mod launch;
pub mod load;
pub mod process;
pub mod remains;
pub mod rights;
pub mod sessions;
pub mod shared;
pub mod sys;
mod tracee;

pub use attach::attach;
pub use launch::{Launch, Stdio, launch};
pub use shared::SharedArea;

use crate::foreign::numbers::Process;
use crate::settings::Settings;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::OnceLock;
use thiserror::Error;

/// The image that build.rs made.
static STUB: &Aligned<[u8]> = &Aligned(*include_bytes!(env!("ULPF_STUB_IMAGE")));

/// ELF headers are read in place.
#[repr(C, align(16))]
struct Aligned<T: ?Sized>(T);

pub fn stub_image() -> Result<&'static image::Image, StartError> {
    static IMAGE: OnceLock<image::Image> = OnceLock::new();
    if IMAGE.get().is_none() {
        let _ = IMAGE.set(image::Image::parse(&STUB.0)?);
    }
    IMAGE
        .get()
        .ok_or_else(|| StartError::step("prepare the stub", io::ErrorKind::Other.into()))
}

/// A program with the stub inside, every thread of it at rest there.
#[derive(Debug)]
pub struct Injected {
    pub process: Process,
    /// 0: it is not known.
    pub stub_pid: i32,
    /// Our end of the control channel: the remote serial protocol in no-ack mode.
    pub control: UnixStream,
    pub shared: SharedArea,
    /// We started it (and are its parent), rather than attached to it.
    pub launched: bool,
    pub settings: Settings,
    /// Things the user should know; full sentences.
    pub warnings: Vec<String>,
    /// What is to be taken away after a detach.
    pub remains: remains::Remains,
}

/// Why a program could not be started or attached to: what, why, what to do.
#[derive(Debug, Error)]
pub enum StartError {
    /// gdbserver's words, which tools read.
    #[error("During startup program exited with code {code}.")]
    ExitedEarly {
        code: i32,
        exec_error: Option<ExecError>,
    },
    #[error("During startup program terminated with signal {}, {}.", crate::signals::name(*signal), crate::signals::description(*signal))]
    KilledEarly { signal: i32 },
    #[error(
        "The memory file for hits and counters cannot be made: {}. {}",
        text(source),
        memfd_hint(source)
    )]
    Shared { source: io::Error },
    #[error("Cannot start {program}: {}.", text(source))]
    Fork { program: String, source: io::Error },
    #[error(
        "{program} is a 32-bit program, and ulpf watches 64-bit x86 programs only. Build it without -m32, or use gdbserver for it."
    )]
    Bits32 { program: String },
    #[error(
        "{program} is not an x86-64 program (it may use the x32 ABI, or another machine's code through an emulator). ulpf watches 64-bit x86 programs only."
    )]
    NotX86 { program: String },
    #[error(
        "{program} may be executed but not read, so the kernel lets no debugger look into it ({}). Make the file readable, or run ulpf as root.",
        text(source)
    )]
    Unreadable { program: String, source: io::Error },
    #[error("The program cannot get {} KiB of memory for the watchpoint stub: {}. A limit on its address space (ulimit -v, RLIMIT_AS) is the usual cause; raise or remove it.", bytes / 1024, text(source))]
    NoMemory { bytes: u64, source: io::Error },
    #[error(
        "Process {pid} may not make new memory executable: {}. A security policy (SELinux execmem, a seccomp filter) forbids it; ulpf needs an exception for this program.",
        text(source)
    )]
    Protect { pid: i32, source: io::Error },
    #[error(
        "The stub did not start in process {pid}: {source}. {}",
        boot_hint(source)
    )]
    Boot { pid: i32, source: io::Error },
    /// gdbserver's words first.
    #[error("Cannot attach to process {pid}: {reason}")]
    Attach { pid: i32, reason: String },
    #[error("Cannot {step}: {}.", text(source))]
    Step {
        step: &'static str,
        source: io::Error,
    },
    #[error(transparent)]
    Image(#[from] image::ImageError),
}

/// exec(2) itself failed, so no shell has told the user.
#[derive(Debug, Error)]
#[error("Cannot exec {program}\nError: {source}")]
pub struct ExecError {
    pub program: String,
    pub source: io::Error,
}

impl StartError {
    pub(crate) fn step(step: &'static str, source: io::Error) -> StartError {
        StartError::Step { step, source }
    }
}

/// Without the "(os error N)" that Rust appends.
fn text(error: &io::Error) -> String {
    error
        .raw_os_error()
        .map_or_else(|| error.to_string(), crate::errno_text)
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
            "The kernel lacks a system call that the stub needs (Linux 5.11 or later with syscall user dispatch and pidfd_getfd); see `ulpf doctor`."
        }
        Some(libc::ENOMEM) => "The program is short of memory; raise its limits (ulimit -v).",
        _ => "See `ulpf doctor` for what this machine offers.",
    }
}

/// Completes a start; `since` was taken when it began.
fn finish(
    process: Process,
    loaded: load::Loaded,
    since: shared::Clocks,
    launched: bool,
    settings: Settings,
    warnings: Vec<String>,
) -> Result<Injected, StartError> {
    let shared = SharedArea::map(loaded.shared, process.pid, since)
        .map_err(|e| StartError::step("map the shared area", e))?;
    // The program can write where the stub has left its number.
    let stub = process.in_its_memory(loaded.stub_pid);
    Ok(Injected {
        process,
        stub_pid: stub.map_or(0, |stub| stub.pid),
        control: loaded.control,
        shared,
        launched,
        settings,
        warnings,
        remains: loaded.remains,
    })
}

/// Path or number for messages about a process.
fn program_name(pid: i32) -> String {
    process::executable(pid)
        .unwrap_or_else(|| PathBuf::from(format!("Process {pid}")))
        .display()
        .to_string()
}

/// Refuses what the stub cannot live in.
fn check_class(pid: i32) -> Result<(), StartError> {
    match process::class(pid) {
        Ok(process::Class::Bits64) => Ok(()),
        Ok(process::Class::Bits32) => Err(StartError::Bits32 {
            program: program_name(pid),
        }),
        Ok(process::Class::Other) => Err(StartError::NotX86 {
            program: program_name(pid),
        }),
        Err(source) => Err(StartError::Unreadable {
            program: program_name(pid),
            source,
        }),
    }
}
