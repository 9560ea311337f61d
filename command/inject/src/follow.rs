//! Follows a program through exec. The stub is destroyed with the image it lives in. So the command seizes the thread
//! before the exec, and injects a stub into the new image at its first instruction.
//!
//! A program that gains rights by its exec is not entered, unless the user asks for it: memory and messages of the old
//! program must not reach the new one. So the file is checked before the exec, and the process after it.
//!
//! A vfork child leaves the stub in its parent's memory; otherwise its exec is followed in the same way.
//!
//! `stub/task/src/control/follow.rs` draws the stub's side of the protocol.

use crate::confined::Confined;
use crate::error::StartError;
use crate::image::{Image, stub_image};
use crate::injected::{Injected, finish};
use crate::remains::Remains;
use crate::settings::Settings;
use crate::tracee::{Memory, Stop, Tracee};
use crate::{load, refuse};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use ulpf_area::shared::Clocks;
use ulpf_host::foreign::numbers::Process;
use ulpf_host::process;
use ulpf_host::sys::{self, Backoff};
use ulpf_lib::boot::{BOOT_LAUNCHED, PAD_LEN, pad_registers};

/// A thread that waits in the stub, about to exec.
pub struct Exec {
    pub process: Process,
    /// A thread of the process, by our number.
    pub tid: i32,
    /// The file that it is about to execute, as a path that we can open.
    pub file: PathBuf,
    pub launched: bool,
    pub settings: Settings,
    /// A vfork child: its exec leaves the memory in which its parent's stub lives on.
    pub child: bool,
    /// Follow only if the file is the program that the process already runs.
    pub same_only: bool,
    /// Channel to the old stub, or, for a vfork child, to its parent's.
    pub stub: UnixStream,
    /// Remains of that stub.
    pub remains: Remains,
    /// Set when the stub has reported that exec has failed, or when the result is no longer needed.
    pub failed: Arc<AtomicBool>,
}

/// Result of an exec. `S` is the session that follows the process.
#[derive(Debug)]
pub enum Followed<S> {
    /// The process is stopped at the first instruction of its new program.
    Into(Box<S>),
    /// Exec failed; the thread has been released, and the old stub continues.
    Failed,
    /// If exec works, the process becomes another program, which was not to be followed.
    Other,
    /// If exec works, the process runs this program without us, for this reason.
    Not { program: String, why: String },
    /// The process runs this program without us, for this reason.
    Lost { program: String, why: String },
    /// The process has ended.
    Ended,
}

impl<S> Followed<S> {
    /// Makes the session with `into`; if that fails, the program is lost.
    pub fn and_then<T>(self, into: impl FnOnce(S) -> Followed<T>) -> Followed<T> {
        match self {
            Followed::Into(session) => into(*session),
            Followed::Failed => Followed::Failed,
            Followed::Other => Followed::Other,
            Followed::Not { program, why } => Followed::Not { program, why },
            Followed::Lost { program, why } => Followed::Lost { program, why },
            Followed::Ended => Followed::Ended,
        }
    }
}

