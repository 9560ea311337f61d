//! System calls that a thread of the program completes by itself, if the process that traces it is killed meanwhile.
//!
//! ```text
//!              syscall                         the thread is sent here with the registers of the call
//!              mov rdi, …; mov rsi, …; …       its registers at the stop: those that the call has used
//!              jmp *0(%rip); .quad …           where it was
//! ```
//! The code is in unused bytes at the end of the vDSO, below those for forked children (`load::pad`). One request sets
//! all registers of a stopped thread, so it is either where it was or on its way back there.
#![forbid(unsafe_code)]

use crate::image::SYSCALL;
use crate::tracee::{Memory, Registers, Tracee};
use std::cell::RefCell;
use std::io;
use std::ops::Range;
use ulpf_lib::boot::PAD_LEN;

/// Bytes of the code.
const LEN: usize = SYSCALL.len() + 9 * 10 + 14;
/// Distance from the end of the vDSO.
const FROM_END: u64 = 256;
/// Bytes before it that must be unused, too: code that ends with zeros may need a few of them.
const BEFORE: u64 = 64;
const _: () = assert!(LEN as u64 <= FROM_END - 2 * PAD_LEN);

/// A place for such code.
pub struct Unaided {
    pub at: u64,
    memory: Memory,
    /// What is there, if we have written it.
    written: RefCell<Option<[u8; LEN]>>,
}

impl Unaided {
    /// `None` if these bytes of the vDSO are in use.
    pub fn find(pid: i32, vdso: &Range<u64>) -> io::Result<Option<Unaided>> {
        let memory = Memory::open(pid)?;
        let at = vdso.end - FROM_END;
        let mut bytes = [0; (BEFORE + FROM_END - 2 * PAD_LEN) as usize];
        if memory.read(at - BEFORE, &mut bytes).is_err() {
            return Ok(None);
        }
        let (before, there) = bytes.split_at(BEFORE as usize);
        let unused = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        let free = unused(before) && (unused(there) || is_left(there));
        Ok(free.then_some(Unaided {
            at,
            memory,
            written: RefCell::default(),
        }))
    }

    /// Makes the code lead back to these registers.
    pub fn lead_to(&self, home: &Registers) -> io::Result<()> {
        let code = code(home);
        let mut written = self.written.borrow_mut();
        if *written != Some(code) {
            self.memory.write(self.at, &code)?;
            *written = Some(code);
        }
        Ok(())
    }

    pub fn close(&self) -> io::Result<()> {
        match self.written.take() {
            Some(_) => self.memory.write(self.at, &[0; LEN]),
            None => Ok(()),
        }
    }
}

/// Takes a stopped thread home whose tracer was killed in the midst of such a call. The call may not have been made.
pub fn take_home(thread: &Tracee, memory: &Memory, vdso: &Range<u64>) -> io::Result<()> {
    let at = vdso.end - FROM_END;
    let mut regs = thread.regs()?;
    if !(at..at + LEN as u64).contains(&regs.rip) {
        return Ok(());
    }
    let mut code = [0; LEN];
    memory.read(at, &mut code)?;
    if !is_left(&code) {
        return Ok(());
    }
    lead(&code, &mut regs);
    // "No system call to restart".
    regs.orig_rax = u64::MAX;
    thread.set_regs(&regs)
}

/// The instructions that load the registers that a call takes or changes, and the jump; each before its value.
const LOADS: [&[u8]; 10] = [
    &[0x48, 0xbf],
    &[0x48, 0xbe],
    &[0x48, 0xba],
    &[0x49, 0xba],
    &[0x49, 0xb8],
    &[0x49, 0xb9],
    &[0x48, 0xb9],
    &[0x49, 0xbb],
    &[0x48, 0xb8],
    &[0xff, 0x25, 0, 0, 0, 0],
];

/// The values in their order.
fn values(regs: &mut Registers) -> [&mut u64; 10] {
    [
        &mut regs.rdi,
        &mut regs.rsi,
        &mut regs.rdx,
        &mut regs.r10,
        &mut regs.r8,
        &mut regs.r9,
        &mut regs.rcx,
        &mut regs.r11,
        &mut regs.rax,
        &mut regs.rip,
    ]
}

fn code(home: &Registers) -> [u8; LEN] {
    let mut home = *home;
    let mut all = SYSCALL.to_vec();
    for (load, value) in LOADS.iter().zip(values(&mut home)) {
        all.extend(*load);
        all.extend(value.to_le_bytes());
    }
    let mut code = [0; LEN];
    code.copy_from_slice(&all);
    code
}

/// Does what the code does after its call.
fn lead(code: &[u8; LEN], regs: &mut Registers) {
    let mut rest = code.get(SYSCALL.len()..).unwrap_or_default();
    for (load, to) in LOADS.iter().zip(values(regs)) {
        let value = rest
            .get(load.len()..)
            .and_then(|rest| rest.split_first_chunk());
        let Some((value, behind)) = value else { return };
        (*to, rest) = (u64::from_le_bytes(*value), behind);
    }
}

/// Whether an earlier tracer that was killed has left the code.
fn is_left(there: &[u8]) -> bool {
    let (start, end) = (SYSCALL.len(), SYSCALL.len() + 2);
    there.starts_with(&SYSCALL)
        && there.get(start..end) == Some(LOADS[0])
        && there.iter().skip(LEN).all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracee::no_registers;

    #[test]
    fn the_code_is_recognised_and_ends_where_the_thread_was() {
        let home = Registers {
            rip: 0x1122_3344_5566_7788,
            rdi: 5,
            r11: 6,
            ..no_registers()
        };
        let code = code(&home);
        let mut regs = no_registers();
        lead(&code, &mut regs);
        assert_eq!((regs.rip, regs.rdi, regs.r11), (home.rip, 5, 6));
        assert_eq!(code[LEN - 8..], home.rip.to_le_bytes());
        assert_eq!(code[4], 5);
        let mut there = [0; 128];
        assert!(!is_left(&there));
        there[..LEN].copy_from_slice(&code);
        assert!(is_left(&there));
        there[LEN] = 1;
        assert!(!is_left(&there));
    }

    #[test]
    fn it_does_not_reach_the_bytes_for_forked_children() {
        let vdso = ulpf_host::process::mapping(std::process::id() as i32, "[vdso]").unwrap();
        let found = Unaided::find(std::process::id() as i32, &vdso.clone().unwrap()).unwrap();
        let end = found.map(|found| found.at + LEN as u64);
        assert!(end.is_none_or(|end| end + 2 * PAD_LEN <= vdso.unwrap().end));
    }
}
