//! The instruction by which a program makes system calls for us.
#![forbid(unsafe_code)]

use crate::image::{PAGE, SYSCALL};
use crate::tracee::{Memory, Saved};
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
}

impl Gate {
    pub fn find(pid: i32, memory: &Memory, at: &Saved) -> io::Result<Gate> {
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
                });
            }
        }
        // Without a vDSO (vdso=0 on the kernel's command line), two bytes of the page of the stop are borrowed.
        let addr = at.regs.rip / PAGE * PAGE;
        let mut original = [0; 2];
        memory.read(addr, &mut original)?;
        memory.write(addr, &SYSCALL)?;
        Ok(Gate {
            addr,
            original: Some(original),
            vdso,
        })
    }

    /// A gate in our own memory.
    pub fn at(addr: u64) -> Gate {
        Gate {
            addr,
            original: None,
            vdso: None,
        }
    }

    /// A gate in our own memory of the same program.
    pub fn moved(&self, addr: u64) -> Gate {
        Gate {
            addr,
            original: None,
            vdso: self.vdso.clone(),
        }
    }

    pub fn close(&self, memory: &Memory) -> io::Result<()> {
        match &self.original {
            Some(code) => memory.write(self.addr, code),
            None => Ok(()),
        }
    }
}
