//! An [`Inferior`] made of a real program under ptrace: single-stepped watches, int3 breakpoints.
//!
//! Slow and plain on purpose. All threads of the program belong to the calling thread as tracer.

use crate::inferior::*;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::FileExt;
use ulpf_engine::agent::{self, AgentContext};
use ulpf_engine::cpu::Gprs;
use ulpf_lib::sys::Errno;
use ulpf_lib::{TargetAddr, WatchKind, WatchRange};

pub enum Happened {
    Stop(Stop),
    Exited(i32),
    Killed(i32),
}

struct Thread {
    regs: libc::user_regs_struct,
    gprs: Gprs,
    xsave: Vec<u8>,
    siginfo: Option<[u8; 128]>,
    how: Resume,
    running: bool,
    /// Stopped with this wait status, which was not examined yet.
    pending: Option<i32>,
}

struct Breakpoint {
    original: u8,
    conditions: Vec<AgentExpr>,
}

pub struct Traced {
    pid: i32,
    mem: fs::File,
    threads: BTreeMap<Tid, Thread>,
    breakpoints: BTreeMap<u64, Breakpoint>,
    watches: Vec<(WatchRange, WatchKind, Vec<u8>)>,
    interrupted: bool,
    pub queue: VecDeque<Happened>,
}

fn ptrace(request: u32, tid: Tid, addr: usize, data: usize) -> i64 {
    // SAFETY: requests with pointers name live buffers of the kernel's sizes (callers below).
    unsafe { libc::ptrace(request as _, tid, addr, data) }
}

