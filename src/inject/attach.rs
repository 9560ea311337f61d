//! Taking hold of a running process.

use super::shared::Clocks;
use super::tracee::{PATIENCE, Stop, Tracee};
use super::{Injected, StartError, check_class, finish, load, process, stub_image, sys};
use crate::foreign::numbers::Process;
use crate::settings::Settings;
use std::collections::HashSet;
use std::io;
use std::time::Instant;

/// Puts the stub into a running process and brings all its threads to rest there.
pub fn attach(pid: i32, settings: Settings) -> Result<Injected, StartError> {
    let image = stub_image()?;
    let refuse = |reason: String| StartError::Attach { pid, reason };
    let status = check(pid)?;
    let stopped_by_job_control = status.state() == 'T';
    let process = Process::open(pid).map_err(|e| refuse(with_errno(&e)))?;
    let since = Clocks::now();
    let mut threads = stop_all(&process)?;
    let result = check_class(pid).and_then(|()| {
        for t in &threads {
            rewind_system_call(pid, t)
                .map_err(|e| StartError::step("read the registers of the program", e))?;
        }
        load::load(pid, &mut threads, image, settings.boot_flags())
    });
    match result {
        Ok(loaded) => {
            let mut warnings = Vec::new();
            if stopped_by_job_control {
                // Its threads can only come to rest in the stub when they run.
                let _ = process.signal(libc::SIGCONT);
                warnings.push(format!("warning: Process {pid} was stopped (by Ctrl-Z or SIGSTOP) and has been woken with SIGCONT."));
            }
            finish(process, loaded, since, false, settings, warnings)
        }
        Err(error) => {
            for t in &threads {
                let _ = t.detach(0);
            }
            Err(error)
        }
    }
}

fn with_errno(e: &io::Error) -> String {
    // gdbserver: "No such process (3)".
    match e.raw_os_error() {
        Some(n) => format!("{} ({n})", crate::errno_text(n)),
        None => e.to_string(),
    }
}

/// Everything that can be refused before the process is touched.
fn check(pid: i32) -> Result<process::Status, StartError> {
    let refuse = |reason: String| StartError::Attach { pid, reason };
    let status = process::Status::of(pid)
        .map_err(|_| refuse(with_errno(&io::Error::from_raw_os_error(libc::ESRCH))))?;
    if pid == std::process::id() as i32 {
        return Err(refuse("it is ulpf itself.".into()));
    }
    if let Some(process) = status.process().filter(|&p| p != pid) {
        return Err(refuse(format!(
            "{pid} is a thread of process {process}. Attach to {process}; all its threads come along."
        )));
    }
    if status.state() == 'Z' || status.state() == 'X' {
        return Err(refuse(
            "it has already ended and only waits for its parent to notice (a zombie).".into(),
        ));
    }
    if status.is_kernel_thread() {
        return Err(refuse(
            "it is a thread of the kernel and has no memory of its own.".into(),
        ));
    }
    if let Some(tracer) = status.tracer() {
        let name = process::Status::of(tracer)
            .map(|s| s.name().to_string())
            .unwrap_or_else(|_| "?".into());
        return Err(refuse(format!(
            "it is already traced by process {tracer} ({name}). A process has one debugger at a time; detach that one first."
        )));
    }
    // A former session leaves its memory behind (a thread may have been on its way out of it), but
    // its stub has gone.
    if let (Ok(Some(_)), Some(stub)) = (
        process::mapping(pid, "/memfd:ulpf-shared"),
        shares_memory(pid),
    ) {
        return Err(refuse(format!(
            "another ulpf is already in it (process {stub} is its stub). End that session first."
        )));
    }
    Ok(status)
}

/// Another process that runs in the same memory.
pub(super) fn shares_memory(pid: i32) -> Option<i32> {
    process::all()
        .ok()?
        .into_iter()
        .find(|&other| other != pid && sys::same_memory(pid, other))
}

