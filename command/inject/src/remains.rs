//! After a detach: takes the last of ours out of the program.
//!
//! The stub's task has ended, but threads of the program may still be on their way out of its code, and only a
//! tracer can tell. So every thread is stopped once more; when none is in memory of ours any longer, one of them
//! unmaps what the stub has listed (`stub/handlers/src/ours.rs`), and all go on.

use crate::gate::Gate;
use crate::image::SYSCALL;
use crate::keeper;
use crate::threads;
use crate::tracee::{Memory, Stop, Tracee};
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use ulpf_host::foreign::numbers::Process;
use ulpf_host::{process, sys};
use ulpf_lib::boot::{BOOT_MAGIC, BootArgs, Left};

/// How long threads have to leave our code. It takes them microseconds, but for one that waits in a system call
/// which nothing interrupts.
const LIMIT: Duration = Duration::from_secs(2);
/// How long one of them is left alone with a system call.
const MOMENT: Duration = Duration::from_millis(2);
/// How long one that executes something may take to have ended its other threads.
const LIMIT_OF_EXEC: Duration = Duration::from_millis(500);
/// How long a vfork child has to execute something.
const LIMIT_OF_VFORK: Duration = Duration::from_millis(300);
/// How long all the unmapping may take: some microseconds for each mapping.
const LIMIT_OF_UNMAPPING: Duration = Duration::from_secs(10);
/// Mappings that a stub may list: it has one for each thread, and some more. (The list is the program's
/// memory, and may say anything.)
const MOST: u64 = 1 << 16;

/// Where a stub says what it leaves behind.
#[derive(Clone, Copy, Debug)]
pub struct Remains {
    /// Address of its [`BootArgs`].
    pub args: u64,
}

impl Remains {
    /// Unmaps all of it; `stub` is our end of the channel to the stub that has just let go of the program.
    ///
    /// # Errors
    /// The kernel's, if the program cannot be traced any more, and one that says which thread does not come out of
    /// our code. Then memory of ours stays in the program, which it does not use.
    pub fn take_away(self, process: &Process, stub: &impl AsFd) -> io::Result<()> {
        if !sys::wait_for_hangup(stub, LIMIT) {
            return Err(io::Error::other("the stub's task does not end"));
        }
        wait_until_alone(process.pid)?;
        self.take_away_now(process)?;
        keeper::forget(process);
        Ok(())
    }

    /// As [`Remains::take_away`]; the stub's task has ended, and the program is alone in its memory.
    pub(crate) fn take_away_now(self, process: &Process) -> io::Result<()> {
        // When the thread that traces ends, the kernel lets go of those that have not come to a stop.
        let result = std::thread::scope(|scope| scope.spawn(|| self.trace(process)).join())
            .unwrap_or_else(|_| Err(io::Error::other("the tracer has failed")));
        // One that went on in our code may be about to execute a program, which ends the others first.
        let end = Instant::now() + LIMIT_OF_EXEC;
        while result.is_err() && self.are_there(process) {
            if Instant::now() > end {
                return result;
            }
            std::thread::sleep(MOMENT);
        }
        Ok(())
    }

    /// Has the stub let go of the program by itself, and listed what it leaves? (It has ended.)
    pub fn are_listed(self, process: &Process) -> bool {
        Memory::open(process.pid)
            .and_then(|memory| self.field(&memory, offset_of!(BootArgs, left)))
            .is_ok_and(|at| at != 0)
    }

    fn trace(self, process: &Process) -> io::Result<()> {
        let memory = Memory::open(process.pid)?;
        let mut threads = threads::stop_all(process).map_err(io::Error::other)?;
        if !self.are_there(process) {
            threads::release(&threads);
            return Ok(());
        }
        let held = self.args + offset_of!(BootArgs, held) as u64;
        let result = memory
            .write(held, &1u64.to_le_bytes())
            .map_err(|e| failed("tell its threads that they are held", e))
            .and_then(|()| self.unmap_with(process.pid, &memory, &mut threads));
        for thread in &mut threads {
            thread.release_held(process.pid);
            let _ = thread.detach(0);
        }
        result
    }

    /// Has the program our memory? One that it has executed meanwhile has nothing of ours.
    fn are_there(self, process: &Process) -> bool {
        Memory::open(process.pid)
            .and_then(|memory| self.field(&memory, offset_of!(BootArgs, magic)))
            .is_ok_and(|magic| magic == BOOT_MAGIC)
    }

