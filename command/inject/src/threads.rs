//! All threads of a process under ptrace.
#![forbid(unsafe_code)]

use crate::error::StartError;
use crate::refuse::{why_not, with_errno};
use crate::tracee::{Memory, STOP_TIMEOUT, Stop, Tracee};
use crate::unaided;
use std::collections::HashSet;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use ulpf_host::foreign::numbers::Process;
use ulpf_host::{process, sys};

/// Wait for a thread to stop before the others are checked.
const MOMENT: Duration = Duration::from_millis(50);

/// Seizes every thread, including those that are created meanwhile: each round finds new threads, and a round without
/// any ends the search.
pub fn stop_all(process: &Process) -> Result<Vec<Tracee>, StartError> {
    let end = Instant::now() + STOP_TIMEOUT;
    let (tell, stopped) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| reap(stopped));
        let tell = tell; // dropped at the end, which ends the other thread
        loop {
            let Some(threads) = stop_all_until(process, end, &tell)? else {
                continue;
            };
            return match take_home(process.pid, &threads) {
                Ok(()) => Ok(threads),
                Err(e) => {
                    release(&threads);
                    Err(StartError::step("read the registers of the program", e))
                }
            };
        }
    })
}

/// Takes threads home that a tracer before us has left in the midst of a call for it.
fn take_home(pid: i32, threads: &[Tracee]) -> io::Result<()> {
    let Some(vdso) = process::mapping(pid, "[vdso]")? else {
        return Ok(());
    };
    let memory = Memory::open(pid)?;
    for thread in threads {
        match unaided::take_home(thread, &memory, &vdso) {
            // The thread was killed meanwhile.
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
            result => result?,
        }
    }
    Ok(())
}

