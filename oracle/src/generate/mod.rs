//! Makes programs out of seeds: epochs of random items in a loop, watches that are changed between
//! the epochs.

mod instruction;
mod stack;
mod strings;
mod syscalls;

use crate::asm::*;
use crate::corpus::{self, Rng};
use crate::kernel::{FILE, PIPE_READ, PIPE_WRITE};
use crate::program::*;
use iced_x86::Code;
use ulpf_lib::WatchKind;

pub use instruction::{Codes, codes};

/// A generated program in parts, so that it can be made smaller.
#[derive(Clone, Debug)]
pub struct Plan {
    pub judge: Judge,
    pub seed: u64,
    pub epochs: Vec<Epoch>,
}

#[derive(Clone, Debug)]
pub struct Epoch {
    pub watches: Vec<Watch>,
    pub rounds: u32,
    /// Seeds of the items.
    pub items: Vec<u64>,
}

/// Where the next random address of a loop comes from.
const LCG: u64 = CONTROL + 8;
const COUNTER: u64 = CONTROL;

pub struct Gen<'a> {
    pub asm: Asm,
    pub rng: Rng,
    pub judge: Judge,
    pub codes: &'a Codes,
    pub watches: Vec<Watch>,
    /// Segment bases.
    pub fs: u64,
    pub gs: u64,
}

fn mix(a: u64, b: u64) -> u64 {
    let mut z = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ z >> 31) | 1
}

impl Plan {
    pub fn new(judge: Judge, seed: u64) -> Plan {
        let mut rng = Rng(mix(seed, 0x7e57));
        let epochs = (0..2 + rng.below(4))
            .map(|e| {
                let watches = watches(&mut rng);
                let items = 4 + rng.below(40);
                let rounds = match judge {
                    Judge::Unicorn => 1 + rng.below(1 + 6000 / items),
                    Judge::Step => 1 + rng.below(1 + 600 / items),
                };
                Epoch {
                    watches,
                    rounds: rounds as u32,
                    items: (0..items)
                        .map(|n| mix(seed, e << 32 | n << 8 | 1))
                        .collect(),
                }
            })
            .collect();
        Plan {
            judge,
            seed,
            epochs,
        }
    }

    pub fn build(&self, codes: &Codes) -> Program {
        let mut g = Gen {
            asm: Asm::default(),
            rng: Rng(mix(self.seed, 1)),
            judge: self.judge,
            codes,
            watches: vec![],
            fs: 0,
            gs: 0,
        };
        g.prologue();
        for e in &self.epochs {
            g.asm.marker();
            g.watches = e.watches.clone();
            if e.items.is_empty() {
                continue;
            }
            g.asm.store_word(COUNTER, e.rounds as i32);
            let top = g.asm.pc();
            for seed in &e.items {
                g.rng = Rng(*seed);
                g.item();
            }
            // dec qword [counter] ; jnz top
            g.asm.put(&[0x48, 0xff, 0x0c, 0x25]);
            g.asm.put(&(COUNTER as u32).to_le_bytes());
            let back = top.wrapping_sub(g.asm.pc() + 6) as i32;
            g.asm.put(&[0x0f, 0x85]);
            g.asm.put(&back.to_le_bytes());
        }
        g.asm.marker();
        g.asm.syscall(231, &[0]);
        Program {
            judge: self.judge,
            memory_seed: self.seed,
            code: g.asm.code,
            constants: g.asm.constants,
            epochs: self.epochs.iter().map(|e| e.watches.clone()).collect(),
        }
    }
}

/// A watch set: a few neighbourhoods, so that watches overlap and share pages.
fn watches(rng: &mut Rng) -> Vec<Watch> {
    let mut out: Vec<Watch> = Vec::new();
    for _ in 0..1 + rng.below(14) {
        let len = match rng.below(12) {
            0..=3 => 1 << rng.below(4),
            4 => 3,
            5 => 1 + rng.below(32),
            6 => 64,
            7 => 1 + rng.below(600),
            8 => 4096,
            9 => 1 + rng.below(9000),
            _ => 8,
        };
        let room = ARENA_LEN as u64 - 2 * 4096 - len;
        let at = match (rng.below(4), out.last()) {
            (0, Some(near)) => {
                let (_, at) = arena_of(near.addr).unwrap_or((0, 4096));
                (at as u64 + rng.below(40)).saturating_sub(4096 + 20)
            }
            // Across or at a page edge.
            (1, _) => (4096 * (1 + rng.below(3))).saturating_sub(rng.below(len + 8)),
            _ => rng.below(room),
        };
        let arena = ARENAS[rng.below(3) as usize];
        let w = Watch {
            addr: arena + 4096 + at.min(room),
            len,
            kind: [WatchKind::Write, WatchKind::Read, WatchKind::Access][rng.below(3) as usize],
        };
        if !out.contains(&w) {
            out.push(w);
        }
    }
    out
}

