//! One thread under ptrace.
//!
//! All calls must come from the thread that attached to it: the loader does its whole work in one closure on one thread
//! (see [`crate::launch()`], [`crate::attach()`]).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};
use ulpf_host::process::FAULTS;
use ulpf_host::sys::{self, Backoff};
use ulpf_lib::boot::Home;
use ulpf_lib::eflags;
use ulpf_lib::seccomp::Instruction;

pub type Registers = libc::user_regs_struct;

/// Time limit for a thread's next stop. Everything that we run in a program takes milliseconds, except under extreme
/// load or in a hang.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// Limit of the signals that arrive while we run code in a thread.
const MOST_HELD: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A signal that is about to be delivered.
    Signal(i32),
    /// Entry to or exit from a system call.
    Syscall,
    /// A `PTRACE_EVENT_*` with its number.
    Event(i32),
    Exited(i32),
    Killed(i32),
}

impl Stop {
    /// The signal that is about to be delivered, or 0.
    pub fn signal(self) -> i32 {
        match self {
            Stop::Signal(signal) => signal,
            _ => 0,
        }
    }
}

/// A thread's registration with rseq(2).
pub struct RseqArea {
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
    /// Value before the abort code of each sequence.
    pub signature: u64,
}

/// State that a thread needs to resume as if it had not been interrupted.
#[derive(Clone, Copy, Debug)]
pub struct Saved {
    pub regs: Registers,
    fpregs: libc::user_fpregs_struct,
}

impl Saved {
    /// As the stub keeps it: general registers in the order of a signal frame, and what FXSAVE writes.
    pub fn home(&self) -> Home {
        let r = &self.regs;
        let gprs = [
            r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx,
            r.rdx, r.rax, r.rcx, r.rsp, r.rip, r.eflags,
        ];
        // SAFETY: both are 512 bytes without padding, in the layout of FXSAVE.
        let fx = unsafe { std::mem::transmute::<libc::user_fpregs_struct, [u8; 512]>(self.fpregs) };
        Home { gprs, fx }
    }
}

/// All registers zero.
pub fn no_registers() -> Registers {
    // SAFETY: all-zero is a valid user_regs_struct.
    unsafe { std::mem::zeroed() }
}

#[derive(Debug)]
pub struct Tracee {
    pub tid: i32,
    /// It is our child, and other code reaps it.
    keeps_end: bool,
    /// Its state at the stop, once saved.
    home: Option<Saved>,
    /// Signals that came while we ran code in the thread, to be sent again afterwards.
    held: Vec<libc::siginfo_t>,
}

/// The C library's type of a request.
#[cfg(target_env = "musl")]
type Request = libc::c_int;
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;

/// `<linux/ptrace.h>`
const PTRACE_SECCOMP_GET_FILTER: Request = 0x420c;
/// `<linux/ptrace.h>`
const PTRACE_GET_RSEQ_CONFIGURATION: Request = 0x420f;

/// `struct ptrace_rseq_configuration` (`<linux/ptrace.h>`); not every C library has it.
#[repr(C)]
#[derive(Default)]
struct RseqConfiguration {
    address: u64,
    size: u32,
    signature: u32,
    flags: u32,
    pad: u32,
}

fn ptrace(request: Request, tid: i32, addr: usize, data: usize) -> io::Result<i64> {
    // SAFETY: callers pass either integers or pointers to live buffers of the size that the request needs; the wrappers
    // below are the only callers.
    sys::check(unsafe { libc::ptrace(request, tid, addr, data) })
}

impl Tracee {
    /// A thread that we already trace (PTRACE_TRACEME).
    pub fn adopt(tid: i32) -> Tracee {
        Tracee {
            tid,
            keeps_end: false,
            home: None,
            held: Vec::new(),
        }
    }

    /// A child of ours that other code reaps: its end is seen, not reaped.
    pub fn keeping_its_end(self) -> Tracee {
        Tracee {
            keeps_end: true,
            ..self
        }
    }

