//! GDB agent expressions: conditions that the debugger compiles to bytecode and the program's side
//! evaluates (GDB manual, appendix "The GDB Agent Expression Mechanism").
//!
//! Runs where a breakpoint or a watch was hit, so: no allocation, no panic, a fixed stack, a bound
//! on the number of steps. Operands in the bytecode are big-endian, memory is the target's.
//!
//! A watch's condition reads properties of its hit as trace state variables. Their numbers are beyond those of GDB, which
//! counts its own from 1 ([`variable`]).

use core::mem::MaybeUninit;

/// Depth of the value stack; GDB's own compiler uses a handful.
pub const STACK: usize = 64;
/// Instructions after which an expression counts as endless.
pub const STEPS: usize = 10_000;

/// State that an expression can read.
pub trait AgentContext {
    /// Register by the protocol's number: rax rbx rcx rdx rsi rdi rbp rsp r8…r15 rip eflags.
    fn reg(&mut self, number: u16) -> Option<u64>;
    /// Fills `buf` from the target's memory; `false` when a byte is unreadable.
    fn read(&mut self, addr: u64, buf: &mut [u8]) -> bool;
    /// Trace state variable (see [`variable`]).
    fn variable(&mut self, _number: u16) -> Option<u64> {
        None
    }
}

/// The hit that a watch's condition is about, as trace state variables.
pub mod variable {
    /// The watched value before and after the access, or that of the element of the watch that was
    /// accessed: up to eight bytes, as an unsigned integer.
    pub const OLD: u16 = 0xff00;
    /// After the access, as [`OLD`] before it.
    pub const NEW: u16 = 0xff01;
    /// Address of the value.
    pub const ADDR: u16 = 0xff02;
    /// Watched bytes that were accessed.
    pub const LEN: u16 = 0xff03;
    /// Linux thread and process id.
    pub const TID: u16 = 0xff04;
    /// Linux process id (thread group).
    pub const PID: u16 = 0xff05;
    /// 1 read, 2 write, 3 both.
    pub const KIND: u16 = 0xff06;
    /// Hits of this watch so far, this one and rejected ones included.
    pub const HITS: u16 = 0xff07;
    /// The instruction that made the access. (The register is past it.)
    pub const PC: u16 = 0xff08;
    /// fs_base, where thread-local variables are found.
    pub const THREAD_POINTER: u16 = 0xff09;
}

/// Reason why an expression has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentError {
    /// The bytecode ends or jumps outside itself.
    Truncated,
    /// More than [`STACK`] values at once.
    StackOverflow,
    /// A value is taken from an empty stack.
    StackUnderflow,
    /// Division, or remainder of one, by zero.
    DivisionByZero,
    /// The address of the unreadable object.
    Memory(u64),
    /// No register has this number.
    Register(u16),
    /// A trace state variable that does not exist, or whose value is not known.
    Variable(u16),
    /// Floating point, tracing, `printf`: conditions do not need them.
    Unsupported(u8),
    /// More than [`STEPS`] instructions.
    TooLong,
}

impl AgentError {
    /// Packs it into one word, which handlers can store without a lock; never 0.
    pub fn pack(self) -> u64 {
        let (sort, value) = match self {
            AgentError::Truncated => (1, 0),
            AgentError::StackOverflow => (2, 0),
            AgentError::StackUnderflow => (3, 0),
            AgentError::DivisionByZero => (4, 0),
            // An address that needs more bits is no user address: which one does not matter.
            AgentError::Memory(at) => (5, at & (u64::MAX >> 4)),
            AgentError::Register(n) => (6, n.into()),
            AgentError::Variable(n) => (7, n.into()),
            AgentError::Unsupported(op) => (8, op.into()),
            AgentError::TooLong => (9, 0),
        };
        value << 4 | sort
    }
    /// Inverse of [`AgentError::pack`]; `None` for a word that it never returns (0, for example).
    pub fn unpack(word: u64) -> Option<AgentError> {
        let value = word >> 4;
        Some(match word & 15 {
            1 => AgentError::Truncated,
            2 => AgentError::StackOverflow,
            3 => AgentError::StackUnderflow,
            4 => AgentError::DivisionByZero,
            5 => AgentError::Memory(value),
            6 => AgentError::Register(value as u16),
            7 => AgentError::Variable(value as u16),
            8 => AgentError::Unsupported(value as u8),
            9 => AgentError::TooLong,
            _ => return None,
        })
    }
}

