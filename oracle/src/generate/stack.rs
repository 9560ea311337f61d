//! The stack in guarded memory: pushes and pops, calls and returns, frames.

use super::Gen;
use crate::asm::*;

impl Gen<'_> {
    pub fn stack(&mut self) {
        let align = if self.rng.chance(4) { 1 } else { 8 };
        let mut top = match self.windows {
            Some(_) => self.target(128, align) + 64,
            None => self.target(8, align),
        };
        // Room for what is pushed and popped.
        if let Some((_, at)) = crate::program::arena_of(top)
            && at < 4096
        {
            top += 4096;
        }
        self.asm.mov(RSP, top);
        match self.rng.below(5) {
            0 => self.pushes(),
            1 => self.calls(),
            2 => self.frames(top),
            3 => self.flags(),
            _ => self.through_memory(top),
        }
    }

    fn pushes(&mut self) {
        for _ in 0..1 + self.rng.below(6) {
            let reg = self.rng.below(16) as u8;
            match self.rng.below(6) {
                0 => self.asm.put(&[0x66, 0x50]),
                1 => {
                    let v = self.rng.next() as u32;
                    self.asm.put(&[0x68]);
                    self.asm.put(&v.to_le_bytes());
                }
                2 => {
                    let v = self.rng.next() as u8;
                    self.asm.put(&[0x6a, v]);
                }
                3 if reg != RSP => self.asm.put(&[0x40 | reg >> 3, 0x58 | reg & 7]),
                _ => self.asm.put(&[0x40 | reg >> 3, 0x50 | reg & 7]),
            }
        }
    }

    /// `call` and `ret`, direct, by register and by memory, nested.
    fn calls(&mut self) {
        // call f ; jmp over ; f: [call g ; ret [n] ; g:] push rax ; pop rbx ; ret [n] ; over:
        let nested = self.rng.chance(2);
        let drop = if !nested && self.rng.chance(2) {
            Some(self.rng.below(4) as u16 * 8)
        } else {
            None
        };
        let ret = |bytes: &mut Vec<u8>| match drop {
            Some(n) => {
                bytes.push(0xc2);
                bytes.extend(n.to_le_bytes());
            }
            None => bytes.push(0xc3),
        };
        let mut body = Vec::new();
        if nested {
            let mut tail = Vec::new();
            ret(&mut tail);
            body.push(0xe8);
            body.extend((tail.len() as u32).to_le_bytes());
            body.extend(tail);
        }
        body.extend([0x50, 0x5b]);
        ret(&mut body);
        match self.rng.below(3) {
            0 => {
                self.asm.put(&[0xe8]);
                self.asm.put(&5u32.to_le_bytes());
            }
            1 => {
                // lea r10, [rip + 8] ; call r10
                self.asm
                    .put(&[0x4c, 0x8d, 0x15, 8, 0, 0, 0, 0x41, 0xff, 0xd2]);
            }
            _ => {
                // The pointer lies in guarded memory: mov [slot], imm32 ; call [slot]
                let slot = self.target(8, 8);
                let f = self.asm.pc() + 12 + 7 + 5;
                self.asm.store_word(slot, f as i32);
                self.asm.put(&[0xff, 0x14, 0x25]);
                self.asm.put(&(slot as u32).to_le_bytes());
            }
        }
        self.asm.put(&[0xe9]);
        self.asm.put(&(body.len() as u32).to_le_bytes());
        self.asm.put(&body);
        if self.rng.chance(3) {
            // jmp [slot] to the next instruction
            let slot = self.target(8, 8);
            let next = self.asm.pc() + 12 + 7;
            self.asm.store_word(slot, next as i32);
            self.asm.put(&[0xff, 0x24, 0x25]);
            self.asm.put(&(slot as u32).to_le_bytes());
        }
    }

    fn frames(&mut self, top: u64) {
        let size = self.rng.below(256) as u8;
        let mut level = if self.rng.chance(2) {
            0
        } else {
            self.rng.below(32) as u8
        };
        let target = self.target(8, 8);
        let frame = if arena_low(target) {
            target + 512
        } else {
            target
        };
        // The processor begins again behind a page that was not there yet, which shows when it has
        // already pushed over what it copies.
        let slots = 8 * u64::from(level);
        if frame > top.saturating_sub(slots + 8) && frame.saturating_sub(slots) < top {
            level &= 1;
        }
        self.asm.mov(RBP, frame);
        if self.rng.chance(6) {
            self.asm.put(&[0x66]);
            self.asm.put(&[0xc8, size, 0, level]);
            // A 16-bit frame pointer leads nowhere.
            self.asm.mov(RBP, frame);
        } else {
            self.asm.put(&[0xc8, size, 0, level]);
        }
        self.asm.put(&[0x50]);
        self.asm.put(&[0xc9]);
    }

    fn flags(&mut self) {
        let al = self.rng.next() as u8;
        self.asm.define_flags(al);
        match self.rng.below(3) {
            0 => self.asm.put(&[0x9c, 0x9d]),
            1 => self.asm.put(&[0x66, 0x9c, 0x66, 0x9d]),
            _ => {
                // push imm ; popf
                let v = 0x202 | (self.rng.next() & 0x8d5) as u32;
                self.asm.put(&[0x68]);
                self.asm.put(&v.to_le_bytes());
                self.asm.put(&[0x9d, 0x9c]);
            }
        }
    }

    /// `push [m]`, `pop [m]`, also relative to the stack pointer itself.
    fn through_memory(&mut self, top: u64) {
        for _ in 0..1 + self.rng.below(3) {
            let m = self.target(8, 1);
            let (push, near) = (self.rng.chance(2), self.rng.chance(2));
            let disp = self.rng.below(64) as u8;
            match (push, near) {
                (true, false) => {
                    self.asm.put(&[0xff, 0x34, 0x25]);
                    self.asm.put(&(m as u32).to_le_bytes());
                }
                (false, false) => {
                    self.asm.put(&[0x8f, 0x04, 0x25]);
                    self.asm.put(&(m as u32).to_le_bytes());
                }
                (true, true) => self.asm.put(&[0xff, 0x74, 0x24, disp.wrapping_sub(32)]),
                (false, true) => self.asm.put(&[0x8f, 0x44, 0x24, disp.wrapping_sub(32)]),
            }
        }
        self.asm.mov(RSP, top);
        // xlat, with its table here.
        let table = self.target(256, 1);
        self.asm
            .mov(RBX, if arena_low(table) { table } else { table - 256 });
        self.asm.put(&[0xd7]);
    }
}

fn arena_low(at: u64) -> bool {
    crate::program::arena_of(at).is_none_or(|(_, offset)| offset < 4096)
}
