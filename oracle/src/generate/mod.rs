//! Makes programs out of seeds: epochs of random items in a loop, watches that are changed between
//! the epochs.

mod children;
mod close;
mod instruction;
mod made;
mod masks;
mod seccomp;
mod stack;
mod strings;
mod syscalls;
mod threads;

use crate::asm::*;
use crate::corpus::{self, Rng};
use crate::kernel::{FILE, PIPE_READ, PIPE_WRITE};
use crate::program::*;
use iced_x86::Code;
use std::collections::BTreeSet;
use std::rc::Rc;
use ulpf_lib::WatchKind;

pub use children::{CHILDREN, MOST as MOST_CHILDREN};
pub use instruction::{Codes, codes};
pub use threads::{Windows, threads};

/// A generated program in parts, so that it can be made smaller.
#[derive(Clone, Debug)]
pub struct Plan {
    pub judge: Judge,
    pub seed: u64,
    pub epochs: Vec<Epoch>,
    /// One thread of several.
    pub member: Option<Member>,
    /// Watches go into debug registers.
    pub registers: bool,
    pub more: More,
    /// The number of the program that it executes at its end.
    pub then: Option<usize>,
}

/// Features of some programs only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct More {
    /// They install filters of their own.
    pub seccomp: bool,
    /// They fork.
    pub children: bool,
    /// They make code.
    pub made: bool,
}

/// Properties of one thread of such a program.
#[derive(Clone, Debug)]
pub struct Member {
    pub number: u64,
    /// The memory that it may touch.
    pub windows: Rc<Windows>,
}

#[derive(Clone, Debug)]
pub struct Epoch {
    pub watches: Vec<Watch>,
    pub rounds: u32,
    /// Seeds of the items.
    pub items: Vec<u64>,
}

pub struct Gen<'a> {
    pub asm: Asm,
    pub rng: Rng,
    pub judge: Judge,
    pub codes: &'a Codes,
    pub watches: Vec<Watch>,
    /// Segment bases.
    pub fs: u64,
    pub gs: u64,
    /// Code that uses gs is not patched, so most programs do not use it.
    pub uses_gs: bool,
    pub windows: Option<Rc<Windows>>,
    /// Watches go into debug registers.
    pub registers: bool,
    /// Added to descriptors.
    pub fd: u64,
    pub more: More,
    /// How often the items of this epoch are run.
    pub rounds: u32,
    /// Number of forks in the code.
    pub forks: u64,
    /// The number of the thread; how many slots it has for code that it makes, and which of them several items have.
    pub number: u64,
    pub slots: u64,
    pub shared_slots: BTreeSet<u64>,
    /// Where each marker is.
    pub markers: Vec<usize>,
    /// Epoch, item, and where its code ends.
    pub items: Vec<(usize, usize, usize)>,
}

/// Where the program of this number is, in the folder in which they run.
pub fn file_name(number: usize) -> String {
    format!("program-{number}")
}

pub fn mix(a: u64, b: u64) -> u64 {
    let mut z = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ z >> 31) | 1
}

/// Descriptors that each thread has, and one to spare.
pub const DESCRIPTORS: u64 = 4;

/// Code that runs before the threads of such a program: it makes the memory and descriptors of `count` of them.
pub fn starter(count: u64, made: bool) -> Asm {
    let codes = Codes::none();
    let mut g = Gen {
        asm: Asm::default(),
        rng: Rng(1),
        judge: Judge::Unicorn,
        codes: &codes,
        watches: vec![],
        fs: 0,
        gs: 0,
        uses_gs: false,
        windows: None,
        registers: false,
        fd: 0,
        more: More {
            made,
            ..More::default()
        },
        rounds: 1,
        forks: 0,
        number: 0,
        slots: 0,
        shared_slots: BTreeSet::new(),
        markers: vec![],
        items: vec![],
    };
    g.memory();
    for n in 0..count {
        g.descriptors(n * DESCRIPTORS);
    }
    g.asm
}