impl core::fmt::Display for AgentError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            AgentError::Truncated => f.write_str("the bytecode ends or jumps outside itself"),
            AgentError::StackOverflow => f.write_str("it needs too many values at once"),
            AgentError::StackUnderflow => {
                f.write_str("the bytecode takes a value that is not there")
            }
            AgentError::DivisionByZero => f.write_str("division by zero"),
            AgentError::Memory(at) => write!(f, "memory at {at:#x} cannot be read"),
            AgentError::Register(n) => write!(f, "there is no register {n}"),
            AgentError::Variable(variable::OLD) => f.write_str("the old value is not known"),
            AgentError::Variable(n) => write!(f, "trace state variable {n:#x} is not known"),
            AgentError::Unsupported(op) => write!(f, "opcode {op:#x} is not supported"),
            AgentError::TooLong => write!(f, "it takes more than {STEPS} steps"),
        }
    }
}

/// Opcodes (GDB, `gdbsupport/ax.def`).
pub mod op {
    /// a, b → a + b, modulo 2^64 as all arithmetic.
    pub const ADD: u8 = 0x02;
    /// a, b → a − b.
    pub const SUB: u8 = 0x03;
    /// a, b → a · b.
    pub const MUL: u8 = 0x04;
    /// a, b → a / b, as signed numbers.
    pub const DIV_SIGNED: u8 = 0x05;
    /// a, b → a / b, as unsigned numbers.
    pub const DIV_UNSIGNED: u8 = 0x06;
    /// a, b → the remainder of a / b, as signed numbers.
    pub const REM_SIGNED: u8 = 0x07;
    /// a, b → the remainder of a / b, as unsigned numbers.
    pub const REM_UNSIGNED: u8 = 0x08;
    /// a, b → a shifted left by b bits.
    pub const LSH: u8 = 0x09;
    /// a, b → a shifted right by b bits, the sign with it.
    pub const RSH_SIGNED: u8 = 0x0a;
    /// a, b → a shifted right by b bits, zeroes behind it.
    pub const RSH_UNSIGNED: u8 = 0x0b;
    /// a → 1 if a is 0, else 0.
    pub const LOG_NOT: u8 = 0x0e;
    /// a, b → the bits of both.
    pub const BIT_AND: u8 = 0x0f;
    /// a, b → the bits of either.
    pub const BIT_OR: u8 = 0x10;
    /// a, b → the bits in which both differ.
    pub const BIT_XOR: u8 = 0x11;
    /// a → all bits turned over.
    pub const BIT_NOT: u8 = 0x12;
    /// a, b → 1 if both are equal, else 0.
    pub const EQUAL: u8 = 0x13;
    /// a, b → 1 if a < b as signed numbers, else 0.
    pub const LESS_SIGNED: u8 = 0x14;
    /// a, b → 1 if a < b as unsigned numbers, else 0.
    pub const LESS_UNSIGNED: u8 = 0x15;
    /// a → its lowest bits (operand: how many), extended by their sign.
    pub const EXT: u8 = 0x16;
    /// address → the byte there.
    pub const REF8: u8 = 0x17;
    /// address → the two bytes there, in the target's order.
    pub const REF16: u8 = 0x18;
    /// address → the four bytes there.
    pub const REF32: u8 = 0x19;
    /// address → the eight bytes there.
    pub const REF64: u8 = 0x1a;
    /// a → : jumps to the offset in the operand (two bytes) if a is not 0.
    pub const IF_GOTO: u8 = 0x20;
    /// Jumps to the offset in the operand (two bytes).
    pub const GOTO: u8 = 0x21;
    /// → the operand (one byte), unsigned as all constants.
    pub const CONST8: u8 = 0x22;
    /// → the operand (two bytes).
    pub const CONST16: u8 = 0x23;
    /// → the operand (four bytes).
    pub const CONST32: u8 = 0x24;
    /// → the operand (eight bytes).
    pub const CONST64: u8 = 0x25;
    /// → the register whose number the operand is (two bytes).
    pub const REG: u8 = 0x26;
    /// The value of the expression is on the stack.
    pub const END: u8 = 0x27;
    /// a → a, a.
    pub const DUP: u8 = 0x28;
    /// a → nothing.
    pub const POP: u8 = 0x29;
    /// a → its lowest bits (operand: how many), extended by zeroes.
    pub const ZERO_EXT: u8 = 0x2a;
    /// a, b → b, a.
    pub const SWAP: u8 = 0x2b;
    /// → the trace state variable whose number the operand is (two bytes).
    pub const GETV: u8 = 0x2c;
    /// → the value that many places (operand, one byte) below the top, 0 being the top.
    pub const PICK: u8 = 0x32;
    /// a, b, c → c, a, b.
    pub const ROT: u8 = 0x33;
}

