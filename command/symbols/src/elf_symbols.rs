//! Symbol tables of ELF files.

use crate::demangle::demangle;
use crate::elf::Elf;
use crate::index::{is_plain, last_component};
use crate::meter::Work;
use memchr::memmem;
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SymbolSort {
    Data,
    Function,
    ThreadLocal,
    /// Without a type in the symbol table (assembler labels, `_end`).
    Untyped,
}

#[derive(Clone, Copy, Debug)]
pub struct ElfSymbol {
    pub name: &'static str,
    pub addr: u64,
    pub len: u64,
    pub sort: SymbolSort,
    pub global: bool,
}

/// Whether the dynamic symbol table defines a variable of this name. That table is smaller than the others.
pub fn exports(elf: &Elf, name: &str) -> bool {
    elf.dynamic_symbols().any(|symbol| {
        let is_variable = symbol.kind() != SymbolKind::Text && symbol.is_definition();
        is_variable && symbol.name() == Ok(name)
    })
}

/// The symbol table of one object, by name and by address.
#[derive(Default)]
pub struct ElfSymbols {
    /// Sorted by address.
    all: Vec<ElfSymbol>,
    /// Bounds of sections. A symbol without a size extends to the end of its section at most.
    sections: Vec<(u64, u64)>,
    by_name: OnceCell<HashMap<Cow<'static, str>, Vec<u32>>>,
    /// Results of earlier searches by name.
    searched: RefCell<HashMap<String, Vec<ElfSymbol>>>,
}

/// Number of searches by name before the table of all names is built.
const MOST_SEARCHES: usize = 16;

impl ElfSymbol {
    /// The name in the file without its version, and the demangled name if `worth` accepts the mangled one.
    fn names(&self, worth: impl Fn(&str) -> bool) -> impl Iterator<Item = Cow<'static, str>> {
        let name = self.name;
        let version =
            memchr::memchr(b'@', name.as_bytes()).map(|at| (&name[..at], &name[at + 1..]));
        let version = version.filter(|(_, v)| *v != "plt");
        let may_be_mangled = self.sort != SymbolSort::Function && worth(name);
        let readable = may_be_mangled.then(|| demangle(name));
        let readable = readable.filter(|readable| readable != name);
        [Cow::Borrowed(name)]
            .into_iter()
            .chain(version.map(|(plain, _)| Cow::Borrowed(plain)))
            .chain(readable.map(Cow::Owned))
    }
}

impl ElfSymbols {
    /// The symbols of an object. A separate debug file contains the symbol table that was stripped from it.
    pub fn of(elf: &Elf, separate: Option<&Elf>) -> ElfSymbols {
        let mut symbols = ElfSymbols::new(elf);
        symbols.all.extend(plt_symbols(elf));
        if let Some(file) = separate {
            symbols.extend(ElfSymbols::new(file));
        }
        symbols.finish();
        symbols
    }

