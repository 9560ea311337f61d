//! Filters of the program's own (seccomp), which know its numbers, arguments and code addresses: some calls on
//! guarded buffers are refused from there on, and touch nothing.

use super::Gen;
use crate::kernel::FILE;
use crate::program::{ARENA_LEN, ARENAS};
use crate::seccomp::{ARCH, ARGS, IP, Instruction, NR, X86_64};
use libc::*;

/// Calls that filters may refuse.
const CALLS: [c_long; 8] = [
    SYS_read,
    SYS_write,
    SYS_pread64,
    SYS_pwrite64,
    SYS_readv,
    SYS_writev,
    SYS_preadv,
    SYS_pwritev,
];
/// Reads of this length leave the pipe empty; they are let pass.
pub const DRAIN: u64 = 0x800;

fn plain(code: u32, k: u32) -> Instruction {
    jump(code, k, 0, 0)
}

fn jump(code: u32, k: u32, jt: usize, jf: usize) -> Instruction {
    let (jt, jf) = (jt as u8, jf as u8);
    Instruction { code, jt, jf, k }
}

fn load(offset: u32) -> Instruction {
    plain(BPF_LD | BPF_W | BPF_ABS, offset)
}

fn ret(verdict: u32) -> Instruction {
    plain(BPF_RET | BPF_K, verdict)
}

