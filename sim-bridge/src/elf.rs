// SPDX-License-Identifier: GPL-2.0-or-later
//! Reads a static x86-64 executable, and says of all others why not. Nothing in the file is believed
//! before it is checked.

use anyhow::{Context, Result, anyhow, bail, ensure};
use object::LittleEndian;
use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, Sym};

type Header = elf::FileHeader64<LittleEndian>;

pub struct Segment {
    pub addr: u64,
    pub size: u64,
    /// PF_X 1, PF_W 2, PF_R 4.
    pub flags: u32,
    pub data: Vec<u8>,
}

pub struct Elf {
    pub entry: u64,
    pub segments: Vec<Segment>,
    pub symbols: Vec<(String, u64, u64)>,
    pub headers_at: u64,
    pub headers: u16,
}

/// Where position-independent executables go.
const BASE: u64 = 0x5555_5555_4000;
const TOP: u64 = 0x7000_0000_0000;

pub fn read(file: &[u8]) -> Result<Elf> {
    ensure!(file.starts_with(&elf::ELFMAG), "not an ELF file");
    ensure!(
        file.get(4) == Some(&elf::ELFCLASS64),
        "a 32-bit program; the machine is x86-64"
    );
    ensure!(
        file.get(5) == Some(&elf::ELFDATA2LSB),
        "a big-endian program; the machine is x86-64"
    );
    let end = LittleEndian;
    let header = Header::parse(file).map_err(broken)?;
    let machine = header.e_machine(end);
    ensure!(
        machine == elf::EM_X86_64,
        "a program for another processor (ELF machine {machine}); the machine is x86-64"
    );
    let base = match header.e_type(end) {
        elf::ET_EXEC => 0,
        elf::ET_DYN => BASE,
        elf::ET_REL => bail!("an object file; link it first, with -static"),
        kind => bail!("not an executable (ELF type {kind})"),
    };
    let table = header.e_phoff(end);
    let headers = header.program_headers(end, file).map_err(broken)?;
    let mut found = Elf {
        entry: header.e_entry(end).wrapping_add(base),
        segments: vec![],
        symbols: vec![],
        headers_at: 0,
        headers: u16::try_from(headers.len()).context("too many program headers")?,
    };
    for part in headers {
        if part.p_type(end) == elf::PT_INTERP {
            let name = String::from_utf8_lossy(part.data(end, file).unwrap_or_default());
            bail!(
                "dynamically linked (needs {}); the machine has no dynamic loader: link it with -static",
                name.trim_end_matches('\0')
            );
        }
        let size = part.p_memsz(end);
        if part.p_type(end) == elf::PT_LOAD && size > 0 {
            let addr = part.p_vaddr(end).wrapping_add(base);
            let last = addr.checked_add(size);
            let (offset, in_file) = part.file_range(end);
            ensure!(
                in_file <= size && last.is_some_and(|last| last <= TOP) && addr >= 0x1000,
                "a segment at {addr:#x} of {size:#x} bytes does not fit into the address space"
            );
            let data = part.data(end, file).ok();
            let data = data.context("a segment lies beyond the end of the file")?;
            if (offset..offset + in_file).contains(&table) {
                found.headers_at = addr + (table - offset);
            }
            found.segments.push(Segment {
                addr,
                size,
                flags: part.p_flags(end),
                data: data.to_vec(),
            });
        }
    }
    let total: u64 = found.segments.iter().map(|s| s.size).sum();
    ensure!(!found.segments.is_empty(), "nothing to load");
    ensure!(
        total <= 1 << 32,
        "its segments are {total} bytes; the machine has 4 GiB for them"
    );
    // A program without a symbol table, or with a broken one, runs all the same.
    found.symbols = symbols(header, file, base).unwrap_or_default();
    Ok(found)
}

fn broken(e: object::Error) -> anyhow::Error {
    anyhow!("a broken ELF file: {e}")
}

/// Data objects with their sizes.
fn symbols(header: &Header, file: &[u8], base: u64) -> object::Result<Vec<(String, u64, u64)>> {
    let end = LittleEndian;
    let table = header
        .sections(end, file)?
        .symbols(end, file, elf::SHT_SYMTAB)?;
    let data = table.iter().filter(|s| s.st_type() == elf::STT_OBJECT);
    data.map(|s| {
        let name = String::from_utf8_lossy(table.symbol_name(end, s)?).into_owned();
        Ok((name, s.st_value(end).wrapping_add(base), s.st_size(end)))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(file: &[u8]) -> String {
        read(file).err().expect("refused").to_string()
    }

    /// An executable of one segment without contents.
    fn small() -> Vec<u8> {
        let mut f = vec![0; 64 + 56];
        f[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        let mut put = |at: usize, value: u64, len: usize| {
            f[at..at + len].copy_from_slice(&value.to_le_bytes()[..len])
        };
        put(16, 2, 2);
        put(18, 62, 2);
        put(24, 0x40_0000, 8);
        put(32, 64, 8);
        put(54, 56, 2);
        put(56, 1, 2);
        put(64, 1, 4);
        put(64 + 16, 0x40_0000, 8);
        put(64 + 40, 0x1000, 8);
        f
    }

    #[test]
    fn what_is_refused() {
        assert!(read(&small()).is_ok());
        let with = |at: usize, value: u8| {
            let mut f = small();
            f[at] = value;
            refusal(&f)
        };
        assert!(refusal(b"#!/bin/sh").contains("not an ELF"));
        assert!(with(4, 1).contains("32-bit"));
        assert!(with(18, 183).contains("another processor (ELF machine 183)"));
        assert!(with(16, 1).contains("object file"));
        assert!(with(64, 3).contains("dynamically linked"));
        assert!(with(64 + 23, 0xff).contains("address space"));
        assert!(with(64 + 45, 0xff).contains("address space"));
        assert!(with(64, 7).contains("nothing to load"));
    }

    #[test]
    fn cut_and_garbled_files_never_panic() {
        let whole = small();
        for n in 0..whole.len() {
            let _ = read(&whole[..n]);
            for value in [0xff, 0x80, 0x7f] {
                let mut f = whole.clone();
                f[n] = value;
                let _ = read(&f);
            }
        }
    }
}