    fn new(elf: &Elf) -> ElfSymbols {
        let mut all = Vec::new();
        let sections = elf
            .sections()
            .filter(|s| s.address() > 0)
            .map(|s| (s.address(), s.address().saturating_add(s.size())));
        let sections = sections.collect();
        for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
            let sort = match symbol.kind() {
                SymbolKind::Text => SymbolSort::Function,
                SymbolKind::Data => SymbolSort::Data,
                SymbolKind::Tls => SymbolSort::ThreadLocal,
                SymbolKind::Label | SymbolKind::Unknown => SymbolSort::Untyped,
                _ => continue,
            };
            let Ok(name) = symbol.name() else { continue };
            if name.is_empty() || !symbol.is_definition() && symbol.section_index().is_none() {
                continue;
            }
            all.push(ElfSymbol {
                name,
                addr: symbol.address(),
                len: symbol.size(),
                sort,
                global: symbol.is_global(),
            });
        }
        ElfSymbols {
            all,
            sections,
            by_name: OnceCell::new(),
            searched: RefCell::default(),
        }
    }

    fn extend(&mut self, other: ElfSymbols) {
        self.all.extend(other.all);
    }

    fn finish(&mut self) {
        // At one address: symbols with a size before those without, global before local.
        self.all.sort_by_key(|s| {
            (
                s.addr,
                s.sort == SymbolSort::Untyped,
                s.len == 0,
                !s.global,
                s.name.len(),
                s.name,
            )
        });
        self.all
            .dedup_by(|a, b| a.addr == b.addr && a.name == b.name && a.sort == b.sort);
    }

    /// All symbols of this name, mangled or demangled, functions included.
    pub fn find(&self, name: &str) -> Vec<ElfSymbol> {
        if self.by_name.get().is_none() {
            let mut searched = self.searched.borrow_mut();
            if let Some(known) = searched.get(name) {
                return known.clone();
            }
            if searched.len() < MOST_SEARCHES {
                let found = self.search(name);
                searched.insert(name.to_string(), found.clone());
                return found;
            }
        }
        let index = self.by_name.get_or_init(|| {
            let _work = Work::through(self.all.len() as u64);
            let mut map: HashMap<Cow<'static, str>, Vec<u32>> = HashMap::new();
            for (i, symbol) in self.all.iter().enumerate() {
                for name in symbol.names(|_| true) {
                    map.entry(name).or_default().push(i as u32);
                }
            }
            map
        });
        index
            .get(name)
            .into_iter()
            .flatten()
            .map(|i| self.all[*i as usize])
            .collect()
    }

    /// As [`ElfSymbols::find`], without the table of all names, which takes longer than a few searches.
    fn search(&self, name: &str) -> Vec<ElfSymbol> {
        let _work = Work::through(self.all.len() as u64);
        // A mangled name contains the plain one.
        let plain = Some(last_component(name)).filter(|plain| is_plain(plain));
        let finder = memmem::Finder::new(plain.unwrap_or(""));
        let perhaps = |mangled: &str| finder.find(mangled.as_bytes()).is_some();
        let has_name = |symbol: &&ElfSymbol| symbol.names(perhaps).any(|known| known == name);
        self.all.iter().filter(has_name).copied().collect()
    }

    /// The function that contains `addr`, or the nearest label before it in the same section.
    pub fn function_at(&self, addr: u64) -> Option<&ElfSymbol> {
        let end = self.all.partition_point(|s| s.addr <= addr);
        let mut nearest = None;
        let section = self
            .sections
            .iter()
            .find(|(from, to)| (*from..*to).contains(&addr));
        let floor = section.map_or(0, |(from, _)| *from);
        for symbol in self.all[..end]
            .iter()
            .rev()
            .take(64)
            .take_while(|s| s.addr >= floor)
        {
            match symbol.sort {
                SymbolSort::Function if symbol.len == 0 || addr - symbol.addr < symbol.len => {
                    // The first name of an address (see `finish`) is the best one.
                    let first = self.all.partition_point(|s| s.addr < symbol.addr);
                    return self.all[first..end]
                        .iter()
                        .find(|s| s.sort == SymbolSort::Function);
                }
                SymbolSort::Function => return nearest,
                SymbolSort::Untyped if nearest.is_none() => nearest = Some(symbol),
                _ => {}
            }
        }
        nearest
    }

    /// The distance from `addr`, a label without a size, to the next symbol or the end of its section.
    pub fn extent_at(&self, addr: u64) -> u64 {
        let after = self.all.partition_point(|s| s.addr <= addr);
        let next = self.all.get(after).map(|s| s.addr);
        let section = self
            .sections
            .iter()
            .find(|(from, to)| (*from..*to).contains(&addr));
        let ends = next.into_iter().chain(section.map(|s| s.1));
        ends.min().unwrap_or(addr) - addr
    }

    /// The data symbol that begins at `addr` or contains it.
    pub fn data_at(&self, addr: u64) -> Option<&ElfSymbol> {
        let end = self.all.partition_point(|s| s.addr <= addr);
        self.all[..end]
            .iter()
            .rev()
            .take(64)
            .find(|s| s.sort == SymbolSort::Data && addr - s.addr < s.len)
    }

    /// Variables, by address.
    pub fn data(&self) -> impl Iterator<Item = &ElfSymbol> {
        self.all.iter().filter(|s| s.sort == SymbolSort::Data)
    }

    pub fn iter(&self) -> impl Iterator<Item = &ElfSymbol> {
        self.all.iter()
    }
}

/// Names for the stubs of the procedure linkage table, `puts@plt`, as debuggers show them. Stub N belongs to relocation
/// N of `.rela.plt`. `.plt` itself begins with one entry for the linker.
fn plt_symbols(elf: &Elf) -> Vec<ElfSymbol> {
    const ENTRY: u64 = 16;
    let Some(relocations) = elf.section_by_name(".rela.plt").and_then(|s| s.data().ok()) else {
        return Vec::new();
    };
    let (stubs, first) = match (elf.section_by_name(".plt.sec"), elf.section_by_name(".plt")) {
        (Some(stubs), _) => (stubs, 0),
        (None, Some(stubs)) => (stubs, 1),
        (None, None) => return Vec::new(),
    };
    let names = elf.elf_dynamic_symbol_table();
    let symbol = |(i, relocation): (usize, &[u8])| {
        // Elf64_Rela: offset, info (symbol number in the upper half), addend.
        let index = u32::from_le_bytes(relocation.get(12..16)?.try_into().ok()?);
        let symbol = names.symbol(object::SymbolIndex(index as usize)).ok()?;
        let name = std::str::from_utf8(names.symbol_name(elf.endian(), symbol).ok()?).ok()?;
        let at = (i as u64 + first) * ENTRY;
        if name.is_empty() || stubs.size().saturating_sub(at) < ENTRY {
            return None;
        }
        let name: &'static str = Box::leak(format!("{name}@plt").into_boxed_str());
        let addr = stubs.address().wrapping_add(at);
        Some(ElfSymbol {
            name,
            addr,
            len: ENTRY,
            sort: SymbolSort::Function,
            global: false,
        })
    };
    relocations
        .chunks_exact(24)
        .enumerate()
        .filter_map(symbol)
        .collect()
}
