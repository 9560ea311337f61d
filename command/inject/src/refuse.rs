//! Refuses programs before they are touched, and explains refusals of the kernel.
#![forbid(unsafe_code)]

use crate::error::StartError;
use crate::keeper;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use ulpf_host::errno::errno_text;
use ulpf_host::{process, sys};

/// Makes all checks that are possible before the process is touched.
pub fn attaching(pid: i32) -> Result<process::Status, StartError> {
    let refuse = |reason: String| StartError::Attach { pid, reason };
    let status =
        settled(pid).map_err(|_| refuse(with_errno(&io::Error::from_raw_os_error(libc::ESRCH))))?;
    if pid == std::process::id() as i32 {
        return Err(refuse("it is ulpf itself.".into()));
    }
    if let Some(process) = status.process().filter(|&p| p != pid) {
        return Err(refuse(format!(
            "{pid} is a thread of process {process}. Attach to {process}; all its threads come along."
        )));
    }
    if has_ended(&status) {
        if has_others(pid) {
            return Err(refuse(
                "its first thread has ended, by which the kernel shows the memory of all.".into(),
            ));
        }
        return Err(refuse(
            "it has already ended and only waits for its parent to notice (a zombie).".into(),
        ));
    }
    if status.is_kernel_thread() {
        return Err(refuse(
            "it is a thread of the kernel and has no memory of its own.".into(),
        ));
    }
    let status = without_keeper(pid, status);
    if let Some(tracer) = status.tracer() {
        let name = process::Status::of(tracer)
            .map(|s| s.name().to_string())
            .unwrap_or_else(|_| "?".into());
        return Err(refuse(format!(
            "it is already traced by process {tracer} ({name}). A process has one debugger at a time; detach that one first."
        )));
    }
    // A former session may have left its memory behind (a thread may have been leaving it), but its stub has gone.
    if let (Ok(Some(_)), Some(stub)) = (
        process::mapping(pid, "/memfd:ulpf-shared"),
        process::shares_memory(pid),
    ) {
        return Err(refuse(format!(
            "another ulpf is already in it (process {stub} is its stub). End that session first."
        )));
    }
    Ok(status)
}

/// Waits while the helper process of a ulpf that was killed removes the last of it from the program.
fn without_keeper(pid: i32, mut status: process::Status) -> process::Status {
    const LIMIT: Duration = Duration::from_secs(5);
    let end = Instant::now() + LIMIT;
    let is_keeper = |tracer| process::Status::of(tracer).is_ok_and(|s| s.name() == keeper::NAME);
    while status.tracer().is_some_and(is_keeper) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
        match process::Status::of(pid) {
            Ok(now) => status = now,
            Err(_) => break,
        }
    }
    status
}

fn has_ended(status: &process::Status) -> bool {
    matches!(status.state(), 'Z' | 'X')
}

/// Whether the process has more threads than the first.
fn has_others(pid: i32) -> bool {
    process::threads(pid).is_ok_and(|tids| tids.len() > 1)
}

/// The status of the process. When another thread calls exec and becomes the first, the first one is dead for a moment.
fn settled(pid: i32) -> io::Result<process::Status> {
    const MOMENT: Duration = Duration::from_secs(1);
    let end = Instant::now() + MOMENT;
    loop {
        let status = process::Status::of(pid)?;
        if !has_ended(&status) || Instant::now() > end {
            return Ok(status);
        }
        if !has_others(pid) {
            return process::Status::of(pid); // another thread has become the first meanwhile
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Path or number of a process, for messages.
pub fn program_name(pid: i32) -> String {
    process::executable(pid)
        .unwrap_or_else(|| PathBuf::from(format!("Process {pid}")))
        .display()
        .to_string()
}

/// Refuses programs that the stub cannot live in.
pub fn class(pid: i32) -> Result<(), StartError> {
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

/// Reason why a thread cannot be seized.
pub fn why_not(pid: i32, error: &io::Error) -> String {
    let base = with_errno(error);
    if error.raw_os_error() != Some(libc::EPERM) {
        return base;
    }
    let me = sys::user();
    let owner = process::Status::of(pid).ok().and_then(|s| s.user());
    if me != 0 && owner.is_some_and(|o| o != me) {
        return format!(
            "{base}. It belongs to user {}; run ulpf as that user or as root.",
            owner.unwrap_or(0)
        );
    }
    match process::ptrace_scope() {
        Some(1) if me != 0 => format!(
            "{base}. This machine lets a debugger attach to its own children only (yama). Start the program with ulpf, run ulpf as root, or allow it until the next boot: echo 0 | sudo tee /proc/sys/kernel/yama/ptrace_scope"
        ),
        Some(2) if me != 0 => format!(
            "{base}. This machine lets only root attach (yama's ptrace_scope is 2). Run ulpf as root, or: echo 0 | sudo tee /proc/sys/kernel/yama/ptrace_scope"
        ),
        Some(3) => format!(
            "{base}. This machine forbids attaching until the next boot (yama's ptrace_scope is 3)."
        ),
        _ => format!(
            "{base}. It may be a set-user-ID program, protected from debuggers (PR_SET_DUMPABLE), or ulpf runs in a container without the SYS_PTRACE capability."
        ),
    }
}

/// In gdbserver's form: `No such process (3)`.
pub fn with_errno(e: &io::Error) -> String {
    match e.raw_os_error() {
        Some(n) => format!("{} ({n})", errno_text(n)),
        None => e.to_string(),
    }
}
