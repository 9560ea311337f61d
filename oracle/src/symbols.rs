//! The symbols of an ELF file, as far as the examples need them.

use anyhow::{Context, Result};
use object::read::elf::ElfFile64;
use object::{Object, ObjectKind, ObjectSymbol, SymbolKind};
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
        let file = ElfFile64::<object::Endianness>::parse(&*file).context("not an ELF file")?;
        let mut all = HashMap::new();
        // Objects and functions that are defined here.
        let wanted = |kind| matches!(kind, SymbolKind::Data | SymbolKind::Text);
        for symbol in file.symbols() {
            if wanted(symbol.kind()) && !symbol.is_undefined() {
                let found = Symbol {
                    addr: symbol.address(),
                    size: symbol.size(),
                };
                let name = String::from_utf8_lossy(symbol.name_bytes()?);
                all.entry(name.into_owned()).or_insert(found);
            }
        }
        Ok(Symbols {
            moves: file.kind() == ObjectKind::Dynamic,
            all,
        })
    }

    pub fn find(&self, name: &str) -> Option<Symbol> {
        self.all.get(name).copied()
    }
}
