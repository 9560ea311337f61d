// SPDX-License-Identifier: GPL-2.0-or-later
//! Reads a static x86-64 executable, and says of all others why not. Nothing in the file is believed
//! before it is checked.

use anyhow::{Context, Result, bail, ensure};

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

fn bytes(file: &[u8], at: u64, len: u64) -> Option<&[u8]> {
    let end = at.checked_add(len)?;
    file.get(usize::try_from(at).ok()?..usize::try_from(end).ok()?)
}

fn number(file: &[u8], at: u64, len: u64) -> Option<u64> {
    let mut le = [0; 8];
    le[..len as usize].copy_from_slice(bytes(file, at, len)?);
    Some(u64::from_le_bytes(le))
}

pub fn read(file: &[u8]) -> Result<Elf> {
    ensure!(file.starts_with(b"\x7fELF"), "not an ELF file");
    ensure!(
        file.get(4) == Some(&2),
        "a 32-bit program; the machine is x86-64"
    );
    ensure!(
        file.get(5) == Some(&1),
        "a big-endian program; the machine is x86-64"
    );
    let n = |at, len| number(file, at, len).context("the ELF file ends within its headers");
    let machine = n(18, 2)?;
    ensure!(
        machine == 62,
        "a program for another processor (ELF machine {machine}); the machine is x86-64"
    );
    let kind = n(16, 2)?;
    let base = match kind {
        2 => 0,
        3 => BASE,
        1 => bail!("an object file; link it first, with -static"),
        _ => bail!("not an executable (ELF type {kind})"),
    };
    let (table, size, count) = (n(32, 8)?, n(54, 2)?, n(56, 2)?);
    ensure!(
        size == 56,
        "its program headers have a size of {size} instead of 56"
    );
    let mut elf = Elf {
        entry: n(24, 8)?.wrapping_add(base),
        segments: vec![],
        symbols: vec![],
        headers_at: 0,
        headers: count as u16,
    };
    for i in 0..count {
        let at = table
            .checked_add(i * 56)
            .context("the program headers are nowhere")?;
        let (kind, flags) = (n(at, 4)?, n(at + 4, 4)? as u32);
        let (offset, addr, in_file, size) = (
            n(at + 8, 8)?,
            n(at + 16, 8)?,
            n(at + 32, 8)?,
            n(at + 40, 8)?,
        );
        match kind {
            3 => {
                let name = bytes(file, offset, in_file).unwrap_or_default();
                let name = String::from_utf8_lossy(name);
                bail!(
                    "dynamically linked (needs {}); the machine has no dynamic loader: link it with -static",
                    name.trim_end_matches('\0')
                );
            }
            1 if size > 0 => {
                let addr = addr.wrapping_add(base);
                let end = addr.checked_add(size);
                ensure!(
                    in_file <= size && end.is_some_and(|end| end <= TOP) && addr >= 0x1000,
                    "a segment at {addr:#x} of {size:#x} bytes does not fit into the address space"
                );
                let data = bytes(file, offset, in_file)
                    .context("a segment lies beyond the end of the file")?;
                if (offset..offset + in_file).contains(&table) {
                    elf.headers_at = addr + (table - offset);
                }
                elf.segments.push(Segment {
                    addr,
                    size,
                    flags,
                    data: data.to_vec(),
                });
            }
            _ => {}
        }
    }
    let total: u64 = elf.segments.iter().map(|s| s.size).sum();
    ensure!(!elf.segments.is_empty(), "nothing to load");
    ensure!(
        total <= 1 << 32,
        "its segments are {total} bytes; the machine has 4 GiB for them"
    );
    elf.symbols = symbols(file, base).unwrap_or_default();
    Ok(elf)
}

/// Data objects with their sizes; nothing where the file has no (or a broken) symbol table.
fn symbols(file: &[u8], base: u64) -> Option<Vec<(String, u64, u64)>> {
    let n = |at: u64, len| number(file, at, len);
    let (table, count) = (n(40, 8)?, n(60, 2)?);
    let section = |i: u64| table.checked_add(i * 64);
    let mut found = vec![];
    for i in 0..count {
        let at = section(i)?;
        if n(at + 4, 4)? != 2 {
            continue;
        }
        let names = section(n(at + 40, 4)?)?;
        let names = bytes(file, n(names + 24, 8)?, n(names + 32, 8)?)?;
        for s in bytes(file, n(at + 24, 8)?, n(at + 32, 8)?)?.chunks_exact(24) {
            if s[4] & 15 != 1 {
                continue;
            }
            let name = names.get(number(s, 0, 4)? as usize..)?;
            let name = String::from_utf8_lossy(name.split(|&b| b == 0).next()?).into_owned();
            found.push((name, number(s, 8, 8)?.wrapping_add(base), number(s, 16, 8)?));
        }
    }
    Some(found)
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
        f[..6].copy_from_slice(b"\x7fELF\x02\x01");
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