    /// Seizes a running thread without any signal, and interrupts it.
    pub fn seize(tid: i32) -> io::Result<Tracee> {
        ptrace(
            libc::PTRACE_SEIZE,
            tid,
            0,
            libc::PTRACE_O_TRACESYSGOOD as usize,
        )?;
        ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0)?;
        Ok(Tracee::adopt(tid))
    }

    /// Seizes a running thread, which runs on.
    pub fn seize_quietly(tid: i32, options: i32) -> io::Result<Tracee> {
        ptrace(libc::PTRACE_SEIZE, tid, 0, options as usize)?;
        Ok(Tracee::adopt(tid))
    }

    /// Requests a stop.
    pub fn interrupt(&self) -> io::Result<()> {
        ptrace(libc::PTRACE_INTERRUPT, self.tid, 0, 0).map(drop)
    }

    /// Resumes from another stop to the one that [`Tracee::interrupt`] has requested. Any stop consumes that request
    /// (`ptrace_stop` in Linux's kernel/signal.c), so it is made again.
    pub fn cont_to_stop(&self, signal: i32) -> io::Result<()> {
        self.interrupt()?;
        self.cont(signal)
    }

    pub fn set_options(&self, options: i32) -> io::Result<()> {
        ptrace(libc::PTRACE_SETOPTIONS, self.tid, 0, options as usize).map(drop)
    }

    pub fn cont(&self, signal: i32) -> io::Result<()> {
        ptrace(libc::PTRACE_CONT, self.tid, 0, signal as usize).map(drop)
    }

    /// Resumes to the next entry to or exit from a system call.
    pub fn cont_syscall(&self, signal: i32) -> io::Result<()> {
        ptrace(libc::PTRACE_SYSCALL, self.tid, 0, signal as usize).map(drop)
    }

    pub fn detach(&self, signal: i32) -> io::Result<()> {
        ptrace(libc::PTRACE_DETACH, self.tid, 0, signal as usize).map(drop)
    }

    /// The next stop, if there is one.
    pub fn poll(&self) -> io::Result<Option<Stop>> {
        let status = match self.keeps_end {
            false => sys::try_reap(self.tid)?,
            true => match sys::try_stop(self.tid)? {
                None => sys::ended(self.tid)?,
                stop => stop,
            },
        };
        Ok(status.map(decode))
    }

    /// Waits for the next stop. Polls, because waitpid has no time limit.
    pub fn wait(&self) -> io::Result<Stop> {
        self.wait_until(Instant::now() + STOP_TIMEOUT)?
            .ok_or_else(|| self.late())
    }

    fn late(&self) -> io::Error {
        io::Error::new(
            io::ErrorKind::TimedOut,
            format!("thread {} did not stop within {STOP_TIMEOUT:?}", self.tid),
        )
    }

    /// As [`Tracee::wait`]; `None` if there was no stop by then.
    pub fn wait_until(&self, end: Instant) -> io::Result<Option<Stop>> {
        let mut backoff = Backoff::default();
        loop {
            if let Some(stop) = self.poll()? {
                return Ok(Some(stop));
            }
            if Instant::now() > end {
                return Ok(None);
            }
            backoff.wait();
        }
    }

    /// Releases a thread, which may be running.
    pub fn let_go(&self) {
        if self.detach(0).is_ok() {
            return; // it was stopped
        }
        let _ = self.interrupt();
        let stop = self.wait_until(Instant::now() + Duration::from_secs(1));
        // A thread that does not stop remains traced until this thread ends.
        let _ = self.detach(stop.ok().flatten().map_or(0, Stop::signal));
    }

    pub fn regs(&self) -> io::Result<Registers> {
        let mut regs = no_registers();
        ptrace(libc::PTRACE_GETREGS, self.tid, 0, &raw mut regs as usize)?;
        Ok(regs)
    }

    pub fn set_regs(&self, regs: &Registers) -> io::Result<()> {
        ptrace(
            libc::PTRACE_SETREGS,
            self.tid,
            0,
            regs as *const Registers as usize,
        )
        .map(drop)
    }

    /// The area of restartable sequences that the thread has registered. None if the kernel has no rseq(2), or no
    /// request for it (before Linux 5.13).
    pub fn rseq(&self) -> io::Result<Option<RseqArea>> {
        let mut configuration = RseqConfiguration::default();
        let len = size_of_val(&configuration);
        match ptrace(
            PTRACE_GET_RSEQ_CONFIGURATION,
            self.tid,
            len,
            &raw mut configuration as usize,
        ) {
            Err(e) if e.raw_os_error() == Some(libc::EIO) => return Ok(None),
            result => result?,
        };
        Ok((configuration.address != 0).then_some(RseqArea {
            address: configuration.address,
            len: configuration.size.into(),
            signature: configuration.signature.into(),
        }))
    }

    /// A seccomp filter of the stopped thread, in order of installation. `None` after the last one.
    ///
    /// # Errors
    /// The kernel shows filters only to root, and only if root has no seccomp filter itself.
    pub fn seccomp_filter(&self, index: usize) -> io::Result<Option<Vec<Instruction>>> {
        let ask = |to: usize| ptrace(PTRACE_SECCOMP_GET_FILTER, self.tid, index, to);
        let len = match ask(0) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            len => len? as usize,
        };
        let none = Instruction {
            code: 0,
            jt: 0,
            jf: 0,
            k: 0,
        };
        let mut filter = vec![none; len];
        ask(filter.as_mut_ptr() as usize)?;
        Ok(Some(filter))
    }

    /// Saves the registers that code run by us may change. That code uses SSE at most, which leaves the upper halves of
    /// vector registers alone. PTRACE_SETREGSET of the whole extended state would set PKRU to zero, for which
    /// PTRACE_GETREGSET has no value in recent kernels.
    pub fn save(&mut self) -> io::Result<Saved> {
        // SAFETY: all-zero is a valid user_fpregs_struct.
        let mut fpregs: libc::user_fpregs_struct = unsafe { std::mem::zeroed() };
        let to = &raw mut fpregs as usize;
        ptrace(libc::PTRACE_GETFPREGS, self.tid, 0, to)?;
        let saved = Saved {
            regs: self.regs()?,
            fpregs,
        };
        self.home = Some(saved);
        Ok(saved)
    }

    /// Its saved state.
    pub fn home(&self) -> io::Result<Saved> {
        self.home
            .ok_or_else(|| io::Error::other("its registers were not saved"))
    }

    /// Makes it resume elsewhere than where it was.
    pub fn resume_at(&mut self, rip: u64) {
        if let Some(home) = &mut self.home {
            home.regs.rip = rip;
        }
    }

    /// Restores its saved state.
    pub fn restore(&self) -> io::Result<()> {
        let saved = self.home()?;
        let from = &raw const saved.fpregs as usize;
        ptrace(libc::PTRACE_SETFPREGS, self.tid, 0, from)?;
        self.set_regs(&saved.regs)
    }

    fn siginfo(&self) -> io::Result<libc::siginfo_t> {
        // SAFETY: all-zero is a valid siginfo_t.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        ptrace(libc::PTRACE_GETSIGINFO, self.tid, 0, &raw mut info as usize)?;
        Ok(info)
    }

    /// Waits for the stop that `wanted` accepts. Signals that arrive meanwhile are kept for later.
    pub fn wait_for(
        &mut self,
        wanted: impl Fn(Stop) -> bool,
        go_on: impl Fn(&Tracee) -> io::Result<()>,
    ) -> io::Result<Stop> {
        // Other processes may send signals without end.
        let end = Instant::now() + STOP_TIMEOUT;
        loop {
            let stop = self.wait_until(end)?.ok_or_else(|| self.late())?;
            if wanted(stop) || matches!(stop, Stop::Exited(_) | Stop::Killed(_)) {
                return Ok(stop);
            }
            match stop {
                // A fault of our own code must not be waited through.
                Stop::Signal(signal) if FAULTS.contains(&signal) => return Ok(stop),
                Stop::Signal(_) if self.held.len() < MOST_HELD => self.held.push(self.siginfo()?),
                Stop::Signal(_) => {
                    let why = format!("thread {} gets too many signals", self.tid);
                    return Err(io::Error::other(why));
                }
                _ => {}
            }
            go_on(self)?;
        }
    }

    /// Calls `entry(arg)` on the given stack, runs it to its `int3`, and returns rax. Without a tracer, a handler of the
    /// stub sends the thread home from that `int3` ([`ulpf_lib::boot::BootArgs::home`]).
    pub fn call(&mut self, entry: u64, arg: u64, stack_top: u64) -> io::Result<i64> {
        let mut regs = self.home()?.regs;
        regs.rip = entry;
        regs.rdi = arg;
        // As after a call instruction: 16-byte aligned before the (absent) return address.
        regs.rsp = stack_top / 16 * 16 - 8;
        regs.rax = 0;
        regs.orig_rax = u64::MAX;
        // Direction flag clear, no trap flag: the ABI at function entry.
        regs.eflags &= !(eflags::DF | eflags::TF);
        self.set_regs(&regs)?;
        self.cont(0)?;
        match self.wait_for(|s| s == Stop::Signal(libc::SIGTRAP), |t| t.cont(0))? {
            Stop::Signal(libc::SIGTRAP) => Ok(self.regs()?.rax as i64),
            stop => {
                let at = self
                    .regs()
                    .map(|r| format!(" at image offset {:#x}", r.rip.wrapping_sub(entry) as i64))
                    .unwrap_or_default();
                Err(unexpected(
                    stop,
                    &format!("the stub's start{at} from its entry"),
                ))
            }
        }
    }

    /// Restores the saved state after a [`Tracee::call`], at a stop by this signal. There the trap of that call is not
    /// delivered any more, whether the thread still has a tracer or not.
    pub fn leave_call(&mut self, pid: i32, signal: i32) -> io::Result<()> {
        sys::kill_thread(pid, self.tid, signal)?;
        self.cont(0)?;
        match self.wait_for(|s| s == Stop::Signal(signal), |t| t.cont(0))? {
            Stop::Signal(number) if number == signal => self.restore(),
            Stop::Exited(_) | Stop::Killed(_) => Ok(()),
            stop => Err(unexpected(stop, "the end of the stub's start")),
        }
    }

    /// Sends the signals again that came while our code ran.
    pub fn release_held(&mut self, pid: i32) {
        for info in self.held.drain(..) {
            // SAFETY: `info` is a siginfo_t that the kernel filled in. If the kernel refuses to forge its origin, a
            // plain signal is sent.
            unsafe {
                if libc::syscall(
                    libc::SYS_rt_tgsigqueueinfo,
                    pid,
                    self.tid,
                    info.si_signo,
                    &raw const info,
                ) < 0
                {
                    libc::syscall(libc::SYS_tgkill, pid, self.tid, info.si_signo);
                }
            }
        }
    }
}

