//! After a detach: removes the stub's remains from the program.
//!
//! The stub's task has ended, but threads of the program may still be leaving its code, and only a tracer can tell. So
//! every thread is stopped once more. When none is in our memory any longer, one of them unmaps the ranges that the
//! stub has listed (`stub/handlers/src/ours.rs`), and all resume.

use crate::gate::Gate;
use crate::image::{SYSCALL, stub_image};
use crate::keeper;
use crate::threads;
use crate::tracee::{Memory, Stop, Tracee};
use std::io;
use std::mem::offset_of;
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use ulpf_host::foreign::files;
use ulpf_host::foreign::numbers::Process;
use ulpf_host::{process, sys};
use ulpf_lib::boot::{BOOT_MAGIC, BootArgs, Left};
use ulpf_lib::mapping::mappings;

/// Time limit for threads to leave our code. It takes them microseconds, except for one in an uninterruptible system
/// call.
const LIMIT: Duration = Duration::from_secs(2);
/// First pause before a thread in a system call is interrupted.
const MOMENT: Duration = Duration::from_millis(2);
/// Time limit for an exec to end the process's other threads.
const LIMIT_OF_EXEC: Duration = Duration::from_millis(500);
/// Time limit for a vfork child to exec.
const LIMIT_OF_VFORK: Duration = Duration::from_millis(300);
/// Time limit for all the unmapping; each mapping takes some microseconds.
const LIMIT_OF_UNMAPPING: Duration = Duration::from_secs(10);
/// Limit of the mappings that a stub may list: one for each thread, and some more. (The list is in the program's
/// memory, and may contain anything.)
const MOST: u64 = 1 << 16;

/// Location of a stub's list of remains.
#[derive(Clone, Copy, Debug)]
pub struct Remains {
    /// Address of its [`BootArgs`].
    pub args: u64,
}

impl Remains {
    /// Unmaps all of it; `stub` is our end of the channel to the stub that has just released the program.
    ///
    /// # Errors
    /// The kernel's, if the program cannot be traced any more; or one that names the thread that does not leave our
    /// code. Our memory then stays in the program, which does not use it.
    pub fn take_away(self, process: &Process, stub: &impl AsFd) -> io::Result<()> {
        if !sys::wait_for_hangup(stub, LIMIT) {
            return Err(io::Error::other("the stub's task does not end"));
        }
        wait_until_alone(process.pid)?;
        // If the keeper fails, the attempt here reports the error.
        if !keeper::take_away(process) {
            self.take_away_now(process)?;
        }
        keeper::forget(process);
        Ok(())
    }

    /// As [`Remains::take_away`], when the stub's task has ended and no other process shares the program's memory.
    pub(crate) fn take_away_now(self, process: &Process) -> io::Result<()> {
        // When the tracing thread ends, the kernel releases the threads that have not stopped.
        let result = std::thread::scope(|scope| scope.spawn(|| self.trace(process)).join())
            .unwrap_or_else(|_| Err(io::Error::other("the tracer has failed")));
        // A thread that continued in our code may be about to exec, which first ends the others.
        let end = Instant::now() + LIMIT_OF_EXEC;
        while result.is_err() && self.are_there(process) {
            if Instant::now() > end {
                return result;
            }
            std::thread::sleep(MOMENT);
        }
        Ok(())
    }

    /// Stubs in the program that were not taken away, as far as they are complete enough to be known.
    pub(crate) fn find(process: &Process) -> Vec<Remains> {
        let (Ok(image), Ok(memory)) = (stub_image(), Memory::open(process.pid)) else {
            return Vec::new();
        };
        let maps = files::maps(process.pid).unwrap_or_default();
        let anonymous = mappings(&maps).filter(|m| m.inode == 0);
        let all = anonymous.map(|m| {
            (
                m.start,
                Remains {
                    args: m.start + image.args_offset,
                },
            )
        });
        let is_one = |start: u64, remains: Remains| {
            let field = |offset: usize| remains.field(&memory, offset).ok();
            let is = |offset: usize, value: u64| field(offset) == Some(value);
            is(offset_of!(BootArgs, magic), BOOT_MAGIC)
                && is(offset_of!(BootArgs, image_base), start)
                && is(offset_of!(BootArgs, image_len), image.len)
                // (What was taken away, but for the memory that the program goes on to use.)
                && is(offset_of!(BootArgs, held), 0)
        };
        all.filter(|(start, remains)| is_one(*start, *remains))
            .map(|(_, remains)| remains)
            .collect()
    }

    /// The number of the stub's task, once there is one.
    pub(crate) fn task(self, process: &Process) -> Option<i32> {
        let memory = Memory::open(process.pid).ok()?;
        let word = self.field(&memory, offset_of!(BootArgs, stub_pid)).ok()?;
        Some(word as u32 as i32).filter(|pid| *pid > 0)
    }

    /// Unmaps the image of a stub that was not started, and closes its descriptors.
    ///
    /// # Errors
    /// The kernel's, or the stub is being started.
    pub(crate) fn unload(self, process: &Process) -> io::Result<()> {
        std::thread::scope(|scope| scope.spawn(|| self.trace_unstarted(process)).join())
            .unwrap_or_else(|_| Err(io::Error::other("the tracer has failed")))
    }