/// Seizes every thread, also those that are created meanwhile. Their new threads are found in the
/// next round; a round without a new one ends it.
pub(super) fn stop_all(process: &Process) -> Result<Vec<Tracee>, StartError> {
    let pid = process.pid;
    let refuse = |reason: String| StartError::Attach { pid, reason };
    let mut threads: Vec<Tracee> = Vec::new();
    let mut known = HashSet::new();
    let end = Instant::now() + PATIENCE;
    loop {
        // Threads that make others and end could go on like that for ever.
        if Instant::now() > end {
            release(&threads);
            return Err(refuse(format!(
                "its threads come and go faster than they can be stopped ({} in {PATIENCE:?}). Stop it with `kill -STOP {pid}` first.",
                known.len()
            )));
        }
        let tids = process::threads(pid).map_err(|e| refuse(with_errno(&e)))?;
        let new: Vec<i32> = tids.into_iter().filter(|t| !known.contains(t)).collect();
        if new.is_empty() {
            break;
        }
        for tid in new {
            known.insert(tid);
            let tracee = match Tracee::seize(tid) {
                Ok(tracee) => tracee,
                // Ended between the listing and now.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => continue,
                // A thread that is exiting, or a dead leader whose other threads live on.
                Err(e) if e.raw_os_error() == Some(libc::EPERM) && is_dying(pid, tid) => continue,
                Err(e) => {
                    let why = why_not(pid, &e);
                    release(&threads);
                    return Err(refuse(why));
                }
            };
            // Its number may be a stranger's by now.
            if !process.has_thread(tid) {
                tracee.let_go();
                continue;
            }
            match settle(&tracee, end) {
                Ok(true) => threads.push(tracee),
                Ok(false) => {}
                Err(e) => {
                    release(&threads);
                    tracee.let_go();
                    return Err(StartError::step("stop every thread of the program", e));
                }
            }
        }
    }
    if threads.is_empty() {
        return Err(refuse(with_errno(&io::Error::from_raw_os_error(
            libc::ESRCH,
        ))));
    }
    Ok(threads)
}

/// Waits for the stop that PTRACE_INTERRUPT asked for, delivering signals that come first. False: the
/// thread has ended instead.
pub(super) fn settle(tracee: &Tracee, end: Instant) -> io::Result<bool> {
    loop {
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        match tracee.wait_until(end)?.ok_or_else(late)? {
            Stop::Event(libc::PTRACE_EVENT_STOP) => return Ok(true),
            Stop::Exited(_) | Stop::Killed(_) => return Ok(false),
            Stop::Signal(signal) => tracee.cont(signal)?,
            _ => tracee.cont(0)?,
        }
    }
}

fn release(threads: &[Tracee]) {
    for t in threads {
        let _ = t.detach(0);
    }
}

fn is_dying(pid: i32, tid: i32) -> bool {
    process::Status::of_thread(pid, tid).map_or(true, |s| matches!(s.state(), 'Z' | 'X'))
}

fn why_not(pid: i32, error: &io::Error) -> String {
    let base = with_errno(error);
    if error.raw_os_error() != Some(libc::EPERM) {
        return base;
    }
    // SAFETY: no arguments, cannot fail.
    let me = unsafe { libc::geteuid() };
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

/// A thread that PTRACE_INTERRUPT took out of a sleeping system call must make the call again. The
/// kernel would do that by itself when it goes on, but only if nobody has run other code in between;
/// so step back to the `syscall` instruction by hand.
pub(super) fn rewind_system_call(pid: i32, tracee: &Tracee) -> io::Result<()> {
    let mut regs = tracee.regs()?;
    if (regs.orig_rax as i64) < 0 {
        return Ok(());
    }
    let again = match regs.rax as i64 {
        // ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, (ENOIOCTLCMD,) ERESTART_RESTARTBLOCK.
        -516 | -514..=-512 => true,
        // Some calls (epoll_wait, semop, sigtimedwait …) return EINTR for any interruption. If no
        // signal is there to be the reason, the reason was us.
        -4 => {
            !process::Status::of_thread(pid, tracee.tid).is_ok_and(|s| s.has_deliverable_signal())
        }
        _ => false,
    };
    if again {
        regs.rip -= 2;
        regs.rax = regs.orig_rax;
        regs.orig_rax = u64::MAX;
        tracee.set_regs(&regs)?;
    }
    Ok(())
}
