//! Where the program's allocator is: what it stores into memory that it has been given back is no store to what was there
//! before (`stub/handlers/src/unwind.rs`).
//!
//! Its functions are found by their names in the dynamic symbols of each file that is mapped, with the hash table that the
//! dynamic loader uses as well (`DT_GNU_HASH`). A file without them, such as a static executable, has none that is known.

use alloc::vec::Vec;

use super::functions::{DT_STRTAB, Object, bytes, u32_at};

const NAMES: [&[u8]; 18] = [
    b"malloc",
    b"free",
    b"calloc",
    b"realloc",
    b"reallocarray",
    b"cfree",
    b"memalign",
    b"aligned_alloc",
    b"posix_memalign",
    b"valloc",
    b"pvalloc",
    b"malloc_trim",
    b"_Znwm",
    b"_Znam",
    b"_ZdlPv",
    b"_ZdaPv",
    b"_ZdlPvm",
    b"_ZdaPvm",
];
/// Kinds of symbols.
const FUNCTION: u8 = 2;
const CHOOSER: u8 = 10;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
/// So many symbols of one bucket are looked at.
const MOST: u32 = 1000;
const LONGEST: usize = 64;

/// The allocator's functions in a file, `[start, end)`.
pub fn functions(object: &Object) -> Vec<(u64, u64)> {
    let Some(tables) = Tables::of(object) else {
        return Vec::new();
    };
    NAMES.iter().filter_map(|name| tables.find(name)).collect()
}

/// The dynamic symbols of a file, by name.
pub struct Tables {
    texts: u64,
    symbols: u64,
    hashes: u64,
    bias: u64,
}

impl Tables {
    /// `None`: it has none, or none with a hash table.
    pub fn of(object: &Object) -> Option<Tables> {
        let [texts, symbols, hashes] = object.dynamic([DT_STRTAB, DT_SYMTAB, DT_GNU_HASH]);
        Some(Tables {
            texts: object.loaded(texts?),
            symbols: object.loaded(symbols?),
            hashes: object.loaded(hashes?),
            bias: object.bias,
        })
    }

    /// The function of that name, `[start, end)`.
    pub fn find(&self, name: &[u8]) -> Option<(u64, u64)> {
        self.look_up(name, FUNCTION)
    }

    /// Where the function is that chooses the one of that name (STT_GNU_IFUNC).
    pub fn chooser(&self, name: &[u8]) -> Option<u64> {
        Some(self.look_up(name, CHOOSER)?.0)
    }

    fn look_up(&self, name: &[u8], kind: u8) -> Option<(u64, u64)> {
        let hash = name.iter().fold(5381u32, |hash, byte| {
            hash.wrapping_mul(33).wrapping_add((*byte).into())
        });
        let at = |n: u64| self.hashes.wrapping_add(n);
        // How many buckets, the number of the first symbol, how many words of eight bytes before the buckets.
        let (count, first, words) = (u32_at(at(0))?, u32_at(at(4))?, u32_at(at(8))?);
        let buckets = at(16 + u64::from(words) * 8);
        let chains = buckets.wrapping_add(u64::from(count) * 4);
        let bucket = u64::from(hash.checked_rem(count)?);
        let mut n = u32_at(buckets.wrapping_add(bucket * 4)).filter(|n| *n >= first)?;
        for _ in 0..MOST {
            let other = u32_at(chains.wrapping_add(u64::from(n - first) * 4))?;
            if other | 1 == hash | 1
                && let Some(found) = self.symbol(n, name, kind)
            {
                return Some(found);
            }
            if other & 1 != 0 {
                return None;
            }
            n = n.checked_add(1)?;
        }
        None
    }

    /// Where a function is, if it has this name.
    fn symbol(&self, n: u32, name: &[u8], kind: u8) -> Option<(u64, u64)> {
        let at = self.symbols.wrapping_add(u64::from(n) * 24);
        let text = self.texts.wrapping_add(u32_at(at)?.into());
        let said: [u8; LONGEST] = bytes(text)?;
        let end = said.iter().position(|byte| *byte == 0)?;
        let [info, _, section @ ..] = bytes::<4>(at.wrapping_add(4))?;
        let value = u64::from_le_bytes(bytes(at.wrapping_add(8))?);
        let size = u64::from_le_bytes(bytes(at.wrapping_add(16))?);
        let defined = info & 0xf == kind && section != [0, 0] && size > 0;
        let start = self.bias.wrapping_add(value);
        (defined && said.get(..end) == Some(name))
            .then(|| Some((start, start.checked_add(size)?)))?
    }
}
