//! A program to judge: code, constants, memory contents and the watches of each epoch; as an ELF file
//! for the kernel, as text for a fixed case.
//!
//! ```text
//!     0x0040_0000  code        read, execute; starts at its first byte
//!     0x0f00_0000  control     read, write: loop counters, then constants; never watched
//!     0x1000_0000  arena 0     private file mapping (a data segment)
//!     0x1800_0000  arena 1     private anonymous memory, mapped by the program
//!     0x2000_0000  arena 2     shared anonymous memory, mapped by the program
//!     0x2800_0000  contents    what arenas 1 and 2 are filled with
//!     0x3800_0000  made        code that the program writes; it maps it, if it has any
//! ```
//! `int3` ends an epoch: the harness changes the watches there.

use crate::generate::Windows;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;
use ulpf_lib::WatchKind;
use ulpf_lib::hot::{Entry, MAGIC, Page, code_hash};

pub const CODE: u64 = 0x40_0000;
pub const CONTROL: u64 = 0x0f00_0000;
pub const CONTROL_LEN: usize = 0x1000;
pub const ARENAS: [u64; 3] = [0x1000_0000, 0x1800_0000, 0x2000_0000];
/// Pages of an arena; the outer ones are there for accesses that stray.
pub const ARENA_PAGES: usize = 6;
pub const ARENA_LEN: usize = ARENA_PAGES * 4096;
pub const CONTENTS: u64 = 0x2800_0000;
pub const MADE: u64 = 0x3800_0000;
pub const MADE_LEN: usize = 0x2_0000;

/// Whether it is in code that the program has made.
pub fn is_made(pc: u64) -> bool {
    (MADE..MADE + MADE_LEN as u64).contains(&pc)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watch {
    pub addr: u64,
    pub len: u64,
    pub kind: WatchKind,
}

impl Watch {
    pub fn letter(&self) -> &'static str {
        match self.kind {
            WatchKind::Write => "w",
            WatchKind::Read => "r",
            WatchKind::Access => "rw",
        }
    }
}

/// The source of the expected hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judge {
    /// Unicorn, with memory hooks.
    Unicorn,
    /// The processor, one instruction at a time.
    Step,
}

#[derive(Clone)]
pub struct Program {
    pub judge: Judge,
    pub memory_seed: u64,
    pub code_at: u64,
    pub control_at: u64,
    pub code: Vec<u8>,
    pub constants: Vec<u8>,
    /// Armed at each marker in turn.
    pub epochs: Vec<Vec<Watch>>,
    /// Where each `int3` is in the code.
    pub markers: Vec<usize>,
    /// Its watches are in debug registers.
    pub registers: bool,
    /// It makes code.
    pub makes_code: bool,
    /// Its number, if it is one thread of several.
    pub number: Option<u64>,
    /// The memory that this thread may touch.
    pub windows: Option<Rc<Windows>>,
}

/// The arena and offset of an address.
pub fn arena_of(addr: u64) -> Option<(usize, usize)> {
    ARENAS
        .iter()
        .position(|a| (*a..*a + ARENA_LEN as u64).contains(&addr))
        .map(|n| (n, (addr - ARENAS[n]) as usize))
}

