//! A program under ptrace.

use crate::bench::spawn;
use anyhow::{Context, Result, bail, ensure};
use iced_x86::Register;
use std::arch::x86_64::__cpuid_count;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::ptr::{null_mut, without_provenance_mut};
use ulpf_lib::eflags;
use ulpf_lib::mapping::mappings;

pub struct Tracee {
    child: Child,
    pid: libc::pid_t,
}

pub struct Registers(libc::user_regs_struct);

impl std::ops::Deref for Registers {
    type Target = libc::user_regs_struct;
    fn deref(&self) -> &libc::user_regs_struct {
        &self.0
    }
}

impl Registers {
    /// The value of a general register, as wide as it is.
    pub fn get(&self, reg: Register) -> u64 {
        let r = &self.0;
        let full = [
            r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11,
            r.r12, r.r13, r.r14, r.r15,
        ];
        let n = (reg.full_register() as usize).wrapping_sub(Register::RAX as usize);
        let v = full.get(n).copied().unwrap_or(0);
        match reg.size() {
            1 if matches!(
                reg,
                Register::AH | Register::CH | Register::DH | Register::BH
            ) =>
            {
                v >> 8 & 0xff
            }
            1 => v & 0xff,
            2 => v & 0xffff,
            4 => v & 0xffff_ffff,
            _ => v,
        }
    }
}

/// The extended state, in the standard format.
pub struct Vectors(Vec<u8>);