impl Traced {
    pub fn launch(argv: &[String]) -> Traced {
        let args: Vec<CString> = argv
            .iter()
            .map(|a| CString::new(a.as_str()).unwrap())
            .collect();
        let mut ptrs: Vec<_> = args.iter().map(|a| a.as_ptr()).collect();
        ptrs.push(std::ptr::null());
        // SAFETY: the child only makes system calls before it execs.
        let pid = unsafe {
            match libc::fork() {
                0 => {
                    libc::personality(libc::ADDR_NO_RANDOMIZE as _);
                    libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                    libc::execvp(ptrs[0], ptrs.as_ptr());
                    libc::_exit(127)
                }
                pid => pid,
            }
        };
        let mut status = 0;
        // SAFETY: our child.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        let options = libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
        ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options as usize);
        let mem = fs::File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))
            .unwrap();
        let mut t = Traced {
            pid,
            mem,
            threads: BTreeMap::new(),
            breakpoints: BTreeMap::new(),
            watches: Vec::new(),
            interrupted: false,
            queue: VecDeque::new(),
        };
        t.adopt(pid);
        t.load(pid);
        t
    }

    fn adopt(&mut self, tid: Tid) {
        // SAFETY: plain old data.
        let regs = unsafe { std::mem::zeroed() };
        let thread = Thread {
            regs,
            gprs: Gprs::default(),
            xsave: vec![0; 16384],
            siginfo: None,
            how: Resume::Continue { signal: None },
            running: false,
            pending: None,
        };
        self.threads.insert(tid, thread);
    }

    fn load(&mut self, tid: Tid) {
        let Some(t) = self.threads.get_mut(&tid) else {
            return;
        };
        ptrace(libc::PTRACE_GETREGS, tid, 0, &raw mut t.regs as usize);
        let r = &t.regs;
        t.gprs = Gprs {
            r8: r.r8,
            r9: r.r9,
            r10: r.r10,
            r11: r.r11,
            r12: r.r12,
            r13: r.r13,
            r14: r.r14,
            r15: r.r15,
            rdi: r.rdi,
            rsi: r.rsi,
            rbp: r.rbp,
            rbx: r.rbx,
            rdx: r.rdx,
            rax: r.rax,
            rcx: r.rcx,
            rsp: r.rsp,
            rip: r.rip,
            rflags: r.eflags,
        };
        let mut iov = libc::iovec {
            iov_base: t.xsave.as_mut_ptr().cast(),
            iov_len: 16384,
        };
        ptrace(libc::PTRACE_GETREGSET, tid, 0x202, &raw mut iov as usize);
        t.xsave.truncate(iov.iov_len.max(576));
        let mut info = [0u8; 128];
        t.siginfo =
            (ptrace(libc::PTRACE_GETSIGINFO, tid, 0, &raw mut info as usize) == 0).then_some(info);
    }

    fn store(&mut self, tid: Tid) {
        let Some(t) = self.threads.get_mut(&tid) else {
            return;
        };
        let g = &t.gprs;
        let r = &mut t.regs;
        (r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15) =
            (g.r8, g.r9, g.r10, g.r11, g.r12, g.r13, g.r14, g.r15);
        (r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax, r.rcx, r.rsp) =
            (g.rdi, g.rsi, g.rbp, g.rbx, g.rdx, g.rax, g.rcx, g.rsp);
        (r.rip, r.eflags) = (g.rip, g.rflags);
        ptrace(libc::PTRACE_SETREGS, tid, 0, &raw mut t.regs as usize);
        let mut iov = libc::iovec {
            iov_base: t.xsave.as_mut_ptr().cast(),
            iov_len: t.xsave.len(),
        };
        ptrace(libc::PTRACE_SETREGSET, tid, 0x202, &raw mut iov as usize);
        if let Some(info) = &mut t.siginfo {
            ptrace(libc::PTRACE_SETSIGINFO, tid, 0, info.as_mut_ptr() as usize);
        }
    }

    fn peek(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut b = vec![0; len];
        let _ = self.mem.read_exact_at(&mut b, addr);
        b
    }

    /// Starts a thread again: over its breakpoint first, by steps when something is watched.
    fn go(&mut self, tid: Tid, signal: Option<i32>) {
        let how = self.threads[&tid].how;
        let pc = self.threads[&tid].regs.rip;
        let over = self.breakpoints.get(&pc).map(|b| b.original);
        let step =
            over.is_some() || !self.watches.is_empty() || !matches!(how, Resume::Continue { .. });
        if let Some(byte) = over {
            let _ = self.mem.write_all_at(&[byte], pc);
        }
        let request = if step {
            libc::PTRACE_SINGLESTEP
        } else {
            libc::PTRACE_CONT
        };
        ptrace(request, tid, 0, signal.unwrap_or(0) as usize);
        if over.is_some() {
            let mut status = 0;
            // SAFETY: a traced thread of ours.
            unsafe { libc::waitpid(tid, &mut status, libc::__WALL) };
            let _ = self.mem.write_all_at(&[0xcc], pc);
            self.threads.get_mut(&tid).unwrap().pending = Some(status);
        }
        self.threads.get_mut(&tid).unwrap().running = true;
    }

    /// Waits up to `millis` for something that the debugger should know.
    pub fn poll(&mut self, millis: u64) -> Option<Happened> {
        let until = std::time::Instant::now() + std::time::Duration::from_millis(millis);
        loop {
            let pending = self.threads.iter_mut().find_map(|(tid, t)| {
                if !t.running {
                    return None;
                }
                Some((*tid, t.pending.take()?))
            });
            let (tid, status) = match pending {
                Some(p) => p,
                None => {
                    let mut status = 0;
                    // SAFETY: plain call.
                    let tid =
                        unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::WNOHANG) };
                    if tid <= 0 {
                        if std::time::Instant::now() > until {
                            return None;
                        }
                        std::thread::sleep(std::time::Duration::from_micros(20));
                        continue;
                    }
                    (tid, status)
                }
            };
            if let Some(h) = self.look(tid, status) {
                self.park_all();
                return Some(h);
            }
        }
    }

    fn look(&mut self, tid: Tid, status: i32) -> Option<Happened> {
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            self.threads.remove(&tid);
            if tid == self.pid || self.threads.is_empty() {
                return Some(match libc::WIFEXITED(status) {
                    true => Happened::Exited(libc::WEXITSTATUS(status)),
                    false => Happened::Killed(libc::WTERMSIG(status)),
                });
            }
            return None;
        }
        if !self.threads.contains_key(&tid) {
            self.adopt(tid); // a new thread's first stop
            self.load(tid);
            self.go(tid, None);
            return None;
        }
        self.load(tid);
        self.threads.get_mut(&tid).unwrap().running = false;
        let stop = |reason| Some(Happened::Stop(Stop { tid, reason }));
        let signal = libc::WSTOPSIG(status);
        if status >> 16 == libc::PTRACE_EVENT_CLONE {
            self.go(tid, None);
            return None;
        }
        if signal != libc::SIGTRAP {
            if signal == libc::SIGSTOP {
                if self.interrupted {
                    self.interrupted = false;
                    return stop(StopReason::Interrupted);
                }
                self.go(tid, None);
                return None;
            }
            return stop(StopReason::Signal(signal));
        }
        let pc = self.threads[&tid].regs.rip;
        let info = self.threads[&tid].siginfo.unwrap_or([0; 128]);
        let code = i32::from_le_bytes(info[8..12].try_into().unwrap());
        if code == 0x80 && self.breakpoints.contains_key(&(pc - 1)) {
            let t = self.threads.get_mut(&tid).unwrap();
            t.gprs.rip = pc - 1;
            t.regs.rip = pc - 1;
            if self.condition_holds(tid, pc - 1) {
                return stop(StopReason::Breakpoint);
            }
            self.store(tid);
            self.go(tid, None);
            return None;
        }
        let mut hit = None;
        for i in 0..self.watches.len() {
            let now = self.peek(self.watches[i].0.start.0, self.watches[i].0.len as usize);
            if now != self.watches[i].2 {
                self.watches[i].2 = now;
                hit = Some((self.watches[i].0, self.watches[i].1));
            }
        }
        if let Some((range, kind)) = hit {
            return stop(StopReason::Watch {
                kind,
                addr: range.start,
                start: range.start,
            });
        }
        match self.threads[&tid].how {
            Resume::Step { .. } => stop(StopReason::Stepped),
            Resume::RangeStep { start, end } if !(start.0..end.0).contains(&pc) => {
                stop(StopReason::Stepped)
            }
            _ if self.breakpoints.contains_key(&pc) && !self.watches.is_empty() => {
                stop(StopReason::Breakpoint)
            }
            _ => {
                self.go(tid, None);
                None
            }
        }
    }

    fn condition_holds(&mut self, tid: Tid, at: u64) -> bool {
        let conditions = self.breakpoints[&at].conditions.clone();
        let gprs = self.threads[&tid].gprs;
        let mut context = Context { traced: self, gprs };
        conditions.is_empty()
            || conditions
                .iter()
                .any(|c| agent::eval(c, &mut context) != Ok(0))
    }

    fn park_all(&mut self) {
        let running: Vec<Tid> = self
            .threads
            .iter()
            .filter(|(_, t)| t.running)
            .map(|(t, _)| *t)
            .collect();
        for tid in running {
            if self.threads[&tid].pending.is_none() {
                // SAFETY: plain calls on a traced thread of ours.
                unsafe {
                    libc::syscall(libc::SYS_tgkill, self.pid, tid, libc::SIGSTOP);
                    let mut status = 0;
                    libc::waitpid(tid, &mut status, libc::__WALL);
                    if libc::WIFEXITED(status) {
                        self.threads.remove(&tid);
                        continue;
                    }
                    if libc::WSTOPSIG(status) != libc::SIGSTOP {
                        self.threads.get_mut(&tid).unwrap().pending = Some(status);
                    }
                }
            }
            self.load(tid);
            self.threads.get_mut(&tid).unwrap().running = false;
        }
    }
}

