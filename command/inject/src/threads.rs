//! All threads of a process under ptrace.
#![forbid(unsafe_code)]

use crate::error::StartError;
use crate::refuse::{why_not, with_errno};
use crate::tracee::{STOP_TIMEOUT, Stop, Tracee};
use std::collections::HashSet;
use std::io;
use std::time::Instant;
use ulpf_host::foreign::numbers::Process;
use ulpf_host::process;

/// Seizes every thread, also those that are created meanwhile. Their new threads are found in the
/// next round; a round without a new one ends it.
pub fn stop_all(process: &Process) -> Result<Vec<Tracee>, StartError> {
    let pid = process.pid;
    let refuse = |reason: String| StartError::Attach { pid, reason };
    let mut threads: Vec<Tracee> = Vec::new();
    let mut known = HashSet::new();
    let end = Instant::now() + STOP_TIMEOUT;
    loop {
        // Threads that make others and end could go on like that for ever.
        if Instant::now() > end {
            release(&threads);
            return Err(refuse(format!(
                "its threads come and go faster than they can be stopped ({} in {STOP_TIMEOUT:?}). Stop it with `kill -STOP {pid}` first.",
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
            // Its number may be a stranger's by now. If not, the next round finds it again: a thread that runs on
            // without the stub would meet our pages and our handlers alone.
            if !process.has_thread(tid) {
                tracee.let_go();
                known.remove(&tid);
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
pub fn settle(tracee: &Tracee, end: Instant) -> io::Result<bool> {
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

/// A thread that PTRACE_INTERRUPT took out of a sleeping system call must make the call again. The
/// kernel would do that by itself when it goes on, but only if nobody has run other code in between;
/// so step back to the `syscall` instruction by hand.
pub fn rewind_system_call(pid: i32, tracee: &Tracee) -> io::Result<()> {
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
