//! Code that the program writes itself: it copies one of two variants of some items to memory of its own, in some rounds
//! or in all, and jumps there. Slots of several threads, and of several items, share pages, and some items a slot.

use super::Gen;
use crate::asm::*;
use crate::program::{CONTROL_LEN, MADE, MADE_LEN};

/// Bytes of a slot, and how many threads have slots in turn.
const SLOT: u64 = 512;
const THREADS: u64 = 4;
/// A near jump.
const JUMP: usize = 5;

/// The program maps a file of this name: by it ulpf knows runtimes whose code it may patch.
const RUNTIME: &[u8] = b"/libguile-oracle\0";
const RUNTIME_AT: u64 = MADE - 0x10_0000;

impl Gen<'_> {
    /// Memory for code, and the runtime's file.
    pub fn memory_for_code(&mut self) {
        const PRIVATE_FIXED: u64 = 0x12;
        let a = &mut self.asm;
        a.put(&[0x45, 0x31, 0xc9]); // xor r9d, r9d
        a.syscall(
            libc::SYS_mmap,
            &[MADE, MADE_LEN as u64, 7, PRIVATE_FIXED | 0x20, u64::MAX],
        );
        let name = a.constant(RUNTIME);
        a.syscall(libc::SYS_memfd_create, &[name, 0]);
        a.put(&[0x49, 0x89, 0xc0]); // mov r8, rax
        a.syscall(libc::SYS_mmap, &[RUNTIME_AT, 4096, 1, PRIVATE_FIXED]);
    }

    /// Such code, and what writes it.
    pub fn made(&mut self) {
        let shared = self.slots > 0 && self.rng.chance(4);
        let slot = match shared {
            true => self.rng.below(self.slots),
            false => self.slots,
        };
        let at = MADE + (slot * THREADS + self.number) * SLOT;
        if at + SLOT > MADE + MADE_LEN as u64 {
            return self.plain_item();
        }
        let variants = [self.variant(at), self.variant(at)];
        let longest = variants.iter().map(Vec::len).max().unwrap_or(0);
        if longest + JUMP > SLOT as usize {
            return self.plain_item();
        }
        self.slots = self.slots.max(slot + 1);
        // An item that shares a slot finds another item's code there.
        let only_item = !shared && self.rng.chance(2);
        let mask = match only_item {
            true => [1, 3, 7][self.rng.below(3) as usize],
            false => 0,
        };
        if !only_item {
            self.shared_slots.insert(slot);
        }
        let mask = if self.shared_slots.contains(&slot) {
            0
        } else {
            mask
        };
        let counter = self.asm.control as u32;
        let test = |a: &mut Asm, bits: u32| {
            a.put(&[0xf7, 0x04, 0x25]);
            a.put(&counter.to_le_bytes());
            a.put(&bits.to_le_bytes());
        };
        let sources = variants.each_ref().map(|code| {
            let room = [&code[..], &[0; JUMP]].concat();
            self.asm.constant(&room)
        });
        let a = &mut self.asm;
        // cmp qword [counter], rounds ; je copy ; test dword [counter], mask ; jne run
        a.put(&[0x48, 0x81, 0x3c, 0x25]);
        a.put(&counter.to_le_bytes());
        a.put(&self.rounds.to_le_bytes());
        let copy = a.jump_over(&[0x0f, 0x84]);
        test(a, mask);
        let run = a.jump_over(&[0x0f, 0x85]);
        a.lands(copy);
        a.mov(RSI, sources[0]);
        test(a, mask + 1);
        let first = a.jump_over(&[0x0f, 0x84]);
        a.mov(RSI, sources[1]);
        a.lands(first);
        a.mov(RDI, at);
        let bytes = (longest + JUMP) as u64;
        match self.rng.chance(2) {
            // cld ; rep movsb
            true => {
                a.mov(RCX, bytes);
                a.put(&[0xfc, 0xf3, 0xa4]);
            }
            false => {
                a.mov(RCX, bytes.div_ceil(8));
                // mov rax, [rsi] ; mov [rdi], rax ; lea rsi, [rsi + 8] ; lea rdi, [rdi + 8] ; dec rcx ; jnz -19
                a.put(&[0x48, 0x8b, 0x06, 0x48, 0x89, 0x07]);
                a.put(&[0x48, 0x8d, 0x76, 0x08, 0x48, 0x8d, 0x7f, 0x08]);
                a.put(&[0x48, 0xff, 0xc9, 0x75, 0xed]);
            }
        }
        a.lands(run);
        a.put(&[0xe9]);
        let to = at.wrapping_sub(a.pc() + 4) as u32;
        a.put(&to.to_le_bytes());
        // Back from there.
        let back = a.pc();
        for (code, source) in variants.iter().zip(sources) {
            let from = at + (code.len() + JUMP) as u64;
            let place = (source - a.control) as usize - CONTROL_LEN + code.len();
            a.constants[place] = 0xe9;
            let far = back.wrapping_sub(from) as u32;
            a.constants[place + 1..place + JUMP].copy_from_slice(&far.to_le_bytes());
        }
        a.define_flags(1);
    }

    /// The code of some items, to run at `at`.
    fn variant(&mut self, at: u64) -> Vec<u8> {
        let code = std::mem::take(&mut self.asm.code);
        let base = std::mem::replace(&mut self.asm.base, at);
        // Whether a program uses gs, its own code says.
        let gs = std::mem::replace(&mut self.uses_gs, false);
        for _ in 0..1 + self.rng.below(3) {
            match self.rng.below(10) {
                0 => self.string(),
                1 => self.stack(),
                2..=4 => self.close(),
                5 => self.small_loop(),
                _ => self.random_instruction(),
            }
        }
        self.uses_gs = gs;
        self.asm.base = base;
        std::mem::replace(&mut self.asm.code, code)
    }
}
