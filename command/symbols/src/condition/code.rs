//! GDB agent bytecode, piece by piece.

use ulpf_engine::agent::op;

/// Bytecode under construction. Comments list the evaluator's stack from the bottom: the last operand is on top.
#[derive(Default)]
pub struct Code {
    bytes: Vec<u8>,
}

impl Code {
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub fn emit(&mut self, code: &[u8]) {
        self.bytes.extend_from_slice(code);
    }

    pub fn constant(&mut self, value: u64) {
        match value {
            0..=0xff => self.emit(&[op::CONST8, value as u8]),
            0x100..=0xffff => {
                self.emit(&[op::CONST16]);
                self.emit(&(value as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                self.emit(&[op::CONST32]);
                self.emit(&(value as u32).to_be_bytes());
            }
            _ => {
                self.emit(&[op::CONST64]);
                self.emit(&value.to_be_bytes());
            }
        }
    }

    pub fn hit(&mut self, variable: u16) {
        self.emit(&[op::GETV]);
        self.emit(&variable.to_be_bytes());
    }

    /// Emits a jump. Returns the position of its target, which `land` fills in.
    pub fn jump(&mut self, how: u8) -> usize {
        self.emit(&[how, 0, 0]);
        self.bytes.len() - 2
    }

    pub fn land(&mut self, jump: usize) {
        let here = (self.bytes.len().min(u16::MAX.into()) as u16).to_be_bytes();
        self.bytes[jump..jump + 2].copy_from_slice(&here);
    }

    pub fn extend(&mut self, bits: u8, signed: bool) {
        if bits < 64 {
            self.emit(&[if signed { op::EXT } else { op::ZERO_EXT }, bits]);
        }
    }

    /// Brings both operands to their common type.
    pub fn convert(&mut self, left: (u8, bool), right: (u8, bool)) -> (u8, bool) {
        let size = left.0.max(right.0);
        let signed = [left, right].iter().all(|t| t.1 || t.0 < size);
        // Only a conversion from int to unsigned changes the 64 bits.
        if size == 4 && !signed {
            if right.1 {
                self.extend(32, false);
            }
            if left.1 {
                self.emit(&[op::SWAP, op::ZERO_EXT, 32, op::SWAP]);
            }
        }
        (size, signed)
    }

    /// Truncates the result of an operation to its type.
    pub fn narrow(&mut self, (size, signed): (u8, bool)) {
        self.extend(size * 8, signed);
    }
}