    fn unmap_with(self, pid: i32, memory: &Memory, threads: &mut [Tracee]) -> io::Result<()> {
        let left = self
            .list(memory)
            .map_err(|e| failed("read what the stub has listed", e))?;
        wait_until_out(threads, &left)
            .map_err(|e| failed("wait until no thread is in its code", e))?;
        for thread in threads.iter() {
            threads::rewind_system_call(pid, thread)?;
        }
        let Some(thread) = threads.first_mut() else {
            return Ok(());
        };
        let saved = thread.save()?;
        let gate = match self.field(memory, offset_of!(BootArgs, left_gate))? {
            0 => Gate::find(pid, memory, &saved)
                .map_err(|e| failed("find a system call instruction", e))?,
            addr => Gate::at(addr),
        };
        let mut result = Ok(());
        let deadline = Instant::now() + LIMIT_OF_UNMAPPING;
        for range in &left {
            if Instant::now() > deadline {
                result = Err(io::ErrorKind::TimedOut.into());
                break;
            }
            let call = [range.start, range.end - range.start, 0, 0, 0, 0];
            match thread.syscall(gate.addr, libc::SYS_munmap, call) {
                Ok(Ok(_)) => {}
                Ok(Err(errno)) => result = Err(io::Error::from_raw_os_error(errno)),
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
        }
        gate.close(memory)
            .map_err(|e| failed("put the program's code back", e))?;
        thread.restore(&saved)?;
        result.map_err(|e| failed("unmap its memory", e))
    }

    /// A word of the boot block.
    fn field(self, memory: &Memory, offset: usize) -> io::Result<u64> {
        word(memory, self.args + offset as u64)
    }

    fn list(self, memory: &Memory) -> io::Result<Vec<Range<u64>>> {
        let at = self.field(memory, offset_of!(BootArgs, left))?;
        let count = self
            .field(memory, offset_of!(BootArgs, left_len))?
            .min(MOST);
        let mut list = Vec::new();
        for n in 0..count {
            let entry = at.wrapping_add(n * size_of::<Left>() as u64);
            let start = word(memory, entry + offset_of!(Left, start) as u64)?;
            let len = word(memory, entry + offset_of!(Left, len) as u64)?;
            let end = start.checked_add(len).ok_or(io::ErrorKind::InvalidData)?;
            list.push(start..end);
        }
        Ok(list)
    }
}

fn failed(step: &str, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("cannot {step}: {e}"))
}

fn word(memory: &Memory, at: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    memory.read(at, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// A vfork child runs in the same memory, in our code at first, and keeps its parent in there.
fn wait_until_alone(pid: i32) -> io::Result<()> {
    let deadline = Instant::now() + LIMIT_OF_VFORK;
    while let Some(other) = process::shares_memory(pid) {
        if Instant::now() > deadline {
            return Err(io::Error::other(format!(
                "process {other} runs in the same memory (vfork)"
            )));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Lets those go on that are in `left`, until none is: no further than to the program's next system call, for that may
/// be the one before which somebody wants to find it stopped.
fn wait_until_out(threads: &[Tracee], left: &[Range<u64>]) -> io::Result<()> {
    let deadline = Instant::now() + LIMIT;
    for thread in threads {
        // At its next stop for a system call it has not made that yet.
        let (mut signal, mut enters) = (0, true);
        // (What is interrupted may begin to wait anew, so it gets more time each time.)
        let mut pause = MOMENT;
        loop {
            // (The kernel delivers a fault's signal only after the stop that is asked for.)
            let busy = is_in(thread, left)? || signal == 0 && threads::has_fault(thread);
            if !busy && signal == 0 {
                break;
            }
            thread.cont_syscall(std::mem::take(&mut signal))?;
            match next_stop(thread, busy.then_some(pause), deadline)? {
                Stop::Syscall if enters && !is_in(thread, left)? => {
                    take_back_system_call(thread)?;
                    break;
                }
                Stop::Syscall => enters = !enters,
                Stop::Signal(number) => (signal, enters) = (number, true),
                Stop::Event(_) => enters = true,
                Stop::Exited(_) | Stop::Killed(_) => break,
            }
            pause = (pause * 2).min(LIMIT);
        }
    }
    Ok(())
}

/// The next stop of a thread that has just gone on. A busy one has so much time until it is asked to stop; another goes no
/// further than it must.
fn next_stop(thread: &Tracee, busy: Option<Duration>, deadline: Instant) -> io::Result<Stop> {
    let late = || {
        let tid = thread.tid;
        io::Error::other(format!(
            "thread {tid} waits in a system call that ulpf makes for it"
        ))
    };
    if Instant::now() > deadline {
        return Err(late());
    }
    if let Some(pause) = busy
        && let Some(stop) = thread.wait_until(deadline.min(Instant::now() + pause))?
    {
        return Ok(stop);
    }
    thread.interrupt()?;
    thread.wait_until(deadline)?.ok_or_else(late)
}

/// A thread at the entry to a system call stands before it again.
fn take_back_system_call(thread: &Tracee) -> io::Result<()> {
    let mut regs = thread.regs()?;
    let number = regs.orig_rax;
    regs.orig_rax = u64::MAX;
    thread.set_regs(&regs)?;
    thread.cont_syscall(0)?;
    match thread.wait()? {
        Stop::Syscall => {}
        Stop::Exited(_) | Stop::Killed(_) => return Ok(()),
        other => return Err(io::Error::other(format!("{other:?} in a system call"))),
    }
    regs.rip -= SYSCALL.len() as u64;
    regs.rax = number;
    thread.set_regs(&regs)
}

fn is_in(thread: &Tracee, left: &[Range<u64>]) -> io::Result<bool> {
    match thread.regs() {
        Ok(regs) => Ok(left.iter().any(|r| {
            [regs.rip, regs.rip.wrapping_sub(2), regs.rsp]
                .iter()
                .any(|at| r.contains(at))
        })),
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(false),
        Err(e) => Err(e),
    }
}