/// A thread that calls exec ends all others, and waits until their tracer has reaped them; PTRACE_SEIZE waits for it
/// meanwhile. So a second thread reaps those that were stopped already.
fn reap(stopped: mpsc::Receiver<i32>) {
    let mut all = HashSet::new();
    loop {
        match stopped.recv_timeout(MOMENT) {
            Ok(tid) => drop(all.insert(tid)),
            Err(RecvTimeoutError::Timeout) => {
                for tid in &all {
                    if let Ok(Some(_)) = sys::ended(*tid) {
                        let _ = sys::try_reap(*tid);
                    }
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// As [`stop_all`]. `None` if a thread has called exec, and is the only one now.
fn stop_all_until(
    process: &Process,
    end: Instant,
    stopped: &mpsc::Sender<i32>,
) -> Result<Option<Vec<Tracee>>, StartError> {
    let pid = process.pid;
    let refuse = |reason: String| StartError::Attach { pid, reason };
    let mut threads: Vec<Tracee> = Vec::new();
    let mut known = HashSet::new();
    loop {
        // Threads that create others and end could continue like that for ever.
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
            let tracee = match seize(tid, pid) {
                Ok(tracee) => tracee,
                // The thread has ended since the listing.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => continue,
                // A thread that is exiting, or a dead leader whose other threads live on.
                Err(e) if e.raw_os_error() == Some(libc::EPERM) && is_dying(pid, tid) => continue,
                Err(_) if is_ours(tid) => {
                    Tracee::adopt(tid).let_go();
                    threads.iter().for_each(Tracee::let_go);
                    return Ok(None);
                }
                Err(e) => {
                    let why = why_not(pid, &e);
                    release(&threads);
                    return Err(refuse(why));
                }
            };
            // Its number may belong to another process by now. If not, the next round finds it again: a thread that
            // runs on without the stub would meet our guarded pages and handlers unprepared.
            if !process.has_thread(tid) {
                tracee.let_go();
                known.remove(&tid);
                continue;
            }
            match settle_beside(&tracee, &threads, end) {
                Ok(Settled::Stopped) => {
                    threads.push(tracee);
                    let _ = stopped.send(tid);
                }
                Ok(Settled::Ended) => {}
                Ok(Settled::Executes) => {
                    threads.iter().chain([&tracee]).for_each(Tracee::let_go);
                    return Ok(None);
                }
                Err(e) => {
                    release(&threads);
                    tracee.let_go();
                    return Err(StartError::step("stop every thread of the program", e));
                }
            }
        }
    }
    if threads.iter().any(has_gone) {
        threads.iter().for_each(Tracee::let_go);
        return Ok(None);
    }
    match threads.is_empty() {
        // One has called exec, and taken the number of the first one, which had ended.
        true if lives(pid) => Ok(None),
        true => Err(refuse(with_errno(&io::Error::from_raw_os_error(
            libc::ESRCH,
        )))),
        false => Ok(Some(threads)),
    }
}

/// Seizes a thread. A thread that calls exec takes the number of the first one, which has ended; for a moment the
/// kernel refuses that number.
fn seize(tid: i32, pid: i32) -> io::Result<Tracee> {
    const TRIES: u32 = 20;
    let mut tries = 0;
    loop {
        match Tracee::seize(tid) {
            Err(e) if e.raw_os_error() == Some(libc::EPERM) && tries < TRIES => {
                if is_dying(pid, tid) || is_ours(tid) {
                    return Err(e);
                }
                tries += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

/// Whether a stopped thread has ended, or been replaced by one that called exec.
fn has_gone(thread: &Tracee) -> bool {
    let is_stopped = |s: process::Status| s.state() == 't';
    !matches!(thread.poll(), Ok(None)) || !process::Status::of(thread.tid).is_ok_and(is_stopped)
}

/// Whether we trace this thread; it had another number, and has called exec since.
fn is_ours(tid: i32) -> bool {
    process::Status::of(tid).is_ok_and(|s| s.tracer() == Some(sys::thread()))
}

enum Settled {
    Stopped,
    Ended,
    Executes,
}

/// As [`settle`], while `others` are stopped; these end if the thread calls exec.
fn settle_beside(tracee: &Tracee, others: &[Tracee], end: Instant) -> io::Result<Settled> {
    loop {
        match settle(tracee, end.min(Instant::now() + MOMENT)) {
            Ok(true) => return Ok(Settled::Stopped),
            Ok(false) => return Ok(Settled::Ended),
            // It has the number of the first one now.
            Err(e) if e.raw_os_error() == Some(libc::ECHILD) => return Ok(Settled::Executes),
            Err(e) if e.kind() != io::ErrorKind::TimedOut || Instant::now() > end => return Err(e),
            Err(_) => {}
        }
        if others.iter().any(has_gone) {
            return Ok(Settled::Executes);
        }
    }
}

/// Waits for the stop that PTRACE_INTERRUPT requested, and delivers signals that come first. False if the thread has
/// ended instead.
///
/// The kernel makes that stop before it delivers a signal that an instruction has raised. Such a signal is delivered,
/// too; otherwise it would arrive in the middle of a call that the thread makes for us.
pub fn settle(tracee: &Tracee, end: Instant) -> io::Result<bool> {
    loop {
        let late = || io::Error::from(io::ErrorKind::TimedOut);
        match tracee.wait_until(end)?.ok_or_else(late)? {
            Stop::Event(libc::PTRACE_EVENT_STOP) if has_fault(tracee) => tracee.cont(0)?,
            Stop::Event(libc::PTRACE_EVENT_STOP) => return Ok(true),
            Stop::Exited(_) | Stop::Killed(_) => return Ok(false),
            Stop::Signal(signal) => tracee.cont_to_stop(signal)?,
            _ => tracee.cont_to_stop(0)?,
        }
    }
}

/// Whether an instruction has raised a signal that is not delivered yet.
pub fn has_fault(tracee: &Tracee) -> bool {
    process::Status::of(tracee.tid).is_ok_and(|s| s.has_fault())
}

/// Detaches from stopped threads.
pub fn release(threads: &[Tracee]) {
    for t in threads {
        let _ = t.detach(0);
    }
}

fn lives(pid: i32) -> bool {
    process::threads(pid).is_ok_and(|tids| tids.iter().any(|tid| !is_dying(pid, *tid)))
}

fn is_dying(pid: i32, tid: i32) -> bool {
    process::Status::of_thread(pid, tid).map_or(true, |s| matches!(s.state(), 'Z' | 'X'))
}

/// A thread that PTRACE_INTERRUPT took out of a sleeping system call must make the call again. The kernel does that
/// only if no other code runs in between, so the thread is moved back to the `syscall` instruction.
pub fn rewind_system_call(pid: i32, tracee: &Tracee) -> io::Result<()> {
    let mut regs = tracee.regs()?;
    if (regs.orig_rax as i64) < 0 {
        return Ok(());
    }
    let again = match regs.rax as i64 {
        // ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, (ENOIOCTLCMD,) ERESTART_RESTARTBLOCK.
        -516 | -514..=-512 => true,
        // Some calls (epoll_wait, semop, sigtimedwait …) return EINTR for any interruption. If no signal is pending, we
        // have caused it.
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