impl Gen<'_> {
    /// Maps and fills the arenas, makes descriptors, gives every register a value.
    fn prologue(&mut self) {
        const PRIVATE_FIXED: u64 = 0x32;
        const SHARED_FIXED: u64 = 0x31;
        let a = &mut self.asm;
        for (arena, flags) in [(1, PRIVATE_FIXED), (2, SHARED_FIXED)] {
            // r9 is the sixth argument.
            a.put(&[0x45, 0x31, 0xc9]);
            a.syscall(9, &[ARENAS[arena], ARENA_LEN as u64, 3, flags, u64::MAX]);
            a.mov(RSI, CONTENTS + (arena as u64 - 1) * ARENA_LEN as u64);
            a.mov(RDI, ARENAS[arena]);
            a.mov(RCX, ARENA_LEN as u64 / 8);
            a.put(&[0xfc, 0xf3, 0x48, 0xa5]);
        }
        // A memory file with known contents, at 100.
        let name = a.constant(b"data\0");
        a.syscall(319, &[name, 0]);
        a.put(&[0x48, 0x89, 0xc7]); // mov rdi, rax
        a.mov(RSI, FILE);
        a.mov(RAX, 33);
        a.put(&[0x0f, 0x05, 0x31, 0xc9, 0x45, 0x31, 0xdb]);
        a.syscall(18, &[FILE, ARENAS[0], ARENA_LEN as u64, 0]);
        // A pipe, at 101 and 102.
        let ends = CONTROL + 64;
        a.syscall(293, &[ends, 0o4000]);
        for (n, fd) in [(0, PIPE_READ), (4, PIPE_WRITE)] {
            // mov edi, [ends + n]
            a.put(&[0x8b, 0x3c, 0x25]);
            a.put(&((ends + n) as u32).to_le_bytes());
            a.mov(RSI, fd);
            a.mov(RAX, 33);
            a.put(&[0x0f, 0x05, 0x31, 0xc9, 0x45, 0x31, 0xdb]);
        }
        let (fs, gs) = (self.segment(), self.segment());
        (self.fs, self.gs) = (fs, gs);
        let a = &mut self.asm;
        a.syscall(158, &[0x1002, fs]);
        a.syscall(158, &[0x1001, gs]);
        let lcg = self.rng.next() as i32;
        self.asm.store_word(LCG, lcg);
        for reg in 0..16 {
            let value = self.rng.next();
            self.asm.mov(reg, value);
        }
        let at = {
            let bytes: Vec<u8> = (0..256).map(|_| self.rng.next() as u8).collect();
            self.asm.constant(&bytes)
        };
        for reg in 0..16u8 {
            // movups xmm, [at + 16 * reg]
            self.asm
                .put(&[0x40 | (reg >> 3) << 2, 0x0f, 0x10, 4 | (reg & 7) << 3, 0x25]);
            self.asm
                .put(&((at + u64::from(reg) * 16) as u32).to_le_bytes());
        }
        self.asm.put(&[0xdb, 0xe3]); // fninit
        self.asm.mov(RSP, ARENAS[0] + 3 * 4096);
        self.asm.define_flags(1);
    }

    fn segment(&mut self) -> u64 {
        match self.rng.below(3) {
            0 => ARENAS[self.rng.below(3) as usize] + self.rng.below(ARENA_LEN as u64),
            1 => 0x100,
            _ => 0,
        }
    }

    fn item(&mut self) {
        match self.rng.below(20) {
            0..=1 => self.string(),
            2..=3 => self.stack(),
            4 => self.system_call(),
            _ => self.random_instruction(),
        }
    }

    /// An address in an arena for `len` bytes: at the watches' edges, at page edges, anywhere.
    pub fn target(&mut self, len: u64, align: u64) -> u64 {
        let rng = &mut self.rng;
        let arena = ARENAS[rng.below(3) as usize];
        let at = match rng.below(8) {
            0..=3 if !self.watches.is_empty() => {
                let w = self.watches[rng.below(self.watches.len() as u64) as usize];
                let edge = if rng.chance(2) {
                    w.addr
                } else {
                    w.addr + w.len
                };
                (edge + rng.below(2 * len + 2)).wrapping_sub(len + 1)
            }
            4 => arena + 4096 * (2 + rng.below(3)) - rng.below(len + 1),
            5 if !self.watches.is_empty() => {
                let w = self.watches[rng.below(self.watches.len() as u64) as usize];
                w.addr + rng.below(w.len)
            }
            _ => arena + 4096 + rng.below(ARENA_LEN as u64 - 2 * 4096),
        };
        at & !(align - 1)
    }

    /// Makes `reg` hold an address within an arena that is another one in each round, less `minus`.
    /// All flags are defined afterwards.
    pub fn wandering(&mut self, reg: u8, align: u64, minus: u64) {
        let arena = ARENAS[self.rng.below(3) as usize] + 4096;
        let step = self.rng.next() as i32;
        let a = &mut self.asm;
        a.load(reg, LCG);
        // imul reg, reg, 0x5851f42d
        a.put(&[
            0x48 | (reg >> 3) << 2 | reg >> 3,
            0x69,
            0xc0 | (reg & 7) << 3 | reg & 7,
        ]);
        a.put(&0x5851_f42du32.to_le_bytes());
        a.add(reg, step);
        a.store(LCG, reg);
        // shr reg, 33
        a.put(&[0x48 | reg >> 3, 0xc1, 0xe8 | reg & 7, 33]);
        a.and(reg, 0x3fff & !(align as i32 - 1));
        a.add(reg, (arena.wrapping_sub(minus)) as i32);
    }
}

/// All codes, for those who pick.
pub fn all_codes() -> impl Iterator<Item = Code> {
    corpus::codes()
}