impl Gen<'_> {
    /// Installs a filter; the thread has it for the rest of its life.
    pub fn filter(&mut self) {
        let filter = self.random_filter();
        let bytes: Vec<u8> = filter.iter().flat_map(Instruction::bytes).collect();
        let at = self.asm.constant(&bytes);
        let mut program = vec![0; 16];
        program[..2].copy_from_slice(&(filter.len() as u16).to_le_bytes());
        program[8..].copy_from_slice(&at.to_le_bytes());
        let program = self.asm.constant(&program);
        self.asm
            .syscall(SYS_prctl, &[PR_SET_NO_NEW_PRIVS as u64, 1, 0, 0, 0]);
        // All threads of the process, if it is one; without a mitigation.
        let flags = match self.rng.below(4) {
            0 if self.windows.is_none() => SECCOMP_FILTER_FLAG_TSYNC,
            1 => SECCOMP_FILTER_FLAG_SPEC_ALLOW,
            _ => 0,
        };
        if self.rng.chance(3) {
            let mode = u64::from(SECCOMP_MODE_FILTER);
            self.asm
                .syscall(SYS_prctl, &[PR_SET_SECCOMP as u64, mode, program]);
        } else {
            let operation = u64::from(SECCOMP_SET_MODE_FILTER);
            self.asm.syscall(SYS_seccomp, &[operation, flags, program]);
        }
        // test rax, rax ; jz over ; ud2
        self.asm.put(&[0x48, 0x85, 0xc0, 0x74, 2, 0x0f, 0x0b]);
        self.asm.define_flags(1);
    }

    fn random_filter(&mut self) -> Vec<Instruction> {
        let mut out = vec![];
        if self.rng.chance(2) {
            out.push(load(ARCH));
            out.push(jump(BPF_JMP | BPF_JEQ | BPF_K, X86_64, 1, 0));
            out.push(ret(SECCOMP_RET_KILL_PROCESS));
        }
        // The others pass whatever their arguments are.
        let calls: Vec<_> = match self.rng.below(3) {
            0 => CALLS.to_vec(),
            _ => (0..1 + self.rng.below(3))
                .map(|_| CALLS[self.rng.below(8) as usize])
                .collect(),
        };
        out.push(load(NR));
        for (n, nr) in calls.iter().enumerate() {
            out.push(jump(
                BPF_JMP | BPF_JEQ | BPF_K,
                *nr as u32,
                calls.len() - n,
                0,
            ));
        }
        out.push(ret(SECCOMP_RET_ALLOW));
        out.push(load(ARGS + 2 * 8));
        out.push(jump(BPF_JMP | BPF_JEQ | BPF_K, DRAIN as u32, 0, 1));
        out.push(ret(SECCOMP_RET_ALLOW));
        for _ in 0..1 + self.rng.below(3) {
            self.rule(&mut out);
        }
        out.push(ret(SECCOMP_RET_ALLOW));
        out
    }

    /// Computes something of the call, compares it, and returns a verdict or goes on.
    fn rule(&mut self, out: &mut Vec<Instruction>) {
        let offset = match self.rng.below(10) {
            0 => NR,
            1 | 2 => IP,
            n => ARGS + 8 * (n as u32 % 4) + 4 * u32::from(self.rng.chance(8)),
        };
        out.push(load(offset));
        for _ in 0..self.rng.below(3) {
            self.compute(out);
        }
        let k = match offset {
            _ if self.rng.chance(4) => self.rng.next() as u32,
            NR => CALLS[self.rng.below(8) as usize] as u32,
            IP => self.asm.pc() as u32 + self.rng.below(1 << 13) as u32 - 1024,
            ARGS => (FILE + self.fd + self.rng.below(3)) as u32,
            _ if self.rng.chance(2) => {
                (ARENAS[self.rng.below(3) as usize] + self.rng.below(ARENA_LEN as u64)) as u32
            }
            _ => 1 << self.rng.below(15),
        };
        let operation = [BPF_JEQ, BPF_JGT, BPF_JGE, BPF_JSET, BPF_JSET][self.rng.below(5) as usize];
        let source = if self.rng.chance(8) { BPF_X } else { BPF_K };
        let verdict = self.verdict();
        let len = verdict.len();
        let (jt, jf) = if self.rng.chance(2) {
            (0, len)
        } else {
            (len, 0)
        };
        out.push(jump(BPF_JMP | operation | source, k, jt, jf));
        out.extend(verdict);
    }

    fn compute(&mut self, out: &mut Vec<Instruction>) {
        let k = self.rng.next() as u32;
        let slot = k % 16;
        let small = 1 << (k % 14);
        match self.rng.below(8) {
            0 => out.push(plain(BPF_ALU | BPF_AND | BPF_K, k | 0xfff)),
            1 => out.push(plain(BPF_ALU | BPF_RSH | BPF_K, k % 12)),
            2 => out.push(plain(BPF_ALU | BPF_DIV | BPF_K, small)),
            3 => {
                let operation = [BPF_ADD, BPF_SUB, BPF_MUL, BPF_OR, BPF_XOR, BPF_LSH];
                let operation = operation[self.rng.below(6) as usize];
                // x is an argument, or nothing yet.
                out.push(plain(BPF_ST, slot));
                out.push(plain(BPF_LDX | BPF_W | BPF_MEM, slot));
                out.push(load(ARGS + 8 * self.rng.below(4) as u32));
                out.push(plain(BPF_ALU | operation | BPF_X, 0));
            }
            4 => {
                out.push(plain(BPF_MISC | BPF_TAX, 0));
                out.push(plain(BPF_STX, slot));
                out.push(plain(BPF_LD | BPF_W | BPF_LEN, 0));
                out.push(plain(BPF_ALU | BPF_ADD | BPF_X, 0));
                out.push(plain(BPF_LD | BPF_MEM, slot));
            }
            5 => out.push(plain(BPF_ALU | BPF_NEG, 0)),
            6 => {
                // Skips an instruction that is never executed.
                out.push(plain(BPF_JMP | BPF_JA, 1));
                out.push(ret(SECCOMP_RET_KILL_THREAD));
            }
            _ => {
                let operation = [BPF_ADD, BPF_SUB, BPF_MUL, BPF_OR, BPF_XOR];
                let operation = operation[self.rng.below(5) as usize];
                out.push(plain(BPF_ALU | operation | BPF_K, small));
            }
        }
    }

    fn verdict(&mut self) -> Vec<Instruction> {
        let data = match self.rng.below(4) {
            0 => self.rng.below(1 << 16) as u32,
            _ => self.rng.below(140) as u32,
        };
        match self.rng.below(10) {
            0 => vec![ret(SECCOMP_RET_TRACE | data)],
            1 => vec![ret(SECCOMP_RET_USER_NOTIF)],
            2 | 3 => vec![ret(SECCOMP_RET_ALLOW)],
            // The errno is what was computed.
            4 => vec![
                plain(BPF_ALU | BPF_AND | BPF_K, 0xfff),
                plain(BPF_ALU | BPF_OR | BPF_K, SECCOMP_RET_ERRNO),
                plain(BPF_RET | BPF_A, 0),
            ],
            _ => vec![ret(SECCOMP_RET_ERRNO | data)],
        }
    }
}