struct Context<'a> {
    traced: &'a mut Traced,
    gprs: Gprs,
}

impl AgentContext for Context<'_> {
    fn reg(&mut self, number: u16) -> Option<u64> {
        agent::register(&self.gprs, number)
    }
    fn read(&mut self, addr: u64, buf: &mut [u8]) -> bool {
        self.traced.read_memory(TargetAddr(addr), buf) == buf.len()
    }
}

impl Inferior for Traced {
    fn pid(&self) -> i32 {
        self.pid
    }
    fn threads(&self) -> Vec<Tid> {
        self.threads.keys().copied().collect()
    }
    fn gprs(&mut self, tid: Tid) -> Option<&mut Gprs> {
        Some(&mut self.threads.get_mut(&tid)?.gprs)
    }
    fn xsave(&mut self, tid: Tid) -> Option<&mut [u8]> {
        Some(&mut self.threads.get_mut(&tid)?.xsave)
    }
    fn fs_gs_base(&self, tid: Tid) -> Option<(u64, u64)> {
        let r = &self.threads.get(&tid)?.regs;
        Some((r.fs_base, r.gs_base))
    }
    fn set_fs_gs_base(&mut self, tid: Tid, fs: u64, gs: u64) -> Result<(), Errno> {
        let r = &mut self.threads.get_mut(&tid).ok_or(Errno(3))?.regs;
        (r.fs_base, r.gs_base) = (fs, gs);
        Ok(())
    }
    fn orig_rax(&self, tid: Tid) -> i64 {
        self.threads
            .get(&tid)
            .map_or(-1, |t| t.regs.orig_rax as i64)
    }
    fn siginfo(&mut self, tid: Tid) -> Option<&mut [u8; 128]> {
        self.threads.get_mut(&tid)?.siginfo.as_mut()
    }
    fn thread_name(&self, tid: Tid) -> String {
        let name =
            fs::read_to_string(format!("/proc/{}/task/{tid}/comm", self.pid)).unwrap_or_default();
        name.trim().into()
    }
    fn read_memory(&mut self, addr: TargetAddr, buf: &mut [u8]) -> usize {
        let mut n = 0;
        while n < buf.len() {
            match self.mem.read_at(&mut buf[n..], addr.0 + n as u64) {
                Ok(got) if got > 0 => n += got,
                _ => break,
            }
        }
        for (at, byte) in &self.breakpoints {
            if let Some(i) = at.checked_sub(addr.0).filter(|i| *i < n as u64) {
                buf[i as usize] = byte.original;
            }
        }
        n
    }
    fn write_memory(&mut self, addr: TargetAddr, data: &[u8]) -> Result<(), Errno> {
        self.mem.write_all_at(data, addr.0).map_err(|_| Errno(14))
    }
    fn insert_breakpoint(
        &mut self,
        addr: TargetAddr,
        conditions: Vec<AgentExpr>,
        _hardware: bool,
    ) -> Result<(), Refusal> {
        if let Some(b) = self.breakpoints.get_mut(&addr.0) {
            b.conditions = conditions;
        } else {
            let original = self.peek(addr.0, 1)[0];
            self.breakpoints.insert(
                addr.0,
                Breakpoint {
                    original,
                    conditions,
                },
            );
            let _ = self.mem.write_all_at(&[0xcc], addr.0);
        }
        Ok(())
    }
    fn remove_breakpoint(&mut self, addr: TargetAddr) -> bool {
        match self.breakpoints.remove(&addr.0) {
            Some(b) => self.mem.write_all_at(&[b.original], addr.0).is_ok(),
            None => false,
        }
    }
    fn insert_watch(&mut self, range: WatchRange, kind: WatchKind) -> Result<(), Refusal> {
        if self.mem.read_at(&mut [0], range.start.0).is_err() {
            return Err(Refusal {
                what: format!("cannot watch {}", range.start),
                why: "nothing is mapped there".into(),
                what_to_do: "watch something else".into(),
            });
        }
        let value = self.peek(range.start.0, range.len as usize);
        self.watches.push((range, kind, value));
        Ok(())
    }
    fn remove_watch(&mut self, range: WatchRange, kind: WatchKind) -> bool {
        let before = self.watches.len();
        self.watches.retain(|w| (w.0, w.1) != (range, kind));
        before != self.watches.len()
    }
    fn set_pass_signals(&mut self, _: u64) {}
    fn resume(&mut self, action: &dyn Fn(Tid) -> Resume) {
        for tid in self.threads() {
            let how = action(tid);
            self.threads.get_mut(&tid).unwrap().how = how;
            if how == Resume::Hold {
                continue;
            }
            self.store(tid);
            if self.threads[&tid].pending.is_some() {
                self.threads.get_mut(&tid).unwrap().running = true;
                continue;
            }
            let signal = match how {
                Resume::Continue { signal } | Resume::Step { signal } => signal,
                _ => None,
            };
            self.go(tid, signal);
        }
    }
    fn interrupt(&mut self) {
        self.interrupted = true;
        // SAFETY: plain call.
        unsafe { libc::syscall(libc::SYS_tgkill, self.pid, self.pid, libc::SIGSTOP) };
    }
    fn detach(&mut self, _: bool) {
        for (at, b) in std::mem::take(&mut self.breakpoints) {
            let _ = self.mem.write_all_at(&[b.original], at);
        }
        for tid in self.threads() {
            self.store(tid);
            ptrace(libc::PTRACE_DETACH, tid, 0, 0);
        }
    }
    fn kill(&mut self) {
        // SAFETY: our child.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }
    fn monitor(&mut self, command: &str, out: &mut dyn std::fmt::Write) -> bool {
        let known = command == "help";
        if known {
            let _ = out.write_str("This is a test host.\n");
        }
        known
    }
}