fn decode(status: i32) -> Stop {
    if libc::WIFEXITED(status) {
        Stop::Exited(libc::WEXITSTATUS(status))
    } else if libc::WIFSIGNALED(status) {
        Stop::Killed(libc::WTERMSIG(status))
    } else if libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80 {
        Stop::Syscall
    } else if status >> 16 != 0 {
        Stop::Event(status >> 16)
    } else {
        Stop::Signal(libc::WSTOPSIG(status))
    }
}

pub(crate) fn unexpected(stop: Stop, during: &str) -> io::Error {
    let what = match stop {
        Stop::Signal(n) => format!("was stopped by signal {n}"),
        Stop::Exited(n) => format!("exited with status {n}"),
        Stop::Killed(n) => format!("was killed by signal {n}"),
        Stop::Syscall => "entered a system call".into(),
        Stop::Event(n) => format!("reported ptrace event {n}"),
    };
    io::Error::other(format!("the program {what} during {during}"))
}

/// Memory of a traced process.
pub struct Memory {
    file: File,
    pid: i32,
}

impl Memory {
    pub fn open(pid: i32) -> io::Result<Memory> {
        let path = format!("/proc/{pid}/mem");
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Memory { file, pid })
    }
    pub fn read(&self, addr: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, addr)
    }
    /// Writes to any memory, even if it is read-only. If the kernel forbids that for the file
    /// (proc_mem.force_override=never), writes word by word with ptrace.
    pub fn write(&self, addr: u64, data: &[u8]) -> io::Result<()> {
        let written = self.file.write_all_at(data, addr);
        written.or_else(|error| self.poke(addr, data).map_err(|_| error))
    }

    fn poke(&self, addr: u64, data: &[u8]) -> io::Result<()> {
        const WORD: usize = size_of::<u64>();
        for (n, part) in data.chunks(WORD).enumerate() {
            let at = addr + (n * WORD) as u64;
            let mut word = [0u8; WORD];
            if part.len() < WORD {
                self.read(at, &mut word)?;
            }
            word[..part.len()].copy_from_slice(part);
            let word = u64::from_ne_bytes(word) as usize;
            ptrace(libc::PTRACE_POKEDATA, self.pid, at as usize, word)?;
        }
        Ok(())
    }
}
