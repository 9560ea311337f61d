//! The instruction by which a program makes system calls for us.
#![forbid(unsafe_code)]

use crate::image::{PAGE, SYSCALL};
use crate::tracee::{Memory, Registers};
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
