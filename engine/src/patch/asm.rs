//! The few instructions that trampolines are made of. None of them changes a flag, but for those that say so.

use alloc::vec::Vec;

use crate::access::insn::{MemOp, NO_REG};

pub const RCX: u8 = 1;
pub const R11: u8 = 11;

#[derive(Default)]
pub struct Asm {
    pub bytes: Vec<u8>,
}

impl Asm {
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
    pub fn here(&self) -> usize {
        self.bytes.len()
    }

    fn slot(&mut self, opcode: u8, reg: u8, at: usize) {
        self.put(&[
            0x65,
            0x48 | (reg >> 3) << 2,
            opcode,
            (reg & 7) << 3 | 4,
            0x25,
        ]);
        self.put(&(at as u32).to_le_bytes());
    }
    /// `mov gs:[at], reg`
    pub fn save(&mut self, at: usize, reg: u8) {
        self.slot(0x89, reg, at);
    }
    /// `mov reg, gs:[at]`
    pub fn load(&mut self, reg: u8, at: usize) {
        self.slot(0x8b, reg, at);
    }
    fn slot_of_rcx(&mut self, opcode: u8, reg: u8, at: usize) {
        self.put(&[
            0x65,
            0x48 | (reg >> 3) << 2,
            opcode,
            (reg & 7) << 3 | 4,
            0xc0 | RCX << 3 | 5,
        ]);
        self.put(&(at as u32).to_le_bytes());
    }
    /// `reg = ++gs:[at + rcx*8]`
    pub fn count_at_rcx(&mut self, at: usize, reg: u8) {
        self.slot_of_rcx(0x8b, reg, at);
        self.lea(reg, reg, 1);
        self.slot_of_rcx(0x89, reg, at);
    }
    /// `sum = gs:[at + rcx*8] += by`
    pub fn add_at_rcx(&mut self, at: usize, sum: u8, by: u8) {
        self.slot_of_rcx(0x8b, sum, at);
        self.add_scaled(sum, by, 1);
        self.slot_of_rcx(0x89, sum, at);
    }
    /// `mov qword gs:[at], value`, sign-extended.
    pub fn set(&mut self, at: usize, value: i32) {
        self.put(&[0x65, 0x48, 0xc7, 0x04, 0x25]);
        self.put(&(at as u32).to_le_bytes());
        self.put(&value.to_le_bytes());
    }
    /// `ecx = ++gs:[at]`, 32 bits.
    pub fn count_in_ecx(&mut self, at: usize) {
        self.put(&[0x65, 0x8b, 0x0c, 0x25]);
        self.put(&(at as u32).to_le_bytes());
        self.put(&[0x8d, 0x49, 0x01]);
        self.put(&[0x65, 0x89, 0x0c, 0x25]);
        self.put(&(at as u32).to_le_bytes());
    }
    /// `movzx ecx, ch`
    pub fn ecx_from_ch(&mut self) {
        self.put(&[0x0f, 0xb6, 0xcd]);
    }
    /// `movzx ecx, cl`
    pub fn ecx_from_cl(&mut self) {
        self.put(&[0x0f, 0xb6, 0xc9]);
    }
    /// `movzx ecx, byte [base + disp]`
    pub fn peek_byte(&mut self, base: u8, disp: i32) {
        self.put(&[
            0x40 | base >> 3,
            0x0f,
            0xb6,
            0x84 | RCX << 3,
            0x20 | base & 7,
        ]);
        self.put(&disp.to_le_bytes());
    }
    /// `xchg [base], cl`
    pub fn exchange_cl(&mut self, base: u8) {
        self.put(&[0x40 | base >> 3, 0x86, 0x44 | RCX << 3, 0x20 | base & 7, 0]);
    }
    pub fn pause(&mut self) {
        self.put(&[0xf3, 0x90]);
    }
    /// `mov qword gs:[at], value`, by way of rcx: two halves would have to be there before the whole is read.
    pub fn save_constant(&mut self, at: usize, value: u64) {
        self.constant(RCX, value);
        self.save(at, RCX);
    }
    /// `int3`, and a byte to which nothing leads: there, it has been executed.
    pub fn trap(&mut self) {
        self.put(&[0xcc, 0x90]);
    }
    /// `vmovups gs:[at], vector`, of 128, 256 or 512 bits (`length` 0 to 2); `vector` is one of 32.
    pub fn save_vector(&mut self, at: usize, vector: u8, length: u8) {
        self.put(&[
            0x65,
            0x62,
            0x61 | (!vector >> 3 & 1) << 7 | (!vector >> 4 & 1) << 4,
            0x7c,
            length << 5 | 0x08,
            0x11,
            (vector & 7) << 3 | 4,
            0x25,
        ]);
        self.put(&(at as u32).to_le_bytes());
    }
    /// `kmovq rcx, mask`, or `kmovw ecx, mask`, which needs no AVX512BW.
    pub fn rcx_from_mask(&mut self, mask: u8, wide: bool) {
        self.put(match wide {
            true => &[0xc4, 0xe1, 0xfb],
            false => &[0xc5, 0xf8],
        });
        self.put(&[0x93, 0xc0 | RCX << 3 | mask & 7]);
    }
    /// `jmp gs:[at]`
    pub fn jump_through(&mut self, at: usize) {
        self.put(&[0x65, 0xff, 0x24, 0x25]);
        self.put(&(at as u32).to_le_bytes());
    }
    /// `push qword gs:[at]`
    pub fn push(&mut self, at: usize) {
        self.put(&[0x65, 0xff, 0x34, 0x25]);
        self.put(&(at as u32).to_le_bytes());
    }
    /// `jmp reg`
    pub fn jump_to(&mut self, reg: u8) {
        self.put(&[0x40 | reg >> 3, 0xff, 0xe0 | reg & 7]);
    }
    /// `mov [base], reg`, 64 bits; `base` is one of the first eight.
    pub fn poke(&mut self, base: u8, reg: u8) {
        self.put(&[
            0x48 | (reg >> 3) << 2,
            0x89,
            0x40 | (reg & 7) << 3 | base,
            0,
        ]);
    }
    /// `mov rcx, [rsp]`
    pub fn return_address(&mut self) {
        self.put(&[0x48, 0x8b, 0x0c, 0x24]);
    }
    /// `mov [base + disp], reg`, of 4 bytes, or of 8 if `wide`; `base` is one of the first eight, but not rsp.
    pub fn poke_at(&mut self, base: u8, disp: i32, reg: u8, wide: bool) {
        self.put(&[
            0x40 | u8::from(wide) << 3 | (reg >> 3) << 2,
            0x89,
            0x80 | (reg & 7) << 3 | base,
        ]);
        self.put(&disp.to_le_bytes());
    }
    /// `mov qword [base], value`, sign-extended.
    pub fn poke_constant(&mut self, base: u8, value: i32) {
        self.put(&[0x48, 0xc7, 0x40 | base, 0]);
        self.put(&value.to_le_bytes());
    }
    /// `mov reg, [base + disp]` of so many bytes, zero-extended; `base` is one of the first eight.
    pub fn peek(&mut self, reg: u8, base: u8, disp: u8, bytes: u32) {
        let wide = if bytes < 8 { 0x40 } else { 0x48 };
        self.put(&[wide | (reg >> 3) << 2]);
        self.put(match bytes {
            1 => &[0x0f, 0xb6],
            2 => &[0x0f, 0xb7],
            _ => &[0x8b],
        });
        self.put(&[0x40 | (reg & 7) << 3 | base, disp]);
    }
    /// `rcx -= other`
    pub fn subtract_from_rcx(&mut self, other: u8) {
        self.not_rcx();
        self.put(&[
            0x48 | (other >> 3) << 1,
            0x8d,
            0x4c,
            (other & 7) << 3 | RCX,
            0,
        ]);
        self.not_rcx();
    }
    /// `rcx = from + value - rcx`, of so many bytes, zero-extended. Nothing that can be interrupted shows whether it is 0 before it
    /// is that.
    pub fn difference(&mut self, from: Option<u8>, value: i32, bytes: u32) {
        self.not_rcx();
        self.lea_rcx(from, value.wrapping_add(1), bytes);
    }
    /// `rcx -= a`, of 4 or 8 bytes, by its last instruction; changes `a`, which is one of the first eight.
    pub fn rcx_less(&mut self, a: u8, bytes: u32) {
        self.put(&[0x48, 0xf7, 0xd0 | a]);
        self.lea_rcx(Some(a), 1, bytes);
    }
    /// `lea rcx, [rcx + base + disp]`, of so many bytes.
    fn lea_rcx(&mut self, base: Option<u8>, disp: i32, bytes: u32) {
        let wide = u8::from(bytes == 8) << 3;
        match base {
            Some(base) => self.put(&[0x40 | wide | base >> 3, 0x8d, 0x8c, RCX << 3 | base & 7]),
            None => self.put(&[0x40 | wide, 0x8d, 0x89]),
        }
        self.put(&disp.to_le_bytes());
        match bytes {
            1 => self.ecx_from_cl(),
            2 => self.put(&[0x0f, 0xb7, 0xc9]),
            _ => {}
        }
    }
    pub fn not_rcx(&mut self) {
        self.not(RCX);
    }
    /// `not reg`
    pub fn not(&mut self, reg: u8) {
        self.put(&[0x48 | reg >> 3, 0xf7, 0xd0 | reg & 7]);
    }
    /// `to = index - to + disp`
    pub fn less_itself(&mut self, to: u8, index: u8, disp: i32) {
        self.not(to);
        self.lea_of(to, (to, index, 1), disp + 1);
    }
    /// `rdfsbase rcx`
    pub fn fs_base(&mut self) {
        self.put(&[0xf3, 0x48, 0x0f, 0xae, 0xc1]);
    }
    /// `mov reg, imm64`
    pub fn constant(&mut self, reg: u8, value: u64) {
        self.put(&[0x48 | reg >> 3, 0xb8 | reg & 7]);
        self.put(&value.to_le_bytes());
    }
    /// `mov ecx, imm32`
    pub fn ecx(&mut self, value: u32) {
        self.small(RCX, value);
    }
    /// `mov reg, imm32`, zero-extended; `reg` is one of the first eight.
    pub fn small(&mut self, reg: u8, value: u32) {
        self.put(&[0xb8 | reg]);
        self.put(&value.to_le_bytes());
    }
    /// `shrx rcx, from, rcx`
    pub fn shift(&mut self, from: u8) {
        let b = if from < 8 { 0x20 } else { 0 };
        self.put(&[0xc4, 0xc2 | b, 0xf3, 0xf7, 0xc8 | from & 7]);
    }
    /// `shrx to, from, count` (or `shlx`), 64 bits.
    pub fn shift_by(&mut self, left: bool, to: u8, from: u8, count: u8) {
        self.put(&[
            0xc4,
            0x42 | u8::from(to < 8) << 7 | u8::from(from < 8) << 5,
            0x80 | (!count & 15) << 3 | if left { 1 } else { 3 },
            0xf7,
            0xc0 | (to & 7) << 3 | from & 7,
        ]);
    }
    /// `pdep to, from, mask`: the lowest bits of `from` go to where `mask` has ones.
    pub fn deposit(&mut self, to: u8, from: u8, mask: u8) {
        self.bits(3, to, from, mask);
    }
    /// `pext to, from, mask`: the bits of `from` where `mask` has ones become the lowest.
    pub fn extract(&mut self, to: u8, from: u8, mask: u8) {
        self.bits(2, to, from, mask);
    }
    fn bits(&mut self, prefix: u8, to: u8, from: u8, mask: u8) {
        self.put(&[
            0xc4,
            0x42 | u8::from(to < 8) << 7 | u8::from(mask < 8) << 5,
            0x80 | (!from & 15) << 3 | prefix,
            0xf5,
            0xc0 | (to & 7) << 3 | mask & 7,
        ]);
    }
    /// `lea to, [to + index*scale]`
    pub fn add_scaled(&mut self, to: u8, index: u8, scale: u8) {
        self.lea_of(to, (to, index, scale), 0);
    }
    fn lea_of(&mut self, to: u8, (base, index, scale): (u8, u8, u8), disp: i32) {
        let op = MemOp {
            base,
            index,
            scale,
            segment: 0,
            disp: disp.into(),
            size: 0,
            kind: ulpf_lib::AccessKind::Read,
        };
        self.address(to, &op);
    }
    /// `rorx rcx, from, n`
    pub fn rotate(&mut self, from: u8, n: u8) {
        let b = if from < 8 { 0x20 } else { 0 };
        self.put(&[0xc4, 0xc3 | b, 0xfb, 0xf0, 0xc8 | from & 7, n]);
    }
    /// `mov r11d, imm32`
    pub fn r11(&mut self, value: u32) {
        self.put(&[0x41, 0xbb]);
        self.put(&value.to_le_bytes());
    }
    /// `mov r11, [base + r11]`
    pub fn r11_indexed(&mut self, base: u8) {
        self.put(&[0x4e | base >> 3, 0x8b, 0x5c, 0x18 | base & 7, 0]);
    }
    /// `OP rcx, [base + rcx*scale + disp]`; `op` is the opcode with its 0F, `wide` for 64 bits.
    pub fn indexed(&mut self, op: &[u8], wide: bool, base: u8, scale: u8, disp: i32) {
        let rex = u8::from(wide) << 3 | base >> 3;
        if rex != 0 {
            self.put(&[0x40 | rex]);
        }
        self.put(op);
        // (rbp and r13 as a base always have a displacement.)
        let none = disp == 0 && base & 7 != 5;
        self.put(&[
            if none { 0 } else { 0x80 } | RCX << 3 | 4,
            (scale.trailing_zeros() as u8) << 6 | RCX << 3 | base & 7,
        ]);
        if !none {
            self.put(&disp.to_le_bytes());
        }
    }
    /// `lea to, [base + disp]`
    pub fn lea(&mut self, to: u8, base: u8, disp: i32) {
        self.lea_of(to, (base, NO_REG, 1), disp);
    }
    /// `lea to, [to + rcx]`
    pub fn add_rcx(&mut self, to: u8) {
        self.add_scaled_rcx(to, 1);
    }
    /// `lea to, [to + rcx*scale]`
    pub fn add_scaled_rcx(&mut self, to: u8, scale: u8) {
        let disp: &[u8] = if to & 7 == 5 { &[0] } else { &[] };
        self.put(&[
            0x48 | (to >> 3) << 2 | to >> 3,
            0x8d,
            (disp.len() as u8) << 6 | 4 | (to & 7) << 3,
            (scale.trailing_zeros() as u8) << 6 | RCX << 3 | to & 7,
        ]);
        self.put(disp);
    }
    /// The effective address of an operand, without its segment. `false`: it cannot be said.
    pub fn address(&mut self, to: u8, op: &MemOp) -> bool {
        let Ok(disp) = i32::try_from(op.disp) else {
            if op.base == NO_REG && op.index == NO_REG {
                self.constant(to, op.disp as u64);
                return true;
            }
            return false;
        };
        let bit = |r: u8| if r == NO_REG { 0 } else { r >> 3 & 1 };
        self.put(&[
            0x48 | (to >> 3) << 2 | bit(op.index) << 1 | bit(op.base),
            0x8d,
        ]);
        let index = if op.index == NO_REG { 4 } else { op.index & 7 };
        let short = i8::try_from(disp).ok().filter(|_| op.base != NO_REG);
        let (mode, base) = match op.base {
            NO_REG => (0, 5),
            b if short.is_some() => (0x40, b & 7),
            b => (0x80, b & 7),
        };
        self.put(&[
            mode | (to & 7) << 3 | 4,
            (op.scale.max(1).trailing_zeros() as u8) << 6 | index << 3 | base,
        ]);
        match short {
            Some(disp) => self.put(&disp.to_le_bytes()),
            None => self.put(&disp.to_le_bytes()),
        }
        true
    }
    /// `shr reg, n`, which changes flags; `reg` is one of the first eight.
    pub fn shift_right(&mut self, reg: u8, n: u8) {
        self.put(&[0x48, 0xc1, 0xe8 | reg, n]);
    }
    /// `shl reg, n`, which changes flags; `reg` is one of the first eight.
    pub fn shift_left(&mut self, reg: u8, n: u8) {
        self.put(&[0x48, 0xc1, 0xe0 | reg, n]);
    }
    /// `test reg, reg`, of 32 bits, which changes flags.
    pub fn test(&mut self, reg: u8) {
        let high = reg >> 3;
        let both = (reg & 7) << 3 | reg & 7;
        self.put(&[0x40 | high << 2 | high, 0x85, 0xc0 | both]);
    }
    /// `add reg, [rip + …]`, which changes flags. The place of its constant is to be aimed at.
    pub fn add_constant(&mut self, reg: u8) -> usize {
        self.with_constant(0x03, reg)
    }
    /// `sub reg, [rip + …]`, likewise.
    pub fn subtract_constant(&mut self, reg: u8) -> usize {
        self.with_constant(0x2b, reg)
    }
    /// `mov reg, [rip + …]`, likewise, but it changes no flags.
    pub fn load_constant(&mut self, reg: u8) -> usize {
        self.with_constant(0x8b, reg)
    }
    fn with_constant(&mut self, opcode: u8, reg: u8) -> usize {
        self.put(&[
            0x48 | (reg >> 3) << 2,
            opcode,
            (reg & 7) << 3 | 5,
            0,
            0,
            0,
            0,
        ]);
        self.here()
    }
    /// `mov index, [base + index*8]`; `base` is one of the first eight, but not rsp.
    pub fn load_of_table(&mut self, index: u8, base: u8) {
        let high = index >> 3;
        self.put(&[
            0x48 | high << 2 | high << 1,
            0x8b,
            0x44 | (index & 7) << 3,
            0xc0 | (index & 7) << 3 | base,
            0,
        ]);
    }
    /// `cmp [base], 0`, of 1, 2 or 4 bytes, which changes flags; `base` is one of the first eight, but not rsp.
    pub fn compare_with_zero(&mut self, base: u8, bytes: u8) {
        self.put(match bytes {
            1 => &[0x80],
            2 => &[0x66, 0x83],
            _ => &[0x83],
        });
        self.put(&[0x78 | base, 0, 0]);
    }
    /// `jcc rel32`, to be aimed later.
    pub fn jump_if(&mut self, condition: u8) -> usize {
        self.put(&[0x0f, 0x80 | condition, 0, 0, 0, 0]);
        self.here()
    }
    /// A branch to be aimed later: `jrcxz` or `jmp rel32`.
    pub fn jrcxz(&mut self) -> usize {
        self.put(&[0xe3, 0]);
        self.here()
    }
    /// A branch to be aimed later, however far, which is taken unless rcx is 0.
    pub fn jump_unless_zero(&mut self) -> Option<usize> {
        let zero = self.jrcxz();
        let from = self.jmp();
        self.aim_short(zero)?;
        Some(from)
    }
    pub fn aim_short(&mut self, from: usize) -> Option<()> {
        let distance = i8::try_from(self.here() - from).ok()?;
        *self.bytes.get_mut(from - 1)? = distance as u8;
        Some(())
    }
    /// rcx, which has so many bits at most, becomes 0 unless it is 0: so [`Asm::jrcxz`] is not taken where it was 0.
    pub fn zero_unless_zero(&mut self, bits: u32) {
        match bits {
            0..=8 => self.put(&[0x8d, 0x49, 0xff, 0x0f, 0xb6, 0xcd]),
            9..=16 => {
                self.put(&[0x8d, 0x49, 0xff, 0x0f, 0xc9]);
                self.ecx_from_cl();
            }
            _ => {
                self.put(&[0x48, 0x8d, 0x49, 0xff, 0x48, 0x0f, 0xc9]);
                self.ecx_from_cl();
            }
        }
    }
    /// Makes a `nop` with an operand of the `jmp rel32` that follows, so that the straight path steps over that jump without
    /// a branch. (Its opcode is the operand's SIB byte, its distance the displacement.)
    pub fn begin_nop(&mut self) {
        self.put(&[0x0f, 0x1f, 0x84]);
    }
    /// `jmp rel8`
    pub fn jmp_short(&mut self) -> usize {
        self.put(&[0xeb, 0]);
        self.here()
    }
    pub fn jmp(&mut self) -> usize {
        self.put(&[0xe9, 0, 0, 0, 0]);
        self.here()
    }
    pub fn aim(&mut self, from: usize, to: usize) -> Option<()> {
        let distance = (to as i64 - from as i64) as i32;
        self.bytes
            .get_mut(from - 4..from)?
            .copy_from_slice(&distance.to_le_bytes());
        Some(())
    }
}

/// `to - from` as a jump's displacement.
pub fn relative(from: u64, to: u64) -> Option<[u8; 4]> {
    i32::try_from(to.wrapping_sub(from) as i64)
        .ok()
        .map(i32::to_le_bytes)
}