/// Initial contents of an arena.
pub fn contents(seed: u64, arena: usize) -> Vec<u8> {
    let mut state = seed ^ (arena as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut out = Vec::with_capacity(ARENA_LEN);
    while out.len() < ARENA_LEN {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        // Small numbers and zeros are frequent in real memory, and make silent stores.
        let word = match z & 7 {
            0 => 0,
            1 => z >> 56,
            _ => z,
        };
        out.extend(word.to_le_bytes());
    }
    out
}

impl Program {
    /// Whether the program uses gs. Patches use it themselves, unless the program has set its base.
    pub fn uses_gs(&self) -> bool {
        iced_x86::Decoder::with_ip(64, &self.code, self.code_at, 0)
            .iter()
            .any(|i| i.segment_prefix() == iced_x86::Register::GS)
    }

    pub fn control(&self) -> Vec<u8> {
        control(&self.constants)
    }

    pub fn segments(&self) -> Vec<(u64, u32, Vec<u8>)> {
        vec![
            (self.code_at, EXEC, self.code.clone()),
            (self.control_at, DATA, self.control()),
        ]
    }

    pub fn elf(&self) -> Vec<u8> {
        elf(self.memory_seed, &self.segments())
    }

    /// The form in `cases/`.
    pub fn text(&self, comment: &str) -> String {
        let mut s = String::new();
        if let Some(n) = self.number {
            let _ = writeln!(s, "part {n}");
        }
        for line in comment.lines() {
            let _ = writeln!(s, "# {line}");
        }
        let _ = writeln!(s, "judge {:?}\nmemory {:#x}", self.judge, self.memory_seed);
        if self.registers {
            let _ = writeln!(s, "registers");
        }
        if self.makes_code {
            let _ = writeln!(s, "makes-code");
        }
        for (name, bytes) in [("code", &self.code), ("constants", &self.constants)] {
            for line in bytes.chunks(32) {
                let _ = write!(s, "{name} ");
                for b in line {
                    let _ = write!(s, "{b:02x}");
                }
                let _ = writeln!(s);
            }
        }
        if self.number.is_some() {
            for at in &self.markers {
                let _ = writeln!(s, "marker {at:#x}");
            }
        }
        for watches in &self.epochs {
            let _ = write!(s, "epoch");
            for w in watches {
                let _ = write!(s, " {:#x}:{}:{}", w.addr, w.len, w.letter());
            }
            let _ = writeln!(s);
        }
        s
    }

    pub fn parse(text: &str) -> Result<Program> {
        let mut p = Program {
            judge: Judge::Unicorn,
            memory_seed: 0,
            code_at: CODE,
            control_at: CONTROL,
            code: vec![],
            constants: vec![],
            epochs: vec![],
            markers: vec![],
            registers: false,
            makes_code: false,
            number: None,
            windows: None,
        };
        for line in text.lines() {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "" | "#" => {}
                "judge" if rest == "Step" => p.judge = Judge::Step,
                "judge" => ensure!(rest == "Unicorn", "no such judge: {rest}"),
                "part" => {
                    let n = rest.parse()?;
                    p.number = Some(n);
                    (p.code_at, p.control_at) =
                        (crate::threads::code_at(n), crate::threads::control_at(n));
                }
                "registers" => p.registers = true,
                "makes-code" => p.makes_code = true,
                "marker" => p.markers.push(number(rest)? as usize),
                "memory" => p.memory_seed = number(rest)?,
                "code" => p.code.extend(hex(rest)?),
                "constants" => p.constants.extend(hex(rest)?),
                "epoch" => p
                    .epochs
                    .push(rest.split_whitespace().map(watch).collect::<Result<_>>()?),
                _ => bail!("not understood: {line}"),
            }
        }
        Ok(p)
    }
}

/// The control area: counters and such, then constants.
pub fn control(constants: &[u8]) -> Vec<u8> {
    let mut v = vec![0; CONTROL_LEN];
    v.extend(constants);
    v.resize(v.len().next_multiple_of(4096).max(0x2000), 0);
    v
}

pub const EXEC: u32 = 5;
pub const DATA: u32 = 6;
const READ: u32 = 4;

const NOTE: u32 = 4;
/// Where the build ID is in that page, and the note before it.
const BUILD_ID: u64 = 1536;
const GNU_NOTE: [u8; 16] = *b"\x04\0\0\0\x08\0\0\0\x03\0\0\0GNU\0";

const GNU_EH_FRAME: u32 = 0x6474_e550;
/// Where the unwind tables are in the page with the headers.
const TABLES: u64 = 2048;

/// `.eh_frame_hdr` at `at`, with a description behind it of each part that has code, as one function.
fn unwind_tables(at: u64, parts: &[(u64, u32, Vec<u8>)]) -> Vec<u8> {
    let mut code: Vec<_> = parts.iter().filter(|p| p.1 == EXEC).collect();
    code.sort_by_key(|p| p.0);
    let mut out = vec![1, 0x1b, 0x03, 0x3b];
    let mut put = |word: u64| out.extend((word as u32).to_le_bytes());
    put(0);
    put(code.len() as u64);
    let described = |n: usize| at + 12 + 8 * code.len() as u64 + 16 * n as u64;
    for (n, part) in code.iter().enumerate() {
        put(part.0.wrapping_sub(at));
        put(described(n).wrapping_sub(at));
    }
    for (n, part) in code.iter().enumerate() {
        put(12);
        put(0);
        put(part.0.wrapping_sub(described(n) + 8));
        put(part.2.len() as u64);
    }
    out
}

/// Identifies the file by its code.
fn build_id(parts: &[(u64, u32, Vec<u8>)]) -> u64 {
    let code = parts.iter().filter(|p| p.1 == EXEC).flat_map(|p| &p.2);
    code.fold(0, |id, byte| crate::generate::mix(id, u64::from(*byte) + 1))
}

