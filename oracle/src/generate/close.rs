//! Short accesses close to each other, and loops of them. One jump of a patch covers several of them; branches
//! lead to where its middle would be. Some are followed by code that cannot move, so that the code before them
//! must.

use super::Gen;
use crate::asm::*;
use crate::program::ARENAS;

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

    /// A loop that fits into a patch's body: its pointers go on over pages with guards and without, and some
    /// enter it in the middle.
    pub fn small_loop(&mut self) {
        // Often enough for a patch to go away meanwhile.
        let (turns, step) = match self.rng.below(3) {
            0 => (1 + self.rng.below(20), 1 + self.rng.below(127)),
            _ => (100 + self.rng.below(100), 1 + self.rng.below(20)),
        };
        let span = turns * step + 16;
        for reg in [RBX, RSI, RDI] {
            if self.windows.is_none() && self.rng.chance(2) {
                self.wandering(reg, 1, 0);
            } else {
                let at = self.target(span, 1);
                self.asm.mov(reg, at.min(self.last(at, span)));
            }
        }
        self.asm.mov(R8, turns);
        let mut body = Vec::new();
        let first = self.short();
        body.extend(&first);
        for _ in 0..self.rng.below(4) {
            let access = self.short();
            match self.rng.below(4) {
                // jb or jo over it
                0 => body.extend([[0x72, 0x70][self.rng.below(2) as usize], access.len() as u8]),
                1 => body.extend([0xff, 0xc0]), // inc eax
                _ => {}
            }
            body.extend(access);
        }
        let moving = [RBX, RSI, RDI][self.rng.below(3) as usize];
        body.extend([0x48, 0x83, 0xc0 | moving, step as u8]); // add
        body.extend([0x41, 0xff, 0xc8]); // dec r8d
        if self.rng.chance(4) {
            self.asm.put(&[0xeb, first.len() as u8]);
        }
        let back = -(body.len() as i32);
        if self.rng.chance(2) {
            body.extend([0x75, (back - 2) as u8]);
        } else {
            body.extend([0x0f, 0x85]);
            body.extend((back - 6).to_le_bytes());
        }
        self.asm.put(&body);
    }

    /// The last address in the arena of `at` for `len` bytes.
    fn last(&self, at: u64, len: u64) -> u64 {
        match crate::program::arena_of(at) {
            Some((n, _)) if self.windows.is_none() => {
                ARENAS[n] + crate::program::ARENA_LEN as u64 - len
            }
            _ => at,
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
