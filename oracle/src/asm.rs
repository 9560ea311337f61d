//! Just enough of an assembler for the code around the instructions under test.

use crate::program::{CODE, CONTROL, CONTROL_LEN};
use iced_x86::{Encoder, Instruction};

pub struct Asm {
    /// Where the code and the control area will be.
    pub base: u64,
    pub control: u64,
    pub code: Vec<u8>,
    pub constants: Vec<u8>,
}

/// General registers in encoding order.
pub const RAX: u8 = 0;
pub const RCX: u8 = 1;
pub const RDX: u8 = 2;
pub const RBX: u8 = 3;
pub const RSP: u8 = 4;
pub const RBP: u8 = 5;
pub const RSI: u8 = 6;
pub const RDI: u8 = 7;
pub const R8: u8 = 8;
pub const R10: u8 = 10;

impl Default for Asm {
    fn default() -> Asm {
        Asm::at(CODE, CONTROL)
    }
}

impl Asm {
    pub fn at(base: u64, control: u64) -> Asm {
        Asm {
            base,
            control,
            code: vec![],
            constants: vec![],
        }
    }
    pub fn pc(&self) -> u64 {
        self.base + self.code.len() as u64
    }
    pub fn put(&mut self, bytes: &[u8]) {
        self.code.extend_from_slice(bytes);
    }
    pub fn instruction(&mut self, i: &Instruction) -> bool {
        let mut e = Encoder::new(64);
        let ok = e.encode(i, self.pc()).is_ok();
        if ok {
            self.put(&e.take_buffer());
        }
        ok
    }
    /// `mov r64, imm`
    pub fn mov(&mut self, reg: u8, value: u64) {
        if let Ok(low) = i32::try_from(value as i64) {
            self.put(&[0x48 | reg >> 3, 0xc7, 0xc0 | reg & 7]);
            self.put(&low.to_le_bytes());
        } else {
            self.put(&[0x48 | reg >> 3, 0xb8 | reg & 7]);
            self.put(&value.to_le_bytes());
        }
    }
    /// `mov r64, [absolute]`; the address lies below 2 GiB.
    pub fn load(&mut self, reg: u8, addr: u64) {
        self.put(&[0x48 | (reg >> 3) << 2, 0x8b, 4 | (reg & 7) << 3, 0x25]);
        self.put(&(addr as u32).to_le_bytes());
    }
    /// `mov [absolute], r64`
    pub fn store(&mut self, addr: u64, reg: u8) {
        self.put(&[0x48 | (reg >> 3) << 2, 0x89, 4 | (reg & 7) << 3, 0x25]);
        self.put(&(addr as u32).to_le_bytes());
    }
    /// `mov qword [absolute], imm32`
    pub fn store_word(&mut self, addr: u64, value: i32) {
        self.put(&[0x48, 0xc7, 0x04, 0x25]);
        self.put(&(addr as u32).to_le_bytes());
        self.put(&value.to_le_bytes());
    }
    /// `add r64, imm32`
    pub fn add(&mut self, reg: u8, value: i32) {
        self.put(&[0x48 | reg >> 3, 0x81, 0xc0 | reg & 7]);
        self.put(&value.to_le_bytes());
    }
    /// `and r64, imm32`
    pub fn and(&mut self, reg: u8, value: i32) {
        self.put(&[0x48 | reg >> 3, 0x81, 0xe0 | reg & 7]);
        self.put(&value.to_le_bytes());
    }
    /// `cmp al, imm8`: defines every status flag.
    pub fn define_flags(&mut self, value: u8) {
        self.put(&[0x3c, value]);
    }
    pub fn syscall(&mut self, nr: libc::c_long, args: &[u64]) {
        for (reg, value) in [RDI, RSI, RDX, R10, R8].into_iter().zip(args) {
            self.mov(reg, *value);
        }
        self.mov(RAX, nr as u64);
        self.put(&[0x0f, 0x05]);
        // rcx and r11 hold what the processor put there.
        self.put(&[0x31, 0xc9, 0x45, 0x31, 0xdb]);
    }
    /// A jump with this opcode to where [`Asm::lands`] says later.
    pub fn jump_over(&mut self, opcode: &[u8]) -> usize {
        self.put(opcode);
        self.put(&[0; 4]);
        self.code.len()
    }
    pub fn lands(&mut self, jump: usize) {
        let far = (self.code.len() - jump) as u32;
        self.code[jump - 4..jump].copy_from_slice(&far.to_le_bytes());
    }
    pub fn marker(&mut self) {
        self.put(&[0xcc]);
    }
    /// Puts bytes among the constants; their address.
    pub fn constant(&mut self, bytes: &[u8]) -> u64 {
        self.constants
            .resize(self.constants.len().next_multiple_of(64), 0);
        let at = self.control + (CONTROL_LEN + self.constants.len()) as u64;
        self.constants.extend_from_slice(bytes);
        at
    }
}