/// Filling all slots beforehand would cost more than most conditions.
struct Values {
    slots: [MaybeUninit<u64>; STACK],
    /// Slots that have been written: those below.
    len: usize,
}

impl Values {
    fn push(&mut self, value: u64) -> Result<(), AgentError> {
        self.slots
            .get_mut(self.len)
            .ok_or(AgentError::StackOverflow)?
            .write(value);
        self.len += 1;
        Ok(())
    }
    fn pop(&mut self) -> Result<u64, AgentError> {
        let value = self.pick(0)?;
        self.len -= 1;
        Ok(value)
    }
    /// The value `depth` below the top.
    fn pick(&self, depth: u8) -> Result<u64, AgentError> {
        let at = self
            .len
            .checked_sub(usize::from(depth) + 1)
            .ok_or(AgentError::StackUnderflow)?;
        let slot = self.slots.get(at).ok_or(AgentError::StackUnderflow)?;
        // SAFETY: below `len`.
        Ok(unsafe { slot.assume_init() })
    }
    fn unary(&mut self, f: impl FnOnce(u64) -> u64) -> Result<(), AgentError> {
        let a = self.pop()?;
        self.push(f(a))
    }
    /// `f(a, b)` where `b` was on top.
    fn binary(&mut self, f: impl FnOnce(u64, u64) -> u64) -> Result<(), AgentError> {
        let b = self.pop()?;
        let a = self.pop()?;
        self.push(f(a, b))
    }
    fn division(&mut self, f: impl FnOnce(u64, u64) -> u64) -> Result<(), AgentError> {
        let b = self.pop()?;
        let a = self.pop()?;
        if b == 0 {
            return Err(AgentError::DivisionByZero);
        }
        self.push(f(a, b))
    }
}

/// Big-endian operand of `N` bytes at `pc`, which moves past it.
fn operand<const N: usize>(code: &[u8], pc: &mut usize) -> Result<u64, AgentError> {
    let end = pc.checked_add(N).ok_or(AgentError::Truncated)?;
    let bytes = code.get(*pc..end).ok_or(AgentError::Truncated)?;
    *pc = end;
    Ok(bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b)))
}

fn sign_extend(value: u64, bits: u64) -> u64 {
    match bits {
        0 => 0,
        1..=63 => ((value << (64 - bits)) as i64 >> (64 - bits)) as u64,
        _ => value,
    }
}

fn zero_extend(value: u64, bits: u64) -> u64 {
    match bits {
        0 => 0,
        1..=63 => value & (u64::MAX >> (64 - bits)),
        _ => value,
    }
}

