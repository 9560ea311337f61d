//! Several threads in one program. A starter makes the memory, and for each epoch the threads; these
//! end when their part of the epoch is done. Each part is judged as a program by itself.

use crate::asm::*;
use crate::generate::starter;
use crate::program::*;
use anyhow::{Result, ensure};

/// In the starter's control area: how many threads still run, then their numbers.
const RUNNING: u64 = CONTROL + 512;
pub const THREADS: u64 = CONTROL + 520;
const MOST: u64 = 4;

/// Length of what stands at a marker: a breakpoint and room for a jump.
const MARK: usize = 5;

pub fn code_at(number: u64) -> u64 {
    CODE + 0x40_0000 + number * 0x20_0000
}

pub fn control_at(number: u64) -> u64 {
    CONTROL + 0x10_0000 * (1 + number)
}

/// Each thread's part, the one of the first thread first.
#[derive(Clone)]
pub struct ThreadedProgram {
    pub parts: Vec<Program>,
}

impl ThreadedProgram {
    pub fn epochs(&self) -> &[Vec<Watch>] {
        &self.parts[0].epochs
    }

    pub fn elf(&self) -> Vec<u8> {
        let made = self.parts.iter().any(|p| p.makes_code);
        let mut a = starter(self.parts.len() as u64, made);
        // Where the threads go on that have reached a marker: the first thread, the others.
        let mut back = vec![];
        for e in 0..self.epochs().len() {
            a.marker();
            a.store_word(RUNNING, self.parts.len() as i32);
            for (n, part) in self.parts.iter().enumerate().skip(1) {
                // Files, signals, memory are shared; the parent stores the number before it goes on.
                const FLAGS: u64 = 0x11_0f00 | 0x4_0000;
                a.syscall(
                    libc::SYS_clone,
                    &[FLAGS, part.control_at + 0xf00, THREADS + 8 * n as u64],
                );
                // test eax, eax ; jnz over
                a.put(&[0x85, 0xc0, 0x75, 5]);
                jump(&mut a, part.code_at + (part.markers[e] + MARK) as u64);
            }
            jump(
                &mut a,
                self.parts[0].code_at + (self.parts[0].markers[e] + MARK) as u64,
            );
            back.push(a.pc());
            // lock dec qword [RUNNING]
            let leave = |a: &mut Asm| {
                a.put(&[0xf0, 0x48, 0xff, 0x0c, 0x25]);
                a.put(&(RUNNING as u32).to_le_bytes());
            };
            leave(&mut a);
            let wait = a.pc();
            a.syscall(libc::SYS_sched_yield, &[]);
            // cmp qword [RUNNING], 0 ; jne wait
            a.put(&[0x48, 0x83, 0x3c, 0x25]);
            a.put(&(RUNNING as u32).to_le_bytes());
            a.put(&[0, 0x75]);
            let far = wait.wrapping_sub(a.pc() + 1) as i8;
            a.put(&[far as u8]);
            if e + 1 == self.epochs().len() {
                a.marker();
                a.syscall(libc::SYS_exit_group, &[0]);
                back.push(a.pc());
                leave(&mut a);
                a.syscall(libc::SYS_exit, &[0]);
            }
        }
        let done = back.pop().unwrap_or(CODE);
        let mut segments = vec![(CODE, EXEC, a.code), (CONTROL, DATA, control(&a.constants))];
        for (n, part) in self.parts.iter().enumerate() {
            let mut code = part.code.clone();
            for (e, marker) in part.markers.iter().enumerate().skip(1) {
                let to = if n == 0 { back[e - 1] } else { done };
                let from = part.code_at + (marker + MARK) as u64;
                code[*marker] = 0xe9;
                code[marker + 1..marker + MARK]
                    .copy_from_slice(&(to.wrapping_sub(from) as u32).to_le_bytes());
            }
            segments.push((part.code_at, EXEC, code));
            segments.push((part.control_at, DATA, part.control()));
        }
        elf(self.parts[0].memory_seed, &segments)
    }

    /// The form in `cases/`: part after part.
    pub fn text(&self, comment: &str) -> String {
        let parts = self.parts.iter().enumerate();
        parts
            .map(|(n, p)| p.text(if n == 0 { comment } else { "" }))
            .collect()
    }

    /// `None`: it has one thread.
    pub fn parse(text: &str) -> Result<Option<ThreadedProgram>> {
        let mut texts: Vec<String> = vec![];
        for line in text.lines() {
            if line.starts_with("part ") {
                texts.push(String::new());
            }
            if let Some(t) = texts.last_mut() {
                *t += line;
                t.push('\n');
            }
        }
        let parts = texts.iter().map(|t| Program::parse(t));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        ensure!(parts.len() as u64 <= MOST, "too many threads");
        Ok((!parts.is_empty()).then_some(ThreadedProgram { parts }))
    }
}

fn jump(a: &mut Asm, to: u64) {
    let far = to.wrapping_sub(a.pc() + 5) as u32;
    a.put(&[0xe9]);
    a.put(&far.to_le_bytes());
}
