//! seccomp(2): what the filters that a program has installed say of its calls. In single steps the kernel itself is
//! asked, so that this is held to it.

use crate::kernel::Memory;
use std::rc::Rc;
use ulpf_lib::sys::failure::{EFAULT, EINVAL, ENOSYS};

/// Offsets of what a filter sees (`struct seccomp_data`).
pub const NR: u32 = 0;
pub const ARCH: u32 = 4;
pub const IP: u32 = 8;
pub const ARGS: u32 = 16;
pub const X86_64: u32 = 0xc000_003e;

/// `struct sock_filter`.
#[derive(Clone, Copy, Debug)]
pub struct Instruction {
    pub code: u32,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

impl Instruction {
    pub fn bytes(&self) -> [u8; 8] {
        let [low, high, ..] = self.code.to_le_bytes();
        let [a, b, c, d] = self.k.to_le_bytes();
        [low, high, self.jt, self.jf, a, b, c, d]
    }

    fn of(bytes: &[u8]) -> Instruction {
        Instruction {
            code: u16::from_le_bytes([bytes[0], bytes[1]]).into(),
            jt: bytes[2],
            jf: bytes[3],
            k: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        }
    }
}

/// Those of a thread, the oldest first.
#[derive(Clone, Default)]
pub struct Filters(Vec<Rc<[Instruction]>>);

/// A system call as a filter sees it.
pub struct Call<'a> {
    pub nr: u64,
    pub args: &'a [u64; 6],
    /// Behind the instruction.
    pub ip: u64,
}

impl Filters {
    /// One more, whose `struct sock_fprog` is at this address; the call's result.
    pub fn install(&mut self, at: u64, m: &mut impl Memory) -> i64 {
        let Some(program) = m.bytes(at, 16) else {
            return EFAULT;
        };
        let len = u16::from_le_bytes([program[0], program[1]]);
        let from = u64::from_le_bytes(program[8..].try_into().expect("8 bytes"));
        if len == 0 {
            return EINVAL;
        }
        let Some(bytes) = m.bytes(from, usize::from(len) * 8) else {
            return EFAULT;
        };
        self.0.push(bytes.chunks(8).map(Instruction::of).collect());
        0
    }

    /// The result of a call that is not made; `Err`: it ends the program, or is not modelled.
    pub fn decide(&self, call: &Call) -> Result<Option<i64>, String> {
        let mut data = Vec::new();
        data.extend((call.nr as u32).to_le_bytes());
        data.extend(X86_64.to_le_bytes());
        data.extend(call.ip.to_le_bytes());
        data.extend(call.args.iter().flat_map(|a| a.to_le_bytes()));
        let mut strictest = libc::SECCOMP_RET_ALLOW;
        // Of two that are as strict the newer one counts.
        for filter in self.0.iter().rev() {
            let value = run(filter, &data)?;
            let action = |v: u32| (v & libc::SECCOMP_RET_ACTION_FULL) as i32;
            if action(value) < action(strictest) {
                strictest = value;
            }
        }
        let errno = (strictest & libc::SECCOMP_RET_DATA).min(4095);
        match strictest & libc::SECCOMP_RET_ACTION_FULL {
            libc::SECCOMP_RET_ALLOW => Ok(None),
            libc::SECCOMP_RET_ERRNO => Ok(Some(-i64::from(errno))),
            // There is no tracer or supervisor.
            libc::SECCOMP_RET_TRACE | libc::SECCOMP_RET_USER_NOTIF => Ok(Some(ENOSYS)),
            other => Err(format!(
                "a filter says {other:#x} of system call {}",
                call.nr
            )),
        }
    }
}

/// Result of a filter.
fn run(filter: &[Instruction], data: &[u8]) -> Result<u32, String> {
    use libc::*;
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; 16]);
    let mut at = 0;
    loop {
        let i = *filter.get(at).ok_or("a filter has no end")?;
        at += 1;
        let operand = if i.code & BPF_X != 0 { x } else { i.k };
        let slot = i.k as usize % memory.len();
        // Class, size and mode; class and operation; class and source.
        let (class, operation) = (i.code & 7, i.code & 0xf0);
        match class {
            BPF_LD | BPF_LDX => {
                let value = match i.code & 0xe0 {
                    BPF_IMM => i.k,
                    BPF_ABS => {
                        let word = data.get(i.k as usize..).and_then(|d| d.first_chunk());
                        u32::from_le_bytes(*word.ok_or("beyond the data")?)
                    }
                    BPF_MEM => memory[slot],
                    BPF_LEN => data.len() as u32,
                    mode => return Err(format!("a filter loads by mode {mode:#x}")),
                };
                *(if class == BPF_LD { &mut a } else { &mut x }) = value;
            }
            BPF_ST => memory[slot] = a,
            BPF_STX => memory[slot] = x,
            BPF_ALU => {
                a = match operation {
                    BPF_ADD => a.wrapping_add(operand),
                    BPF_SUB => a.wrapping_sub(operand),
                    BPF_MUL => a.wrapping_mul(operand),
                    BPF_DIV => a.checked_div(operand).ok_or("a filter divides by zero")?,
                    BPF_OR => a | operand,
                    BPF_AND => a & operand,
                    BPF_XOR => a ^ operand,
                    BPF_LSH => a << (operand & 31),
                    BPF_RSH => a >> (operand & 31),
                    BPF_NEG => a.wrapping_neg(),
                    _ => return Err(format!("a filter computes {operation:#x}")),
                }
            }
            BPF_JMP => {
                let holds = match operation {
                    BPF_JA => {
                        at += i.k as usize;
                        continue;
                    }
                    BPF_JEQ => a == operand,
                    BPF_JGT => a > operand,
                    BPF_JGE => a >= operand,
                    BPF_JSET => a & operand != 0,
                    _ => return Err(format!("a filter compares {operation:#x}")),
                };
                at += usize::from(if holds { i.jt } else { i.jf });
            }
            BPF_RET => return Ok(if i.code & 0x18 == BPF_A { a } else { i.k }),
            // BPF_MISC
            _ if i.code & 0xf8 == BPF_TXA => a = x,
            _ => x = a,
        }
    }
}