/// Returns when the thread has become another program or is back in the old one. The parent of a seized vfork child
/// waits until the caller sends its stub `vUlpfExec;over`.
pub fn exec(mut request: Exec) -> Followed<Injected> {
    let pid = request.process.pid;
    let as_root = sys::is_root();
    if !(as_root && request.settings.follow_setuid)
        && process::would_gain_privileges(pid, &request.file)
    {
        let _ = request.tell("alone");
        let program = process::own_path(&request.file);
        return request.not(match as_root {
            true => StartError::Privileged { program }.to_string(),
            false => format!(
                "{program} is a set-user-ID or set-group-ID program, or has capabilities, which the kernel would take away from it under our eyes; so it is not followed. Run ulpf as root to follow it, with --follow-setuid."
            ),
        });
    }
    let program = process::program_file(pid);
    if request.same_only && !process::runs(pid, &request.file) {
        let _ = request.tell("alone");
        return Followed::Other;
    }
    let options = libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACEEXEC
        | if request.launched {
            libc::PTRACE_O_EXITKILL
        } else {
            0
        };
    let thread = match request.seize(options) {
        Ok(_) if request.tid == pid => request.leader(),
        Ok(thread) => thread,
        Err(e) => {
            let _ = request.tell("alone");
            return request.not(format!(
                "the kernel does not let us follow it into the program that it executes ({e})."
            ));
        }
    };
    let confined = match Confined::of(pid, request.remains) {
        Ok(confined) => confined,
        Err(e) => {
            thread.let_go();
            let _ = request.tell("alone");
            return request.not(format!(
                "its seccomp filters, which ulpf has to know there, cannot be read ({e})."
            ));
        }
    };
    let Ok(rights) = process::Rights::of(thread.tid) else {
        thread.let_go();
        let _ = request.tell("alone");
        return request.not("what it may do cannot be read.".into());
    };
    let before = Before {
        rights,
        program,
        confined,
        since: Clocks::now(),
    };
    if request.tell("go").is_err() {
        return Followed::Ended;
    }
    match request.wait(thread) {
        Outcome::Executed => {}
        Outcome::Failed => {
            let _ = request.tell("over");
            return Followed::Failed;
        }
        Outcome::Ended => return Followed::Ended,
    }
    let leader = request.leader();
    // The stub may have named a different file from the executed one.
    if request.same_only && process::program_file(pid) != before.program {
        let _ = request.tell("over");
        leader.let_go();
        return Followed::Other;
    }
    let result = request.inject(&leader, before);
    result.unwrap_or_else(|error| {
        if !process::is_alive(pid) {
            return Followed::Ended;
        }
        let program = refuse::program_name(pid);
        let _ = leader.detach(0);
        let why = error.to_string();
        Followed::Lost { program, why }
    })
}

/// A forked child that waits in the remains of its parent's stub, which has already removed everything else of ours
/// from it.
pub struct Child {
    pub process: Process,
    /// The number by which its parent knows it.
    pub number: i32,
    pub parent: Process,
    /// Channel to the parent's stub, which releases the child.
    pub stub: UnixStream,
    /// Remains of that stub.
    pub remains: Remains,
    pub settings: Settings,
}

/// Injects a stub of its own into a forked child, which is stopped where it returns from fork.
pub fn child(mut child: Child) -> Result<Injected, StartError> {
    let step = |e| StartError::step("take hold of the forked child", e);
    let image = stub_image()?;
    let pid = child.process.pid;
    let since = Clocks::now();
    let thread = seize(&child.process, pid, libc::PTRACE_O_TRACESYSGOOD).map_err(step)?;
    let flags = child.settings.boot_flags();
    let result = thread
        .interrupt()
        .and_then(|()| return_from_fork(&thread, &mut child, image))
        .and_then(|confined| Ok((confined, out_of_pad(pid)?)))
        .map_err(step)
        .and_then(|(confined, thread)| {
            load::load(pid, &mut [thread], image, flags, confined.as_ref())
        });
    match result {
        Ok(loaded) => finish(
            child.process,
            loaded,
            since,
            false,
            child.settings,
            Vec::new(),
        ),
        Err(error) => {
            thread.let_go();
            Err(error)
        }
    }
}

