//! The instruction by which a program makes system calls for us.
#![forbid(unsafe_code)]

use crate::image::{PAGE, SYSCALL};
use crate::tracee::{Memory, Registers, Stop, Tracee, unexpected};
use crate::unaided::Unaided;
use std::io;
use std::ops::Range;
use ulpf_host::process;

/// Address of a `syscall` instruction in the program.
pub struct Gate {
    pub addr: u64,
    /// Original bytes, if code was overwritten to create the instruction.
    original: Option<[u8; 2]>,
    /// The program's vDSO, if it has one.
    pub vdso: Option<Range<u64>>,
    /// Where calls are made that need no tracer any more.
    unaided: Option<Unaided>,
}

impl Gate {
    /// A gate for threads of which the stopped one has these registers.
    pub fn find(pid: i32, memory: &Memory, at: &Registers) -> io::Result<Gate> {
        let vdso = process::mapping(pid, "[vdso]")?;
        if let Some(vdso) = &vdso {
            let mut code = vec![0; (vdso.end - vdso.start) as usize];
            if memory.read(vdso.start, &mut code).is_ok()
                && let Some(at) = code.windows(2).position(|w| w == SYSCALL)
            {
                return Ok(Gate {
                    addr: vdso.start + at as u64,
                    original: None,
                    vdso: Some(vdso.clone()),
                    unaided: Unaided::find(pid, vdso)?,
                });
            }
        }
        // Without a vDSO (vdso=0 on the kernel's command line), two bytes of the page of the stop are borrowed.
        let addr = at.rip / PAGE * PAGE;
        let mut original = [0; 2];
        memory.read(addr, &mut original)?;
        memory.write(addr, &SYSCALL)?;
        Ok(Gate {
            addr,
            original: Some(original),
            vdso,
            unaided: None,
        })
    }

    /// A gate in our own memory.
    pub fn at(addr: u64) -> Gate {
        Gate {
            addr,
            original: None,
            vdso: None,
            unaided: None,
        }
    }

    /// The instruction for a call of a thread with these registers at its stop.
    pub fn lead_to(&self, home: &Registers) -> io::Result<u64> {
        match &self.unaided {
            Some(unaided) => unaided.lead_to(home).map(|()| unaided.at),
            None => Ok(self.addr),
        }
    }

    /// A gate in our own memory of the same program.
    pub fn moved(&self, addr: u64) -> Gate {
        Gate {
            addr,
            original: None,
            vdso: self.vdso.clone(),
            unaided: None,
        }
    }

    pub fn close(&self, memory: &Memory) -> io::Result<()> {
        if let Some(code) = &self.original {
            memory.write(self.addr, code)?;
        }
        self.unaided.as_ref().map_or(Ok(()), Unaided::close)
    }
}

impl Tracee {
    /// Makes one system call in the thread, whose state is saved. It must be in a stop outside of any system call of its
    /// own (or at the exit of one). Without an error, its registers are restored: the code
    /// that leads it home serves the next thread then. The outer error is ours, the inner one the call's errno.
    pub fn syscall(
        &mut self,
        gate: &Gate,
        number: i64,
        args: [u64; 6],
    ) -> io::Result<Result<u64, i32>> {
        let home = self.home()?;
        let mut regs = home.regs;
        regs.rip = gate.lead_to(&home.regs)?;
        regs.rax = number as u64;
        // "No system call to restart".
        regs.orig_rax = u64::MAX;
        [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9] = args;
        self.set_regs(&regs)?;
        // Entry, then exit. (Stepping over the instruction would raise a real SIGTRAP, which the
        // kernel turns into a reset of the program's SIGTRAP handler when it is blocked or ignored.)
        for _ in 0..2 {
            self.cont_syscall(0)?;
            let stop = self.wait_for(|s| s == Stop::Syscall, |t| t.cont_syscall(0))?;
            if stop != Stop::Syscall {
                return Err(unexpected(stop, "a system call made on its behalf"));
            }
        }
        let result = self.regs()?.rax as i64;
        self.set_regs(&home.regs)?;
        Ok(if (-4095..0).contains(&result) {
            Err(-result as i32)
        } else {
            Ok(result as u64)
        })
    }
}