impl Vectors {
    fn at(&self, offset: usize, len: usize) -> u64 {
        let mut bytes = [0; 8];
        if let Some(from) = self.0.get(offset..offset + len) {
            bytes[..len].copy_from_slice(from);
        }
        u64::from_le_bytes(bytes)
    }
    fn component(n: u32) -> usize {
        __cpuid_count(0xd, n).ebx as usize
    }
    /// `size` bytes at byte `at` of a vector register.
    pub fn element(&self, reg: usize, at: usize, size: usize) -> u64 {
        let offset = match (reg, at) {
            (16.., _) => Self::component(7) + (reg - 16) * 64 + at,
            (_, 0..16) => 160 + reg * 16 + at,
            (_, 16..32) => Self::component(2) + reg * 16 + at - 16,
            _ => Self::component(6) + reg * 32 + at - 32,
        };
        self.at(offset, size)
    }
    pub fn mask(&self, k: usize) -> u64 {
        self.at(Self::component(5) + k * 8, 8)
    }
    pub fn mmx(&self, reg: usize) -> u64 {
        // The image holds the x87 stack from its top.
        let top = (self.at(2, 2) >> 11 & 7) as usize;
        self.at(32 + (reg.wrapping_sub(top) & 7) * 16, 8)
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Tracee {
    pub fn start(elf: &Path) -> Result<Tracee> {
        Tracee::begin(&mut Command::new(elf))
    }

    /// Stopped at its first instruction, without address-space randomisation.
    pub fn begin(command: &mut Command) -> Result<Tracee> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        // SAFETY: plain system calls.
        unsafe {
            command.pre_exec(|| {
                if libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) < 0
                    || libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) < 0
                {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = spawn(command).context("cannot start the program")?;
        let t = Tracee {
            pid: child.id() as i32,
            child,
        };
        ensure!(t.wait()? == libc::SIGTRAP, "no stop after exec");
        Ok(t)
    }

    /// Where the file is mapped.
    pub fn base(&self, program: &Path) -> Result<u64> {
        let maps = std::fs::read(format!("/proc/{}/maps", self.pid))?;
        let path = program.canonicalize()?;
        let mut own = mappings(&maps).filter(|m| m.is_of(path.as_os_str().as_bytes()));
        Ok(own.next().context("not mapped")?.start)
    }

    /// Runs to an address that it has not met yet.
    pub fn run_to(&mut self, addr: u64) -> Result<()> {
        let mut byte = [0];
        self.read(addr, &mut byte)?;
        self.poke(addr, 0xcc)?;
        self.run_to_trap()?;
        let mut r = self.registers()?.0;
        ensure!(r.rip == addr + 1, "stopped at {:#x}", r.rip);
        self.poke(addr, byte[0])?;
        r.rip = addr;
        self.set_registers(&r)
    }

    fn set_registers(&self, r: &libc::user_regs_struct) -> Result<()> {
        // SAFETY: `r` outlives the call.
        let done = unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.pid, null_mut::<u8>(), r) };
        ensure!(done == 0, "ptrace: {}", std::io::Error::last_os_error());
        Ok(())
    }

    /// Changes one byte, of code as well.
    fn poke(&self, addr: u64, byte: u8) -> Result<()> {
        let mut word = [0; 8];
        self.read(addr, &mut word)?;
        word[0] = byte;
        let word = usize::from_le_bytes(word);
        // SAFETY: the tracee's memory; the word is passed by value.
        let done = unsafe {
            libc::ptrace(
                libc::PTRACE_POKETEXT,
                self.pid,
                without_provenance_mut::<u8>(addr as usize),
                without_provenance_mut::<u8>(word),
            )
        };
        ensure!(done == 0, "ptrace: {}", std::io::Error::last_os_error());
        Ok(())
    }

    /// The signal that it stops with.
    fn wait(&self) -> Result<i32> {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        let pid = unsafe { libc::waitpid(self.pid, &mut status, 0) };
        ensure!(
            pid == self.pid,
            "waitpid: {}",
            std::io::Error::last_os_error()
        );
        ensure!(
            libc::WIFSTOPPED(status),
            "the program ended with status {status:#x}"
        );
        Ok(libc::WSTOPSIG(status))
    }

    fn resume(&self, how: libc::c_uint) -> Result<()> {
        loop {
            // SAFETY: no memory is touched; signal 0 (the traps are ours).
            let done = unsafe { libc::ptrace(how, self.pid, null_mut::<u8>(), null_mut::<u8>()) };
            ensure!(done == 0, "ptrace: {}", std::io::Error::last_os_error());
            match self.wait()? {
                libc::SIGTRAP => return Ok(()),
                // The program ignores it.
                libc::SIGCHLD => {}
                signal => bail!("signal {signal}"),
            }
        }
    }

    pub fn step(&self) -> Result<()> {
        self.resume(libc::PTRACE_SINGLESTEP)
    }

    /// Makes the present system call without a single step, so that a child that it creates is not
    /// stepped.
    pub fn call(&self) -> Result<()> {
        let mut r = self.registers()?.0;
        r.eflags &= !eflags::TF;
        self.set_registers(&r)?;
        self.resume(libc::PTRACE_SYSCALL)?;
        self.resume(libc::PTRACE_SYSCALL)
    }

    pub fn run_to_trap(&mut self) -> Result<()> {
        self.resume(libc::PTRACE_CONT)
    }

    pub fn registers(&self) -> Result<Registers> {
        // SAFETY: all fields are integers.
        let mut r: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: `r` outlives the call.
        let done =
            unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.pid, null_mut::<u8>(), &mut r) };
        ensure!(done == 0, "ptrace: {}", std::io::Error::last_os_error());
        Ok(Registers(r))
    }

    pub fn vectors(&self) -> Result<Vectors> {
        const NT_X86_XSTATE: usize = 0x202;
        let mut bytes = vec![0u8; 16384];
        let mut iov = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: writes at most `iov_len` bytes.
        let done = unsafe {
            libc::ptrace(
                libc::PTRACE_GETREGSET,
                self.pid,
                without_provenance_mut::<u8>(NT_X86_XSTATE),
                &mut iov,
            )
        };
        ensure!(done == 0, "ptrace: {}", std::io::Error::last_os_error());
        bytes.truncate(iov.iov_len);
        Ok(Vectors(bytes))
    }

    /// The step's own trap flag is not the program's: takes it out of flags just pushed.
    pub fn clean_pushed_flags(&self) -> Result<()> {
        let at = self.registers()?.rsp + 1;
        let mut byte = [0];
        self.read(at, &mut byte)?;
        byte[0] &= !1;
        let part = |p: *mut u8| libc::iovec {
            iov_base: p.cast(),
            iov_len: 1,
        };
        let (local, remote) = (
            part(byte.as_mut_ptr()),
            part(without_provenance_mut(at as usize)),
        );
        // SAFETY: reads `byte` only.
        let n = unsafe { libc::process_vm_writev(self.pid, &local, 1, &remote, 1, 0) };
        ensure!(
            n == 1,
            "writing {at:#x}: {}",
            std::io::Error::last_os_error()
        );
        Ok(())
    }

    pub fn read(&self, addr: u64, to: &mut [u8]) -> Result<()> {
        crate::ring::read_memory(self.pid, addr, to)
    }
}