/// Seizes a running thread, which runs on. The thread may have ended meanwhile, and its number may belong to another
/// process; from now on, being traced, it keeps its number.
fn seize(process: &Process, tid: i32, options: i32) -> io::Result<Tracee> {
    let thread = Tracee::seize_quietly(tid, options)?;
    if !process.has_thread(tid) {
        thread.let_go();
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(thread)
}

/// Runs the child from the wait inside our handler to the end of the handler's sigreturn, in the program's own code.
/// Returns the child's seccomp filters.
fn return_from_fork(
    thread: &Tracee,
    child: &mut Child,
    image: &Image,
) -> io::Result<Option<Confined>> {
    const ENOSYS: i64 = -38; // what rax holds at the entry to a system call
    let late = || io::Error::other("it does not return from fork");
    let end = Instant::now() + RETURN;
    let mut released = false;
    let mut confined = None;
    let mut signal = 0;
    loop {
        let stop = thread.wait_until(end)?.ok_or_else(late)?;
        match stop {
            Stop::Event(libc::PTRACE_EVENT_STOP) if !released => {
                child.waits_for_us(thread, image)?;
                let pid = child.process.pid;
                let claimed = Confined::of(pid, child.remains)?;
                confined = Confined::by_the_kernel(thread, child.remains, claimed, false)?;
                if let Some(confined) = &mut confined {
                    confined.keep_image(pid, child.remains)?;
                }
                released = true;
                let go = format!("vUlpfForkGo;{:x}", child.number);
                child.stub.write_all(&ulpf_rsp::frame(go.as_bytes()))?;
            }
            Stop::Syscall => {
                let regs = thread.regs()?;
                if regs.orig_rax as i64 == libc::SYS_rt_sigreturn && regs.rax as i64 == ENOSYS {
                    break;
                }
            }
            Stop::Signal(number) => signal = number,
            Stop::Exited(_) | Stop::Killed(_) => return Err(io::ErrorKind::NotFound.into()),
            Stop::Event(_) => {}
        }
        if Instant::now() > end {
            return Err(late());
        }
        if !released {
            thread.interrupt()?; // that stop has consumed the first request
        }
        thread.cont_syscall(std::mem::take(&mut signal))?;
    }
    thread.cont_syscall(0)?;
    match thread.wait()? {
        Stop::Syscall => Ok(confined),
        other => Err(io::Error::other(format!("{other:?} instead of its return"))),
    }
}

/// Takes the thread out of the old stub's last instructions, which are at the end of the vDSO
/// (stub/handlers/src/ours.rs). After the call that they make, it continues where they lead. The vDSO is restored
/// afterwards.
fn out_of_pad(pid: i32) -> io::Result<Tracee> {
    let mut thread = Tracee::adopt(pid);
    let vdso = process::mapping(pid, "[vdso]")?.unwrap_or_default();
    let pad = thread.regs()?.rip;
    if !vdso.contains(&pad) {
        return Ok(thread);
    }
    for _ in 0..2 {
        thread.cont_syscall(0)?;
        match thread.wait_for(|s| s == Stop::Syscall, |t| t.cont_syscall(0))? {
            Stop::Syscall => {}
            Stop::Exited(_) | Stop::Killed(_) => return Err(io::ErrorKind::NotFound.into()),
            other => return Err(io::Error::other(format!("{other:?} in the pad"))),
        }
    }
    let memory = Memory::open(pid)?;
    let mut code = [0; PAD_LEN as usize];
    memory.read(pad, &mut code)?;
    let [rdi, rsi, rcx] = pad_registers(&code)
        .ok_or_else(|| io::Error::other("the forked child is in code that is not ours"))?;
    let mut regs = thread.regs()?;
    (regs.rax, regs.rdi, regs.rsi, regs.rcx, regs.rip) = (0, rdi, rsi, rcx, rcx);
    regs.orig_rax = u64::MAX;
    thread.set_regs(&regs)?;
    memory.write(pad, &[0; PAD_LEN as usize])?;
    Ok(thread)
}

/// A thread that is asked to stop does so within microseconds, unless it waits in the kernel.
const LET_GO: Duration = Duration::from_secs(2);

/// A released child returns within microseconds.
const RETURN: Duration = Duration::from_secs(5);

impl Child {
    /// Checks the stopped child, which cannot change meanwhile: it must have the rights of its parent, and be in our
    /// code.
    fn waits_for_us(&self, thread: &Tracee, image: &Image) -> io::Result<()> {
        self.parent
            .check_rights(&self.process)
            .map_err(io::Error::other)?;
        const AROUND: u64 = 16;
        let mut code = [0; 2 * AROUND as usize];
        let at = thread.regs()?.rip.wrapping_sub(AROUND);
        let ours = Memory::open(self.process.pid)?.read(at, &mut code).is_ok();
        match ours && image.has_code(&code) {
            true => Ok(()),
            false => Err(io::Error::other("it does not wait to be taken hold of")),
        }
    }
}

/// State of a thread right before its exec.
struct Before {
    rights: process::Rights,
    program: Option<process::FileId>,
    /// As its old stub has recorded it.
    confined: Option<Confined>,
    since: Clocks,
}

enum Outcome {
    /// At PTRACE_EVENT_EXEC.
    Executed,
    Failed,
    Ended,
}

impl Exec {
    fn seize(&self, options: i32) -> io::Result<Tracee> {
        seize(&self.process, self.tid, options)
    }

    fn tell(&mut self, word: &str) -> io::Result<()> {
        self.stub
            .write_all(&ulpf_rsp::frame(format!("vUlpfExec;{word}").as_bytes()))
    }

    fn not(&self, why: String) -> Followed<Injected> {
        let program = process::own_path(&self.file);
        Followed::Not { program, why }
    }

    /// The first thread, which we already trace. A child's exit status is not for us.
    fn leader(&self) -> Tracee {
        let leader = Tracee::adopt(self.process.pid);
        match self.launched {
            true => leader.keeping_its_end(),
            false => leader,
        }
    }

    fn wait(&self, mut thread: Tracee) -> Outcome {
        let mut letting_go: Option<Instant> = None;
        let mut backoff = Backoff::default();
        loop {
            match thread.poll() {
                Ok(Some(Stop::Event(libc::PTRACE_EVENT_EXEC))) => return Outcome::Executed,
                Ok(Some(Stop::Exited(_) | Stop::Killed(_))) => return Outcome::Ended,
                Ok(Some(stop)) if letting_go.is_some() => {
                    let _ = thread.detach(stop.signal());
                    return Outcome::Failed;
                }
                Ok(Some(Stop::Signal(signal))) => drop(thread.cont(signal)),
                Ok(Some(_)) => drop(thread.cont(0)),
                Ok(None) => {}
                // A thread other than the first has become the first by its exec.
                Err(_) if thread.tid != self.process.pid => thread = self.leader(),
                Err(_) => return Outcome::Ended,
            }
            if letting_go.is_none() && self.failed.load(Ordering::SeqCst) {
                letting_go = thread.interrupt().ok().map(|()| Instant::now());
            }
            // The thread waits where no signal reaches it, so we trace it until we end.
            if letting_go.is_some_and(|since| since.elapsed() > LET_GO) {
                return Outcome::Ended;
            }
            backoff.wait();
        }
    }

    /// Injects the stub; the leader is at PTRACE_EVENT_EXEC.
    fn inject(
        &mut self,
        leader: &Tracee,
        before: Before,
    ) -> Result<Followed<Injected>, StartError> {
        let step = |e| StartError::step("follow the program into what it executes", e);
        if !self.child {
            // If the old stub checked the process now, it would see a false end.
            let _ = self.tell("over");
            if !sys::wait_for_hangup(&self.stub, Duration::from_secs(5)) {
                return Err(step(io::Error::other("its old stub does not end")));
            }
        }
        leader.cont_syscall(0).map_err(step)?;
        match leader.wait().map_err(step)? {
            Stop::Syscall => {}
            Stop::Exited(_) | Stop::Killed(_) => return Ok(Followed::Ended),
            other => return Err(step(io::Error::other(format!("{other:?}")))),
        }
        let pid = self.process.pid;
        refuse::class(pid)?;
        let gains = process::has_gained_privileges(pid, &before.rights).map_err(step)?;
        if gains && !self.settings.follow_setuid {
            let program = refuse::program_name(pid);
            return Err(StartError::Privileged { program });
        }
        // A program without these rights could have written everything that was read from its memory.
        let claimed = before.confined.filter(|_| !gains);
        let confined = Confined::by_the_kernel(leader, self.remains, claimed, gains)
            .map_err(|e| StartError::step("learn of its seccomp filters from the kernel", e))?;
        let mut warnings = Vec::new();
        if process::loses_privileges(pid) {
            warnings.push(format!(
                "warning: {} is a set-user-ID or set-group-ID program and runs with ordinary rights, because it is followed through exec.",
                refuse::program_name(pid)
            ));
        }
        let launched = if self.launched { BOOT_LAUNCHED } else { 0 };
        let flags = launched | self.settings.boot_flags();
        let threads = &mut [self.leader()];
        let loaded = load::load(pid, threads, stub_image()?, flags, confined.as_ref())?;
        let process = self.process.clone();
        let injected = finish(
            process,
            loaded,
            before.since,
            self.launched,
            self.settings,
            warnings,
        )?;
        Ok(Followed::Into(Box::new(injected)))
    }
}
