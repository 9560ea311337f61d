//! The program and its libraries as they lie in memory: auxiliary vector, program headers, dynamic sections.

use crate::gdb::procfs;
use crate::inferior::Inferior;
use alloc::vec::Vec;
use linux_raw_sys::auxvec::{AT_PHDR, AT_PHNUM};
use ulpf_lib::TargetAddr;

const PHDR_SIZE: u64 = 56;
/// Bounds against files and memory that the program has scribbled over.
const MAX_HEADERS: u64 = 512;
const MAX_DYNAMIC: usize = 1024;

pub const PT_DYNAMIC: u32 = 2;
pub const PT_PHDR: u32 = 6;
pub const PT_TLS: u32 = 7;

pub fn word(inf: &mut dyn Inferior, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (inf.read_memory(TargetAddr(at), &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
}

/// 32 bits.
pub fn half(inf: &mut dyn Inferior, at: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    (inf.read_memory(TargetAddr(at), &mut bytes) == 4).then(|| u32::from_le_bytes(bytes))
}

pub fn words<const N: usize>(inf: &mut dyn Inferior, at: u64) -> Option<[u64; N]> {
    let mut all = [0; N];
    for (i, w) in all.iter_mut().enumerate() {
        *w = word(inf, at.checked_add(8 * i as u64)?)?;
    }
    Some(all)
}

/// The fields of Elf64_Phdr that are used. Sizes and addresses in bytes, as linked.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub kind: u32,
    pub vaddr: u64,
    pub memsz: u64,
    pub align: u64,
}

/// Program headers, and the load bias of the addresses in them.
pub struct Headers {
    pub base: u64,
    pub all: Vec<Header>,
}

impl Headers {
    /// The program's own.
    pub fn of_program(inf: &mut dyn Inferior) -> Option<Headers> {
        let auxv = procfs::auxiliary_vector(inf.pid())?;
        let entry = |kind: u64| {
            auxv.chunks_exact(16).find_map(|e| {
                let (k, v) = e.split_at(8);
                (u64::from_le_bytes(k.try_into().ok()?) == kind)
                    .then_some(u64::from_le_bytes(v.try_into().ok()?))
            })
        };
        let phdr = entry(AT_PHDR.into())?;
        let all = read(inf, phdr, entry(AT_PHNUM.into())?)?;
        let own = all.iter().find(|h| h.kind == PT_PHDR);
        let base = own.map_or(0, |h| phdr.wrapping_sub(h.vaddr));
        Some(Headers { base, all })
    }

    /// The headers of a library whose ELF header is mapped at `base`.
    pub fn of_library(inf: &mut dyn Inferior, base: u64) -> Option<Headers> {
        const MAGIC: u32 = u32::from_le_bytes(*b"\x7fELF");
        // Elf64_Ehdr: e_phoff at 32, e_phnum at 56.
        let [magic, _, _, _, offset, _, _, counts] = words(inf, base)?;
        if magic as u32 != MAGIC {
            return None;
        }
        let all = read(inf, base.checked_add(offset)?, counts & 0xffff)?;
        Some(Headers { base, all })
    }

    pub fn find(&self, kind: u32) -> Option<Header> {
        self.all.iter().find(|h| h.kind == kind).copied()
    }
}

fn read(inf: &mut dyn Inferior, at: u64, count: u64) -> Option<Vec<Header>> {
    (0..count.min(MAX_HEADERS))
        .map(|i| {
            let at = at.checked_add(i * PHDR_SIZE)?;
            // p_type and p_flags, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align
            let [kind, _, vaddr, _, _, memsz, align] = words(inf, at)?;
            Some(Header {
                kind: kind as u32,
                vaddr,
                memsz,
                align,
            })
        })
        .collect()
}

/// A dynamic section: (address of the value, tag, value).
pub fn dynamic(inf: &mut dyn Inferior, at: u64) -> Vec<(u64, u64, u64)> {
    let mut all = Vec::new();
    let mut at = at;
    while all.len() < MAX_DYNAMIC {
        match words(inf, at) {
            Some([0, _]) | None => break,
            Some([tag, value]) => all.push((at + 8, tag, value)),
        }
        match at.checked_add(16) {
            Some(next) => at = next,
            None => break,
        }
    }
    all
}

/// Address of a symbol in the dynamic symbol table of the object whose dynamic section is at `ld`, by its GNU hash
/// table (DT_GNU_HASH; every glibc has one).
pub fn symbol(inf: &mut dyn Inferior, base: u64, ld: u64, name: &[u8]) -> Option<u64> {
    const DT_STRTAB: u64 = 5;
    const DT_SYMTAB: u64 = 6;
    const DT_GNU_HASH: u64 = 0x6fff_fef5;
    const SYMBOL_SIZE: u64 = 24;
    let section = dynamic(inf, ld);
    let value = |tag| {
        let value = section.iter().find(|e| e.1 == tag)?.2;
        // glibc has relocated these pointers, musl has not.
        Some(if value < base { base + value } else { value })
    };
    let (table, names, symbols) = (value(DT_GNU_HASH)?, value(DT_STRTAB)?, value(DT_SYMTAB)?);
    let hash = name
        .iter()
        .fold(5381u32, |h, b| h.wrapping_mul(33).wrapping_add((*b).into()));
    // nbuckets, symoffset, bloom_size, bloom_shift; the filter; the buckets; the chains.
    let buckets = half(inf, table)?;
    let first = half(inf, table + 4)?;
    let filter = half(inf, table + 8)?;
    let bucket_table = table + 16 + 8 * u64::from(filter);
    let chains = bucket_table + 4 * u64::from(buckets);
    let mut n = half(
        inf,
        bucket_table + 4 * u64::from(hash.checked_rem(buckets)?),
    )?;
    while n >= first {
        let chain = half(inf, chains + 4 * u64::from(n - first))?;
        if chain | 1 == hash | 1 {
            let [name_at, value, _] = words(inf, symbols + SYMBOL_SIZE * u64::from(n))?;
            let mut there = alloc::vec![0; name.len() + 1];
            let got = inf.read_memory(TargetAddr(names + (name_at & 0xffff_ffff)), &mut there);
            if got == there.len() && there.ends_with(&[0]) && there.starts_with(name) {
                return Some(base.wrapping_add(value));
            }
        }
        if chain & 1 != 0 {
            break;
        }
        n = n.checked_add(1)?;
    }
    None
}