    fn trace_unstarted(self, process: &Process) -> io::Result<()> {
        let memory = Memory::open(process.pid)?;
        let mut threads = threads::stop_all(process).map_err(io::Error::other)?;
        let result = self.unload_with(process, &memory, &mut threads);
        for thread in &mut threads {
            thread.release_held(process.pid);
            let _ = thread.detach(0);
        }
        result
    }

    fn unload_with(
        self,
        process: &Process,
        memory: &Memory,
        threads: &mut [Tracee],
    ) -> io::Result<()> {
        let base = self.field(memory, offset_of!(BootArgs, image_base))?;
        let len = self.field(memory, offset_of!(BootArgs, image_len))?;
        let image = base..base.checked_add(len).ok_or(io::ErrorKind::InvalidData)?;
        wait_until_out(threads, std::slice::from_ref(&image))?;
        // (No thread is in the image, so the boot has ended or will not begin.)
        if self.task(process).is_some() {
            return Err(io::Error::other("it has been started"));
        }
        let fds = self.field(memory, offset_of!(BootArgs, control_fd))?;
        let made = [fds as u32, (fds >> 32) as u32].into_iter();
        let made = made.filter(|fd| (*fd as i32) >= 0);
        let close = made.map(|fd| (libc::SYS_close, [fd.into(), 0, 0, 0, 0, 0]));
        let unmap = (libc::SYS_munmap, [base, len, 0, 0, 0, 0]);
        make_calls(process.pid, memory, threads, 0, close.chain([unmap]))
    }

    /// Whether the stub has released the program by itself, and listed its remains. (The stub has ended.)
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

    /// Whether the program still has our memory; a program after exec has none of it.
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
        let calls = left.iter().map(|range| {
            (
                libc::SYS_munmap,
                [range.start, range.end - range.start, 0, 0, 0, 0],
            )
        });
        let gate = self.field(memory, offset_of!(BootArgs, left_gate))?;
        make_calls(pid, memory, threads, gate, calls)
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
        // (A tracer that was killed may have unmapped the list; then only the image is left.)
        if word(memory, at).is_err() {
            let [base, len] = [
                offset_of!(BootArgs, image_base),
                offset_of!(BootArgs, image_len),
            ]
            .map(|offset| self.field(memory, offset));
            let base = base?;
            list.push(base..base.checked_add(len?).ok_or(io::ErrorKind::InvalidData)?);
            return Ok(list);
        }
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

/// Lets one of the threads make these calls: of all of them the last error. `gate`: see [`BootArgs::left_gate`].
fn make_calls(
    pid: i32,
    memory: &Memory,
    threads: &mut [Tracee],
    gate: u64,
    calls: impl IntoIterator<Item = (i64, [u64; 6])>,
) -> io::Result<()> {
    for thread in threads.iter() {
        threads::rewind_system_call(pid, thread)?;
    }
    let Some(thread) = threads.first_mut() else {
        return Ok(());
    };
    let saved = thread.save()?;
    let gate = match gate {
        0 => Gate::find(pid, memory, &saved.regs)
            .map_err(|e| failed("find a system call instruction", e))?,
        addr => Gate::at(addr),
    };
    let mut result = Ok(());
    let deadline = Instant::now() + LIMIT_OF_UNMAPPING;
    for (number, args) in calls {
        if Instant::now() > deadline {
            result = Err(io::ErrorKind::TimedOut.into());
            break;
        }
        match thread.syscall(&gate, number, args) {
            Ok(Ok(_)) => {}
            Ok(Err(errno)) => result = Err(io::Error::from_raw_os_error(errno)),
            Err(e) => {
                result = Err(e);
                break;
            }
        }
    }
    thread.restore()?;
    gate.close(memory)
        .map_err(|e| failed("put the program's code back", e))?;
    result.map_err(|e| failed("unmap its memory", e))
}

fn failed(step: &str, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("cannot {step}: {e}"))
}

fn word(memory: &Memory, at: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    memory.read(at, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Waits until no vfork child shares the memory. Such a child at first runs in our code, and its parent waits there.
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

/// Resumes the threads in `left` until none is in it. Each goes no further than to the program's next system call,
/// because a user may want to find it stopped before that one.
fn wait_until_out(threads: &[Tracee], left: &[Range<u64>]) -> io::Result<()> {
    let deadline = Instant::now() + LIMIT;
    for thread in threads {
        // At its next system call stop the thread has not made the call yet.
        let (mut signal, mut enters) = (0, true);
        // (An interrupted call may start to wait again, so the pause doubles each time.)
        let mut pause = MOMENT;
        loop {
            // (The kernel delivers a fault's signal only after the requested stop.)
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

/// The next stop of a resumed thread. A busy one is asked to stop only after the pause; any other is asked at once.
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

/// Moves a thread at the entry to a system call back before the instruction. It makes no call where it is, whether it
/// is still traced or not.
fn take_back_system_call(thread: &Tracee) -> io::Result<()> {
    let mut regs = thread.regs()?;
    regs.rax = regs.orig_rax;
    regs.orig_rax = u64::MAX;
    regs.rip -= SYSCALL.len() as u64;
    thread.set_regs(&regs)?;
    thread.cont_syscall(0)?;
    match thread.wait()? {
        Stop::Syscall | Stop::Exited(_) | Stop::Killed(_) => Ok(()),
        other => Err(io::Error::other(format!("{other:?} in a system call"))),
    }
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