impl Plan {
    pub fn new(judge: Judge, seed: u64) -> Plan {
        let mut rng = Rng(mix(seed, 0x7e57));
        // As a heap that is watched as a whole.
        let all_arenas = mix(seed, 0x3401e) >> 8 & 7 == 0;
        let epochs = (0..2 + rng.below(4))
            .map(|e| {
                let mut watches = watches(&mut rng);
                if all_arenas {
                    watches = self::all_arenas(seed, e);
                }
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
            member: None,
            registers: false,
            more: More::default(),
            then: None,
        }
    }

    /// A program that has filters, or children, or both.
    pub fn more(judge: Judge, seed: u64, more: More) -> Plan {
        Plan {
            more,
            ..Plan::new(judge, seed)
        }
    }

    /// Programs each of which executes the next one.
    pub fn stages(judge: Judge, seed: u64) -> Vec<Plan> {
        let mut rng = Rng(mix(seed, 0xe8ec));
        let mut stages: Vec<_> = (0..2 + rng.below(2))
            .map(|n| Plan::new(judge, mix(seed, 0x5000 + n)))
            .collect();
        // The same watches in all of them: so they can be made smaller together.
        let fewest = stages.iter().map(|p| p.epochs.len()).min().unwrap_or(1);
        let watches: Vec<_> = (0..fewest).map(|_| watches(&mut rng)).collect();
        // In single steps a program knows nothing of the filters that it has from before.
        let seccomp = judge == Judge::Unicorn && rng.chance(3);
        for plan in &mut stages {
            plan.more.children = rng.chance(3);
            plan.more.seccomp = seccomp;
            plan.epochs.truncate(fewest);
            for (e, w) in plan.epochs.iter_mut().zip(&watches) {
                e.watches = w.clone();
            }
        }
        stages
    }

    /// Its watches fit into debug registers.
    pub fn registers(seed: u64) -> Plan {
        let mut plan = Plan::new(Judge::Unicorn, seed);
        let mut rng = Rng(mix(seed, 0xd4e6));
        plan.registers = true;
        for e in &mut plan.epochs {
            // A trap costs many times what a fault does.
            e.rounds = e.rounds.div_ceil(8);
            e.watches.clear();
            for _ in 0..1 + rng.below(4) {
                let len = 1 << rng.below(4);
                let arena = ARENAS[rng.below(3) as usize];
                let at = match e.watches.last() {
                    Some(near) if rng.chance(3) => near.addr ^ (8 << rng.below(2)),
                    _ => arena + 4096 + rng.below(ARENA_LEN as u64 - 2 * 4096),
                };
                let w = Watch {
                    addr: at & !(len - 1),
                    len,
                    kind: if rng.chance(2) {
                        WatchKind::Write
                    } else {
                        WatchKind::Access
                    },
                };
                if e.watches.iter().all(|o| o.addr != w.addr) {
                    e.watches.push(w);
                }
            }
        }
        plan
    }

    pub fn build(&self, codes: &Codes) -> Program {
        self.build_mapped(codes).0
    }

    /// Also says which item (epoch, number) has made which code.
    pub fn build_mapped(&self, codes: &Codes) -> (Program, Vec<(usize, usize, usize)>) {
        let mut rng = Rng(mix(self.seed, 1));
        let uses_gs = self.member.is_none() && rng.chance(4);
        let (asm, fd, windows) = match &self.member {
            None => (Asm::default(), 0, None),
            Some(m) => (m.asm(), m.number * DESCRIPTORS, Some(m.windows.clone())),
        };
        let mut g = Gen {
            asm,
            rng,
            judge: self.judge,
            codes,
            watches: vec![],
            fs: 0,
            gs: 0,
            uses_gs,
            windows,
            registers: self.registers,
            fd,
            more: self.more,
            rounds: 1,
            forks: 0,
            number: self.member.as_ref().map_or(0, |m| m.number),
            slots: 0,
            shared_slots: BTreeSet::new(),
            markers: vec![],
            items: vec![],
        };
        if self.member.is_none() {
            g.prologue();
        }
        for (n, e) in self.epochs.iter().enumerate() {
            g.marker();
            g.watches = e.watches.clone();
            g.rounds = e.rounds;
            if self.member.is_some() {
                g.rng = Rng(mix(self.seed, 0x100 + n as u64));
                g.fresh_thread();
            }
            if e.items.is_empty() {
                continue;
            }
            let counter = g.asm.control;
            g.asm.store_word(counter, e.rounds as i32);
            let top = g.asm.pc();
            for (i, seed) in e.items.iter().enumerate() {
                g.rng = Rng(*seed);
                g.item();
                g.items.push((n, i, g.asm.code.len()));
            }
            // dec qword [counter] ; jnz top
            g.asm.put(&[0x48, 0xff, 0x0c, 0x25]);
            g.asm.put(&(counter as u32).to_le_bytes());
            let back = top.wrapping_sub(g.asm.pc() + 6) as i32;
            g.asm.put(&[0x0f, 0x85]);
            g.asm.put(&back.to_le_bytes());
        }
        g.marker();
        if let Some(number) = self.then {
            g.execute(&file_name(number));
        }
        g.asm.syscall(libc::SYS_exit_group, &[0]);
        let program = Program {
            judge: self.judge,
            memory_seed: self.seed,
            code_at: g.asm.base,
            control_at: g.asm.control,
            code: g.asm.code,
            constants: g.asm.constants,
            epochs: self.epochs.iter().map(|e| e.watches.clone()).collect(),
            markers: g.markers,
            number: self.member.as_ref().map(|m| m.number),
            windows: self.member.as_ref().map(|m| m.windows.clone()),
            registers: self.registers,
            makes_code: self.more.made,
        };
        (program, g.items)
    }
}

/// All of the arenas, but for what is there for accesses that stray.
fn all_arenas(seed: u64, epoch: u64) -> Vec<Watch> {
    let kind = match mix(seed, 0x401e + epoch) >> 8 & 1 {
        0 => WatchKind::Write,
        _ => WatchKind::Access,
    };
    let watch = |arena| Watch {
        addr: arena + 4096,
        len: ARENA_LEN as u64 - 2 * 4096,
        kind,
    };
    ARENAS.map(watch).to_vec()
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
    /// A thread of such a program begins an epoch.
    fn fresh_thread(&mut self) {
        self.fs = self.segment();
        if let Some(w) = self.windows.clone()
            && self.fs > 0x100
        {
            self.fs = w.target(&mut self.rng, &[], 1, 1);
        }
        let fs = self.fs;
        self.asm.syscall(libc::SYS_arch_prctl, &[0x1002, fs]);
        // A thread inherits the x87 registers of its creator.
        let at = self.asm.constant(&[0x5a; 64]);
        for reg in 0..8u8 {
            // movq mm, [at + 8 * reg]
            self.asm.put(&[0x0f, 0x6f, 4 | reg << 3, 0x25]);
            self.asm
                .put(&((at + u64::from(reg) * 8) as u32).to_le_bytes());
        }
        self.registers();
        let at = self.asm.constant(&0x1f80u32.to_le_bytes());
        self.asm.put(&[0x0f, 0xae, 0x14, 0x25]); // ldmxcsr
        self.asm.put(&(at as u32).to_le_bytes());
        self.asm.put(&[0xfc]);
        let stack = self.asm.control + 0xf00;
        self.asm.mov(RSP, stack);
        self.asm.define_flags(1);
    }

    /// Maps and fills the arenas, makes descriptors, gives every register a value.
    fn prologue(&mut self) {
        self.memory();
        self.descriptors(0);
        let (fs, gs) = (self.segment(), self.segment());
        (self.fs, self.gs) = (fs, if self.uses_gs { gs } else { 0 });
        let gs = self.gs;
        let a = &mut self.asm;
        a.syscall(libc::SYS_arch_prctl, &[0x1002, fs]);
        a.syscall(libc::SYS_arch_prctl, &[0x1001, gs]);
        self.registers();
        self.asm.mov(RSP, ARENAS[0] + 3 * 4096);
        self.asm.define_flags(1);
    }

    fn memory(&mut self) {
        const PRIVATE_FIXED: u64 = 0x32;
        const SHARED_FIXED: u64 = 0x31;
        let a = &mut self.asm;
        for (arena, flags) in [(1, PRIVATE_FIXED), (2, SHARED_FIXED)] {
            // r9 is the sixth argument.
            a.put(&[0x45, 0x31, 0xc9]);
            a.syscall(
                libc::SYS_mmap,
                &[ARENAS[arena], ARENA_LEN as u64, 3, flags, u64::MAX],
            );
            a.mov(RSI, CONTENTS + (arena as u64 - 1) * ARENA_LEN as u64);
            a.mov(RDI, ARENAS[arena]);
            a.mov(RCX, ARENA_LEN as u64 / 8);
            a.put(&[0xfc, 0xf3, 0x48, 0xa5]);
        }
        if self.more.made {
            self.memory_for_code();
        }
    }

    /// A memory file with known contents, at 100 or so; a pipe, at 101 and 102.
    pub fn descriptors(&mut self, first: u64) {
        let a = &mut self.asm;
        let name = a.constant(b"data\0");
        a.syscall(libc::SYS_memfd_create, &[name, 0]);
        a.put(&[0x48, 0x89, 0xc7]); // mov rdi, rax
        a.mov(RSI, FILE + first);
        a.mov(RAX, libc::SYS_dup2 as u64);
        a.put(&[0x0f, 0x05, 0x31, 0xc9, 0x45, 0x31, 0xdb]);
        a.syscall(
            libc::SYS_pwrite64,
            &[FILE + first, ARENAS[0], ARENA_LEN as u64, 0],
        );
        let ends = a.control + 64;
        a.syscall(libc::SYS_pipe2, &[ends, 0o4000]);
        for (n, fd) in [(0, PIPE_READ), (4, PIPE_WRITE)] {
            // mov edi, [ends + n]
            a.put(&[0x8b, 0x3c, 0x25]);
            a.put(&((ends + n) as u32).to_le_bytes());
            a.mov(RSI, fd + first);
            a.mov(RAX, libc::SYS_dup2 as u64);
            a.put(&[0x0f, 0x05, 0x31, 0xc9, 0x45, 0x31, 0xdb]);
        }
    }

    /// Executes a file, with its name for an argument and without an environment.
    fn execute(&mut self, file: &str) {
        let at = self.asm.constant(format!("{file}\0").as_bytes());
        let mut arguments = at.to_le_bytes().to_vec();
        arguments.extend([0; 8]);
        let arguments = self.asm.constant(&arguments);
        self.asm
            .syscall(libc::SYS_execve, &[at, arguments, arguments + 8]);
    }

    /// Gives every register a value.
    fn registers(&mut self) {
        let lcg = self.rng.next() as i32;
        let at = self.lcg();
        self.asm.store_word(at, lcg);
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
    }

    /// Where the next random address of a loop comes from.
    fn lcg(&self) -> u64 {
        self.asm.control + 8
    }

    fn marker(&mut self) {
        self.markers.push(self.asm.code.len());
        self.asm.marker();
        if self.windows.is_some() {
            // Room for a jump, which stands here when the threads run.
            self.asm.put(&[0x90; 4]);
        }
    }

    fn segment(&mut self) -> u64 {
        match self.rng.below(3) {
            0 => ARENAS[self.rng.below(3) as usize] + self.rng.below(ARENA_LEN as u64),
            1 => 0x100,
            _ => 0,
        }
    }

    fn item(&mut self) {
        if self.more.seccomp && self.rng.chance(24) {
            return self.once(Gen::filter);
        }
        if self.more.children && self.rng.chance(16) {
            return self.fork();
        }
        if self.more.seccomp && self.rng.chance(4) {
            return self.system_call();
        }
        if self.more.made && self.rng.chance(2) {
            return self.made();
        }
        self.plain_item();
    }

    /// Code that only one round of the loop runs.
    fn once(&mut self, what: impl FnOnce(&mut Self)) {
        let round = 1 + self.rng.below(u64::from(self.rounds.max(1))) as u32;
        // cmp qword [counter], round ; jne over
        self.asm.put(&[0x48, 0x81, 0x3c, 0x25]);
        let counter = self.asm.control as u32;
        self.asm.put(&counter.to_le_bytes());
        self.asm.put(&round.to_le_bytes());
        let over = self.asm.jump_over(&[0x0f, 0x85]);
        what(self);
        self.asm.lands(over);
        self.asm.define_flags(1);
    }

    fn plain_item(&mut self) {
        match self.rng.below(23) {
            0..=1 => self.string(),
            2..=3 => self.stack(),
            4 => self.system_call(),
            20..=21 => self.close(),
            22 => self.small_loop(),
            // Of the codes only a few take vectors of addresses.
            5 if self.judge == Judge::Step => self.random_masked(),
            _ => self.random_instruction(),
        }
    }

    /// An address in an arena for `len` bytes: at the watches' edges, at page edges, anywhere.
    pub fn target(&mut self, len: u64, align: u64) -> u64 {
        if let Some(windows) = self.windows.clone() {
            return windows.target(&mut self.rng, &self.watches, len, align);
        }
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
        let (start, mask) = match &self.windows {
            Some(w) => w.clone().stretch(&mut self.rng),
            None => (ARENAS[self.rng.below(3) as usize] + 4096, 0x3fff),
        };
        let step = self.rng.next() as i32;
        let lcg = self.lcg();
        let a = &mut self.asm;
        a.load(reg, lcg);
        // imul reg, reg, 0x5851f42d
        a.put(&[
            0x48 | (reg >> 3) << 2 | reg >> 3,
            0x69,
            0xc0 | (reg & 7) << 3 | reg & 7,
        ]);
        a.put(&0x5851_f42du32.to_le_bytes());
        a.add(reg, step);
        a.store(lcg, reg);
        // shr reg, 33
        a.put(&[0x48 | reg >> 3, 0xc1, 0xe8 | reg & 7, 33]);
        a.and(reg, mask & !(align as i32 - 1));
        a.add(reg, (start.wrapping_sub(minus)) as i32);
    }
}

/// All codes, for selection.
pub fn all_codes() -> impl Iterator<Item = Code> {
    corpus::codes()
}