/// The file of hot instructions that an earlier run might have kept for such a program (`ulpf_lib::hot`), with its name. It
/// lists all instructions, whether they access memory or not.
pub fn hot(parts: &[(u64, u32, Vec<u8>)]) -> (String, Vec<u8>) {
    let mut file = MAGIC.to_vec();
    let mut pages: BTreeMap<u64, Vec<Entry>> = BTreeMap::new();
    let code = || parts.iter().filter(|p| p.1 == EXEC);
    for (at, _, code) in code() {
        for i in &mut iced_x86::Decoder::with_ip(64, code, *at, 0) {
            let own = code.get((i.ip() - at) as usize..).unwrap_or(&[]);
            let entry = Entry::new(i.ip() as u32, own.get(..i.len()).unwrap_or(&[]), true);
            pages.entry(i.ip() & !4095).or_default().push(entry);
        }
    }
    for (page, entries) in pages {
        // Behind the code of a part its page is empty.
        let mut bytes = [0; 4096];
        for (at, _, code) in code() {
            for (n, byte) in (*at..).zip(code).filter(|(n, _)| n & !4095 == page) {
                bytes[(n - page) as usize] = *byte;
            }
        }
        let head = Page {
            offset: page as u32,
            entries: entries.len() as u32,
            code: code_hash(&bytes),
        };
        file.extend(head.to_bytes());
        file.extend(entries.iter().flat_map(|e| e.0.to_le_bytes()));
    }
    let id = build_id(parts).to_le_bytes();
    let name: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    (name + ".hot", file)
}

/// A static executable without sections; it starts at the beginning of its first part.
pub fn elf(memory_seed: u64, parts: &[(u64, u32, Vec<u8>)]) -> Vec<u8> {
    let mut inside = contents(memory_seed, 1);
    inside.extend(contents(memory_seed, 2));
    let mut segments = parts.to_vec();
    // The page with the headers, and unwind tables in it: they tell ulpf where code begins.
    let headers = segments[0].0 - 4096;
    let tables = unwind_tables(headers + TABLES, parts);
    assert!(tables.len() <= 4096 - TABLES as usize);
    segments.push((ARENAS[0], DATA, contents(memory_seed, 0)));
    segments.push((CONTENTS, READ, inside));
    let mut out = Vec::new();
    out.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    out.extend(2u16.to_le_bytes());
    out.extend(62u16.to_le_bytes());
    out.extend(1u32.to_le_bytes());
    out.extend(segments[0].0.to_le_bytes());
    out.extend(64u64.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    out.extend(0u32.to_le_bytes());
    for half in [64u16, 56, segments.len() as u16 + 3, 64, 0, 0] {
        out.extend(half.to_le_bytes());
    }
    for (kind, at, len) in [
        (1u32, 0, 4096u64),
        (GNU_EH_FRAME, TABLES, tables.len() as u64),
        (NOTE, BUILD_ID, GNU_NOTE.len() as u64 + 8),
    ] {
        out.extend(kind.to_le_bytes());
        out.extend(READ.to_le_bytes());
        for word in [at, headers + at, headers + at, len, len, 4096] {
            out.extend(word.to_le_bytes());
        }
    }
    let mut at = 4096u64;
    for (addr, flags, bytes) in &segments {
        out.extend(1u32.to_le_bytes());
        out.extend(flags.to_le_bytes());
        let len = bytes.len() as u64;
        for word in [at, *addr, *addr, len, len, 4096] {
            out.extend(word.to_le_bytes());
        }
        at += len.next_multiple_of(4096);
    }
    assert!(out.len() <= BUILD_ID as usize);
    out.resize(BUILD_ID as usize, 0);
    out.extend(GNU_NOTE);
    out.extend(build_id(parts).to_le_bytes());
    out.resize(TABLES as usize, 0);
    out.extend(tables);
    for (_, _, bytes) in &segments {
        out.resize(out.len().next_multiple_of(4096), 0);
        out.extend(bytes);
    }
    out
}

fn number(s: &str) -> Result<u64> {
    let hex = s.strip_prefix("0x").context("addresses start with 0x")?;
    Ok(u64::from_str_radix(hex, 16)?)
}

fn hex(s: &str) -> Result<Vec<u8>> {
    ensure!(s.len().is_multiple_of(2) && s.is_ascii(), "not hex: {s}");
    (0..s.len() / 2)
        .map(|i| Ok(u8::from_str_radix(&s[2 * i..2 * i + 2], 16)?))
        .collect()
}

fn watch(s: &str) -> Result<Watch> {
    let mut parts = s.split(':');
    let mut next = || parts.next().context("a watch is ADDR:LEN:KIND");
    Ok(Watch {
        addr: number(next()?)?,
        len: next()?.parse()?,
        kind: match next()? {
            "w" => WatchKind::Write,
            "r" => WatchKind::Read,
            "rw" => WatchKind::Access,
            other => bail!("no such kind: {other}"),
        },
    })
}
