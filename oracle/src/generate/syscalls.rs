//! System calls on guarded buffers, with known data.

use super::Gen;
use super::seccomp::DRAIN;
use crate::asm::*;
use crate::kernel::{FILE, PIPE_READ, PIPE_WRITE};
use crate::program::{ARENA_LEN, arena_of};

impl Gen<'_> {
    /// Where vectors are made.
    fn vectors_at(&self) -> u64 {
        self.asm.control + 256
    }

    fn buffer(&mut self) -> (u64, u64) {
        let len = match self.rng.below(8) {
            0 => 0,
            1..=3 => 1 + self.rng.below(16),
            4..=5 => 1 + self.rng.below(300),
            6 => 1 + self.rng.below(5000),
            _ => 4096,
        };
        if self.windows.is_some() {
            let len = len.min(600);
            return (self.target(len.max(1), 1), len);
        }
        let at = self.target(len.min(64), 1);
        let (_, offset) = arena_of(at).unwrap_or((0, 0));
        (at, len.min((ARENA_LEN - offset) as u64))
    }

    fn vectors(&mut self) -> u64 {
        let count = 1 + self.rng.below(5);
        for n in 0..count {
            let (at, len) = self.buffer();
            let vector = self.vectors_at() + n * 16;
            self.asm.store_word(vector, at as i32);
            self.asm.store_word(vector + 8, len as i32);
        }
        count
    }

    pub fn system_call(&mut self) {
        self.call();
        if self.more.seccomp {
            // Stores the result.
            let at = self.target(8, 1);
            self.asm.store(at, RAX);
        }
    }

    fn call(&mut self) {
        let offset = self.rng.below(ARENA_LEN as u64 + 100);
        let vectors = self.vectors_at();
        let [file, pipe_read, pipe_write] = [FILE, PIPE_READ, PIPE_WRITE].map(|fd| self.fd + fd);
        match self.rng.below(7) {
            0 | 1 => {
                let (at, len) = self.buffer();
                self.asm
                    .syscall(libc::SYS_pread64, &[file, at, len, offset]);
            }
            2 => {
                let (at, len) = self.buffer();
                self.asm
                    .syscall(libc::SYS_pwrite64, &[file, at, len, offset]);
            }
            3 => {
                let count = self.vectors();
                self.asm
                    .syscall(libc::SYS_preadv, &[file, vectors, count, offset, 0]);
            }
            4 => {
                let count = self.vectors();
                self.asm
                    .syscall(libc::SYS_pwritev, &[file, vectors, count, offset, 0]);
            }
            5 => {
                let (at, len) = self.buffer();
                self.asm
                    .syscall(libc::SYS_write, &[pipe_write, at, len.min(300)]);
                let (to, room) = self.buffer();
                self.asm.syscall(libc::SYS_read, &[pipe_read, to, room]);
                self.drain();
            }
            _ => {
                let (at, len) = self.buffer();
                self.asm
                    .syscall(libc::SYS_write, &[pipe_write, at, len.min(300)]);
                let count = self.vectors();
                self.asm
                    .syscall(libc::SYS_readv, &[pipe_read, vectors, count]);
                self.drain();
            }
        }
    }

    /// Leaves the pipe empty.
    fn drain(&mut self) {
        let (pipe, to) = (self.fd + PIPE_READ, self.asm.control + 0x400);
        self.asm.syscall(libc::SYS_read, &[pipe, to, DRAIN]);
        self.asm.mov(RAX, 0);
    }
}
