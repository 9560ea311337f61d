//! Short accesses close to each other: one jump of a patch covers several of them, others jump to where its
//! middle would be, and behind some stands what cannot move, so that what is before them does.

use super::Gen;
use crate::asm::*;

impl Gen<'_> {
    pub fn close(&mut self) {
        for reg in [RBX, RSI, RDI] {
            let at = self.target(16, 1);
            self.asm.mov(reg, at);
        }
        let mut top = self.target(if self.windows.is_some() { 128 } else { 8 }, 8) + 64;
        if self.windows.is_none()
            && let Some((_, at)) = crate::program::arena_of(top)
            && at < 4096
        {
            top += 4096;
        }
        self.asm.mov(RSP, top);
        for _ in 0..1 + self.rng.below(4) {
            let access = self.short();
            match self.rng.below(6) {
                0 | 1 => {
                    // jb, je, js or jo over it, half of the time taken or so
                    let value = self.rng.next() as u8;
                    self.asm.define_flags(value);
                    let condition = [0x72, 0x74, 0x78, 0x70][self.rng.below(4) as usize];
                    self.asm.put(&[condition, access.len() as u8]);
                    self.asm.put(&access);
                }
                2 => {
                    // lea r10, next; …; call r10; next: pop rcx
                    let before = self.short();
                    let len = (before.len() + access.len() + 3) as u8;
                    self.asm.put(&[0x4c, 0x8d, 0x15, len, 0, 0, 0]);
                    self.asm.put(&before);
                    self.asm.put(&access);
                    self.asm.put(&[0x41, 0xff, 0xd2, 0x59]);
                }
                3 => {
                    self.asm.put(&access);
                    self.asm.put(&[0xff, 0xc0]); // inc eax
                }
                _ => self.asm.put(&access),
            }
        }
    }

    /// An access of two to four bytes through rbx, rsi or rdi, with rax, rcx or rdx.
    fn short(&mut self) -> Vec<u8> {
        let reg = self.rng.below(3) as u8;
        let (code, reg): (&[u8], u8) = match self.rng.below(9) {
            0 => (&[0x88], reg),
            1 => (&[0x89], reg),
            2 => (&[0x48, 0x89], reg),
            3 => (&[0x66, 0x89], reg),
            4 => (&[0x01], reg),
            5 => (&[0xfe], 0),
            6 => (&[0xff], 0),
            7 => (&[0x8a], reg),
            _ => (&[0x8b], reg),
        };
        let mut bytes = code.to_vec();
        let base = [RBX, RSI, RDI][self.rng.below(3) as usize];
        if self.rng.chance(2) {
            bytes.push(reg << 3 | base);
        } else {
            bytes.extend([0x40 | reg << 3 | base, self.rng.below(9) as u8]);
        }
        bytes
    }
}
