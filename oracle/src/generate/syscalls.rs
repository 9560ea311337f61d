//! System calls on guarded buffers, with known data.

use super::Gen;
use crate::asm::*;
use crate::kernel::{FILE, PIPE_READ, PIPE_WRITE};
use crate::program::{ARENA_LEN, CONTROL, arena_of};

/// Where vectors are made.
const VECTORS: u64 = CONTROL + 256;

impl Gen<'_> {
    fn buffer(&mut self) -> (u64, u64) {
        let len = match self.rng.below(8) {
            0 => 0,
            1..=3 => 1 + self.rng.below(16),
            4..=5 => 1 + self.rng.below(300),
            6 => 1 + self.rng.below(5000),
            _ => 4096,
        };
        let at = self.target(len.min(64), 1);
        let (_, offset) = arena_of(at).unwrap_or((0, 0));
        (at, len.min((ARENA_LEN - offset) as u64))
    }

    fn vectors(&mut self) -> u64 {
        let count = 1 + self.rng.below(5);
        for n in 0..count {
            let (at, len) = self.buffer();
            self.asm.store_word(VECTORS + n * 16, at as i32);
            self.asm.store_word(VECTORS + n * 16 + 8, len as i32);
        }
        count
    }

    pub fn system_call(&mut self) {
        let offset = self.rng.below(ARENA_LEN as u64 + 100);
        match self.rng.below(7) {
            0 | 1 => {
                let (at, len) = self.buffer();
                self.asm.syscall(17, &[FILE, at, len, offset]);
            }
            2 => {
                let (at, len) = self.buffer();
                self.asm.syscall(18, &[FILE, at, len, offset]);
            }
            3 => {
                let count = self.vectors();
                self.asm.syscall(295, &[FILE, VECTORS, count, offset, 0]);
            }
            4 => {
                let count = self.vectors();
                self.asm.syscall(296, &[FILE, VECTORS, count, offset, 0]);
            }
            5 => {
                let (at, len) = self.buffer();
                self.asm.syscall(1, &[PIPE_WRITE, at, len.min(300)]);
                let (to, room) = self.buffer();
                self.asm.syscall(0, &[PIPE_READ, to, room]);
                self.drain();
            }
            _ => {
                let (at, len) = self.buffer();
                self.asm.syscall(1, &[PIPE_WRITE, at, len.min(300)]);
                let count = self.vectors();
                self.asm.syscall(19, &[PIPE_READ, VECTORS, count]);
                self.drain();
            }
        }
    }

    /// Leaves the pipe empty.
    fn drain(&mut self) {
        self.asm.syscall(0, &[PIPE_READ, CONTROL + 0x400, 0x800]);
        self.asm.mov(RAX, 0);
    }
}
