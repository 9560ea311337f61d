//! The symbols of an ELF file, as far as the examples need them.

use anyhow::{Context, Result, ensure};
use std::collections::HashMap;
use std::path::Path;

#[derive(Clone, Copy)]
pub struct Symbol {
    pub addr: u64,
    pub size: u64,
}

pub struct Symbols {
    /// Position-independent.
    pub moves: bool,
    all: HashMap<String, Symbol>,
}

impl Symbols {
    pub fn read(path: &Path) -> Result<Symbols> {
        let file = std::fs::read(path)
            .with_context(|| format!("cannot read {} (make check builds it)", path.display()))?;
        ensure!(file.starts_with(b"\x7fELF\x02"), "not an ELF file");
        let number = |at: u64, len: usize| -> u64 {
            let mut bytes = [0; 8];
            if let Some(from) = file.get(at as usize..at as usize + len) {
                bytes[..len].copy_from_slice(from);
            }
            u64::from_le_bytes(bytes)
        };
        let (sections, size, count) = (number(40, 8), number(58, 2), number(60, 2));
        let section = |n: u64| sections + n * size;
        let mut all = HashMap::new();
        for n in 0..count {
            const SYMTAB: u64 = 2;
            if number(section(n) + 4, 4) != SYMTAB {
                continue;
            }
            let (at, len) = (number(section(n) + 24, 8), number(section(n) + 32, 8));
            let names = number(section(number(section(n) + 40, 4)) + 24, 8);
            for s in (at..at + len).step_by(24) {
                let name = (names + number(s, 4)) as usize;
                let text = file.get(name..).unwrap_or(&[]).split(|b| *b == 0).next();
                let name = String::from_utf8_lossy(text.unwrap_or(&[])).into_owned();
                // Objects and functions that are defined here.
                if matches!(number(s + 4, 1) & 15, 1 | 2) && number(s + 6, 2) != 0 {
                    let found = Symbol {
                        addr: number(s + 8, 8),
                        size: number(s + 16, 8),
                    };
                    all.entry(name).or_insert(found);
                }
            }
        }
        Ok(Symbols {
            moves: number(16, 2) == 3,
            all,
        })
    }

    pub fn find(&self, name: &str) -> Option<Symbol> {
        self.all.get(name).copied()
    }
}