fn load<const N: usize>(cx: &mut dyn AgentContext, values: &mut Values) -> Result<(), AgentError> {
    let addr = values.pop()?;
    let mut bytes = [0; N];
    if !cx.read(addr, &mut bytes) {
        return Err(AgentError::Memory(addr));
    }
    values.push(bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
}

/// The value that the expression leaves on top; a condition holds if it is not zero.
///
/// # Errors
/// The reason why it has no value ([`AgentError`]); the target has not changed.
pub fn eval(code: &[u8], cx: &mut dyn AgentContext) -> Result<u64, AgentError> {
    let mut values = Values {
        slots: [MaybeUninit::uninit(); STACK],
        len: 0,
    };
    let v = &mut values;
    let mut pc = 0;
    for _ in 0..STEPS {
        let opcode = *code.get(pc).ok_or(AgentError::Truncated)?;
        pc += 1;
        match opcode {
            op::ADD => v.binary(u64::wrapping_add)?,
            op::SUB => v.binary(u64::wrapping_sub)?,
            op::MUL => v.binary(u64::wrapping_mul)?,
            op::DIV_SIGNED => v.division(|a, b| (a as i64).wrapping_div(b as i64) as u64)?,
            op::DIV_UNSIGNED => v.division(|a, b| a.wrapping_div(b))?,
            op::REM_SIGNED => v.division(|a, b| (a as i64).wrapping_rem(b as i64) as u64)?,
            op::REM_UNSIGNED => v.division(|a, b| a.wrapping_rem(b))?,
            op::LSH => v.binary(|a, b| if b < 64 { a << b } else { 0 })?,
            op::RSH_SIGNED => v.binary(|a, b| ((a as i64) >> b.min(63)) as u64)?,
            op::RSH_UNSIGNED => v.binary(|a, b| if b < 64 { a >> b } else { 0 })?,
            op::LOG_NOT => v.unary(|a| u64::from(a == 0))?,
            op::BIT_AND => v.binary(|a, b| a & b)?,
            op::BIT_OR => v.binary(|a, b| a | b)?,
            op::BIT_XOR => v.binary(|a, b| a ^ b)?,
            op::BIT_NOT => v.unary(|a| !a)?,
            op::EQUAL => v.binary(|a, b| u64::from(a == b))?,
            op::LESS_SIGNED => v.binary(|a, b| u64::from((a as i64) < b as i64))?,
            op::LESS_UNSIGNED => v.binary(|a, b| u64::from(a < b))?,
            op::EXT => {
                let bits = operand::<1>(code, &mut pc)?;
                v.unary(|a| sign_extend(a, bits))?;
            }
            op::ZERO_EXT => {
                let bits = operand::<1>(code, &mut pc)?;
                v.unary(|a| zero_extend(a, bits))?;
            }
            op::REF8 => load::<1>(cx, v)?,
            op::REF16 => load::<2>(cx, v)?,
            op::REF32 => load::<4>(cx, v)?,
            op::REF64 => load::<8>(cx, v)?,
            op::IF_GOTO => {
                let to = operand::<2>(code, &mut pc)?;
                if v.pop()? != 0 {
                    pc = to as usize;
                }
            }
            op::GOTO => pc = operand::<2>(code, &mut pc)? as usize,
            op::CONST8 => v.push(operand::<1>(code, &mut pc)?)?,
            op::CONST16 => v.push(operand::<2>(code, &mut pc)?)?,
            op::CONST32 => v.push(operand::<4>(code, &mut pc)?)?,
            op::CONST64 => v.push(operand::<8>(code, &mut pc)?)?,
            op::REG => {
                let number = operand::<2>(code, &mut pc)? as u16;
                v.push(cx.reg(number).ok_or(AgentError::Register(number))?)?;
            }
            op::GETV => {
                let number = operand::<2>(code, &mut pc)? as u16;
                v.push(cx.variable(number).ok_or(AgentError::Variable(number))?)?;
            }
            op::END => return v.pop(),
            op::DUP => v.push(v.pick(0)?)?,
            op::POP => drop(v.pop()?),
            op::SWAP => {
                let (b, a) = (v.pop()?, v.pop()?);
                v.push(b)?;
                v.push(a)?;
            }
            op::PICK => {
                let depth = operand::<1>(code, &mut pc)? as u8;
                v.push(v.pick(depth)?)?;
            }
            // a b c, c on top, becomes c a b.
            op::ROT => {
                let (c, b, a) = (v.pop()?, v.pop()?, v.pop()?);
                v.push(c)?;
                v.push(a)?;
                v.push(b)?;
            }
            other => return Err(AgentError::Unsupported(other)),
        }
    }
    Err(AgentError::TooLong)
}

/// Calls `see` with each trace state variable that the code reads. `false`: the code has an opcode that
/// [`eval`] does not know, or ends within an instruction.
pub fn variables(code: &[u8], mut see: impl FnMut(u16)) -> bool {
    let mut pc = 0;
    while let Some(&opcode) = code.get(pc) {
        pc += 1;
        let operands = match opcode {
            op::ADD..=op::RSH_UNSIGNED
            | op::LOG_NOT..=op::LESS_UNSIGNED
            | op::REF8..=op::REF64
            | op::END..=op::POP
            | op::SWAP
            | op::ROT => 0,
            op::EXT | op::ZERO_EXT | op::CONST8 | op::PICK => 1,
            op::IF_GOTO | op::GOTO | op::CONST16 | op::REG => 2,
            op::CONST32 => 4,
            op::CONST64 => 8,
            op::GETV => {
                let mut at = pc;
                let Ok(number) = operand::<2>(code, &mut at) else {
                    return false;
                };
                see(number as u16);
                2
            }
            _ => return false,
        };
        pc += operands;
    }
    pc == code.len() && !code.is_empty()
}

#[cfg(test)]
mod tests;
