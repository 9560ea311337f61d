//! Where the program's allocator is: what it stores into memory that it has been given back is no store to what was there
//! before (`stub/handlers/src/unwind.rs`).
//!
//! Its functions are found by their names in the dynamic symbols of each file that is mapped, with the hash table that the
//! dynamic loader uses as well (`DT_GNU_HASH`). A file without them, such as a static executable, has none that is known.

use alloc::vec::Vec;

use super::functions::{DT_STRTAB, Object, block, bytes, u32_at, u32_of, u64_of};

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
/// Most symbols of one bucket that are examined, and how many of them one read covers.
const MOST: usize = 1000;
const SOME: usize = 8;
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
    bias: u64,
    /// Number of buckets, and their address.
    buckets: (u32, u64),
    /// The number of the first symbol that has a hash.
    first: u32,
}

impl Tables {
    /// `None`: the file has no dynamic symbols, or no hash table for them.
    pub fn of(object: &Object) -> Option<Tables> {
        let [texts, symbols, hashes] = object.dynamic([DT_STRTAB, DT_SYMTAB, DT_GNU_HASH]);
        let hashes = object.loaded(hashes?);
        // Number of buckets, index of the first hashed symbol, and number of eight-byte words before the buckets.
        let head: [u8; 16] = bytes(hashes)?;
        let words = u64::from(u32_of(&head, 8)?);
        let buckets = hashes.wrapping_add(16 + words * 8);
        Some(Tables {
            texts: object.loaded(texts?),
            symbols: object.loaded(symbols?),
            bias: object.bias,
            buckets: (u32_of(&head, 0)?, buckets),
            first: u32_of(&head, 4)?,
        })
    }

    /// The function of that name, `[start, end)`.
    pub fn find(&self, name: &[u8]) -> Option<(u64, u64)> {
        self.look_up(name, FUNCTION)
    }

    /// Address of the resolver that chooses the function of that name (STT_GNU_IFUNC).
    pub fn chooser(&self, name: &[u8]) -> Option<u64> {
        Some(self.look_up(name, CHOOSER)?.0)
    }

    fn look_up(&self, name: &[u8], kind: u8) -> Option<(u64, u64)> {
        let hash = name.iter().fold(5381u32, |hash, byte| {
            hash.wrapping_mul(33).wrapping_add((*byte).into())
        });
        let (count, buckets) = self.buckets;
        let chains = buckets.wrapping_add(u64::from(count) * 4);
        let bucket = u64::from(hash.checked_rem(count)?);
        let mut n = u32_at(buckets.wrapping_add(bucket * 4)).filter(|n| *n >= self.first)?;
        for _ in 0..MOST / SOME {
            let at = chains.wrapping_add(u64::from(n - self.first) * 4);
            for other in block(at, SOME * 4).chunks_exact(4) {
                let other = u32_of(other, 0)?;
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
        }
        None
    }

    /// The address of a function, if it has this name.
    fn symbol(&self, n: u32, name: &[u8], kind: u8) -> Option<(u64, u64)> {
        let at = self.symbols.wrapping_add(u64::from(n) * 24);
        let symbol: [u8; 24] = bytes(at)?;
        let text = self.texts.wrapping_add(u32_of(&symbol, 0)?.into());
        let said: [u8; LONGEST] = bytes(text)?;
        let end = said.iter().position(|byte| *byte == 0)?;
        let [_, _, _, _, info, _, low, high, ..] = symbol;
        let (value, size) = (u64_of(&symbol, 8)?, u64_of(&symbol, 16)?);
        let defined = info & 0xf == kind && [low, high] != [0, 0] && size > 0;
        let start = self.bias.wrapping_add(value);
        (defined && said.get(..end) == Some(name))
            .then(|| Some((start, start.checked_add(size)?)))?
    }
}
