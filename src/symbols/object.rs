//! One ELF file: segments, symbols, and where its debug information lives.
//!
//! Files are read once and kept until the command ends (`Box::leak`): every name, type and line
//! table that is handed out borrows from them, and a program maps the same few objects all the time.

use super::index::Index;
use object::elf::{FileHeader64, PF_X, PT_LOAD, PT_TLS};
use object::read::elf::{ElfFile, FileHeader, ProgramHeader};
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol, SymbolKind};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub type Slice = gimli::EndianSlice<'static, gimli::LittleEndian>;
pub type Dwarf = gimli::Dwarf<Slice>;
pub type Elf = ElfFile<'static, FileHeader64<LittleEndian>>;

/// Where separate debug information is installed.
const DEBUG_ROOT: &str = "/usr/lib/debug";

pub struct ObjectFile {
    /// The path that the program knows it by.
    pub path: PathBuf,
    elf: Elf,
    pub segments: Vec<Segment>,
    pub tls: Option<Tls>,
    /// Position independent: its addresses are relative to where it was loaded.
    pub relocatable: bool,
    debug: OnceCell<Debug>,
    symbols: OnceCell<ElfSymbols>,
}

/// A PT_LOAD entry.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub offset: u64,
    pub vaddr: u64,
    pub file_len: u64,
    pub mem_len: u64,
    pub executable: bool,
}

impl Segment {
    /// Does it hold this address (as linked)?
    pub fn contains(&self, addr: u64) -> bool {
        addr.checked_sub(self.vaddr)
            .is_some_and(|offset| offset < self.mem_len)
    }
}

/// The PT_TLS entry.
#[derive(Clone, Copy, Debug)]
pub struct Tls {
    pub mem_len: u64,
    pub align: u64,
}

/// Debug information of an object, its own or from a separate file.
pub struct Debug {
    /// Separate file that was found, if one was needed.
    pub file: Option<PathBuf>,
    file_elf: Option<Elf>,
    pub info: Option<DebugInfo>,
}

pub struct DebugInfo {
    pub dwarf: Arc<Dwarf>,
    pub lines: Option<addr2line::Context<Slice>>,
    index: OnceCell<Index>,
}

impl ObjectFile {
    pub fn open(path: &Path) -> Result<ObjectFile, String> {
        let data = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        ObjectFile::parse(path, data)
    }

    /// `path` is what it is called; `data` may come from elsewhere (the vDSO, another root).
    pub fn parse(path: &Path, data: Vec<u8>) -> Result<ObjectFile, String> {
        let elf = parse_elf(data).map_err(|e| format!("{}: {e}", path.display()))?;
        let endian = elf.endian();
        let mut segments = Vec::new();
        let mut tls = None;
        for header in elf.elf_program_headers() {
            match header.p_type(endian) {
                PT_LOAD => segments.push(Segment {
                    offset: header.p_offset(endian),
                    vaddr: header.p_vaddr(endian),
                    file_len: header.p_filesz(endian),
                    mem_len: header.p_memsz(endian),
                    executable: header.p_flags(endian) & PF_X != 0,
                }),
                PT_TLS => {
                    tls = Some(Tls {
                        mem_len: header.p_memsz(endian),
                        align: header.p_align(endian).max(1),
                    })
                }
                _ => {}
            }
        }
        let relocatable = elf.elf_header().e_type(endian) == object::elf::ET_DYN;
        Ok(ObjectFile {
            path: path.into(),
            elf,
            segments,
            tls,
            relocatable,
            debug: OnceCell::new(),
            symbols: OnceCell::new(),
        })
    }

    /// The file's own name, without its folder.
    pub fn name(&self) -> &str {
        self.path
            .file_name()
            .and_then(|n| n.to_str())
            .unwrap_or("?")
    }

    /// The code from an address (as linked) to the end of its segment, as the file has it.
    pub fn code(&self, addr: u64) -> &[u8] {
        let holds = |s: &&Segment| s.executable && s.contains(addr);
        let Some(s) = self.segments.iter().find(holds) else {
            return &[];
        };
        let (from, to) = (
            s.offset + (addr - s.vaddr),
            s.offset.saturating_add(s.file_len),
        );
        let all: &[u8] = self.elf.data();
        all.get(from as usize..to as usize).unwrap_or(&[])
    }

    pub fn debug(&self) -> &Debug {
        self.debug.get_or_init(|| self.find_debug())
    }

    pub fn index(&self) -> Option<&Index> {
        let info = self.debug().info.as_ref()?;
        Some(info.index.get_or_init(|| Index::build(&info.dwarf)))
    }

    pub fn symbols(&self) -> &ElfSymbols {
        self.symbols.get_or_init(|| {
            // A separate debug file repeats the symbol table that was stripped from the object.
            let mut symbols = ElfSymbols::new(&self.elf);
            symbols.all.extend(plt_symbols(&self.elf));
            if let Some(file) = &self.debug().file_elf {
                symbols.extend(ElfSymbols::new(file));
            }
            symbols.finish();
            symbols
        })
    }

    fn find_debug(&self) -> Debug {
        if has_dwarf(&self.elf) {
            return Debug {
                file: None,
                file_elf: None,
                info: load_dwarf(&self.elf, &self.path),
            };
        }
        for candidate in self.debug_candidates() {
            let Ok(data) = std::fs::read(&candidate.path) else {
                continue;
            };
            if candidate
                .crc
                .is_some_and(|crc| crc32fast::hash(&data) != crc)
            {
                continue;
            }
            let Ok(elf) = parse_elf(data) else { continue };
            if candidate.crc.is_none()
                && elf.build_id().ok().flatten() != self.elf.build_id().ok().flatten()
            {
                continue;
            }
            let info = if has_dwarf(&elf) {
                load_dwarf(&elf, &candidate.path)
            } else {
                None
            };
            return Debug {
                file: Some(candidate.path),
                file_elf: Some(elf),
                info,
            };
        }
        Debug {
            file: None,
            file_elf: None,
            info: None,
        }
    }

    fn debug_candidates(&self) -> Vec<Candidate> {
        let mut found = Vec::new();
        if let Ok(Some(id)) = self.elf.build_id() {
            if let Some(path) = build_id_path(id) {
                found.push(Candidate { path, crc: None });
            }
        }
        if let Ok(Some((name, crc))) = self.elf.gnu_debuglink() {
            let name = Path::new(std::str::from_utf8(name).unwrap_or(""));
            let real = std::fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
            let dir = real.parent().unwrap_or(Path::new("/"));
            let mut push = |path: PathBuf| {
                if path != real && !name.as_os_str().is_empty() {
                    found.push(Candidate {
                        path,
                        crc: Some(crc),
                    });
                }
            };
            push(dir.join(name));
            push(dir.join(".debug").join(name));
            push(
                Path::new(DEBUG_ROOT)
                    .join(dir.strip_prefix("/").unwrap_or(dir))
                    .join(name),
            );
        }
        found
    }

    /// Offset of a thread-local variable from the thread pointer, for the executable itself (x86-64
    /// psABI, TLS variant II: the executable's block ends at the thread pointer).
    pub fn tls_offset_of_executable(&self, offset: u64) -> Option<i64> {
        let tls = self.tls?;
        let block = tls.mem_len.checked_next_multiple_of(tls.align)?;
        (offset as i64).checked_sub(block as i64)
    }
}

struct Candidate {
    path: PathBuf,
    crc: Option<u32>,
}

fn build_id_path(id: &[u8]) -> Option<PathBuf> {
    use std::fmt::Write;
    let (first, rest) = id.split_first()?;
    let mut path = format!("{DEBUG_ROOT}/.build-id/{first:02x}/");
    for byte in rest {
        let _ = write!(path, "{byte:02x}");
    }
    Some(PathBuf::from(path + ".debug"))
}

fn parse_elf(data: Vec<u8>) -> Result<Elf, String> {
    if data.get(..4) != Some(b"\x7fELF") {
        return Err("not an ELF file".into());
    }
    if data.get(4) != Some(&2) {
        return Err("a 32-bit program; only 64-bit x86 programs can be watched".into());
    }
    Elf::parse(Box::leak(data.into_boxed_slice()) as &'static [u8]).map_err(|e| e.to_string())
}

fn has_dwarf(elf: &Elf) -> bool {
    // `only-keep-debug` leaves sections without contents in the stripped file's twin.
    elf.section_by_name(".debug_info")
        .is_some_and(|s| s.uncompressed_data().is_ok_and(|d| !d.is_empty()))
}

fn section(elf: &Elf, name: &str) -> Slice {
    let data: &'static [u8] = match elf
        .section_by_name(name)
        .and_then(|s| s.uncompressed_data().ok())
    {
        Some(Cow::Borrowed(data)) => data,
        Some(Cow::Owned(data)) => Box::leak(data.into_boxed_slice()),
        None => &[],
    };
    Slice::new(data, gimli::LittleEndian)
}

fn load_dwarf(elf: &Elf, path: &Path) -> Option<DebugInfo> {
    let load = |id: gimli::SectionId| Ok::<_, gimli::Error>(section(elf, id.name()));
    let mut dwarf = Dwarf::load(load).ok()?;
    // What several packages' debug files share was moved to a supplementary file by dwz.
    if let Ok(Some((name, id))) = elf.gnu_debugaltlink() {
        let name = Path::new(std::str::from_utf8(name).unwrap_or(""));
        let beside = std::fs::canonicalize(path)
            .unwrap_or(path.into())
            .parent()
            .map(|dir| dir.join(name));
        for file in beside.into_iter().chain(build_id_path(id)) {
            if let Some(sup) = std::fs::read(file).ok().and_then(|d| parse_elf(d).ok()) {
                let _ = dwarf.load_sup(|id| Ok::<_, gimli::Error>(section(&sup, id.name())));
                break;
            }
        }
    }
    dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
    let dwarf = Arc::new(dwarf);
    let lines = addr2line::Context::from_arc_dwarf(dwarf.clone()).ok();
    Some(DebugInfo {
        dwarf,
        lines,
        index: OnceCell::new(),
    })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SymbolSort {
    Data,
    Function,
    ThreadLocal,
    /// No type in the symbol table (assembler labels, `_end`).
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

/// The symbol table of one object, by name and by address.
#[derive(Default)]
pub struct ElfSymbols {
    /// By address.
    all: Vec<ElfSymbol>,
    /// Where sections lie; a symbol without a length ends with its section at the latest.
    sections: Vec<(u64, u64)>,
    by_name: OnceCell<HashMap<Cow<'static, str>, Vec<u32>>>,
}

impl ElfSymbols {
    fn new(elf: &Elf) -> ElfSymbols {
        let mut all = Vec::new();
        let in_memory =
            |s: &object::read::elf::ElfSection<FileHeader64<LittleEndian>>| s.address() > 0;
        let sections = elf
            .sections()
            .filter(in_memory)
            .map(|s| (s.address(), s.address().saturating_add(s.size())));
        let sections = sections.collect();
        let tables = [
            elf.symbols().collect::<Vec<_>>(),
            elf.dynamic_symbols().collect(),
        ];
        for symbol in tables.into_iter().flatten() {
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
        }
    }

    fn extend(&mut self, other: ElfSymbols) {
        self.all.extend(other.all);
    }

    fn finish(&mut self) {
        // At one address: sized before sizeless, global before local.
        self.all.sort_by(|a, b| {
            (
                a.addr,
                a.sort == SymbolSort::Untyped,
                a.len == 0,
                !a.global,
                a.name.len(),
                a.name,
            )
                .cmp(&(
                    b.addr,
                    b.sort == SymbolSort::Untyped,
                    b.len == 0,
                    !b.global,
                    b.name.len(),
                    b.name,
                ))
        });
        self.all
            .dedup_by(|a, b| a.addr == b.addr && a.name == b.name && a.sort == b.sort);
    }

    /// Everything of this name, as written in the file or demangled, functions included.
    pub fn find(&self, name: &str) -> Vec<ElfSymbol> {
        let index = self.by_name.get_or_init(|| {
            let mut map: HashMap<Cow<'static, str>, Vec<u32>> = HashMap::new();
            for (i, symbol) in self.all.iter().enumerate() {
                let mut add = |name| map.entry(name).or_default().push(i as u32);
                add(Cow::Borrowed(symbol.name));
                let version = symbol.name.split_once('@').filter(|(_, v)| *v != "plt");
                if let Some((plain, _)) = version {
                    add(Cow::Borrowed(plain));
                }
                if symbol.sort != SymbolSort::Function {
                    let readable = demangle(symbol.name);
                    if readable != symbol.name {
                        add(Cow::Owned(readable));
                    }
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

    /// The function that holds `addr`, or the nearest label before it in the same section.
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
                    // The first name of that address (see `finish`) is the best one.
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

    /// How far it is from a label without a length to the next one or the end of its section.
    pub fn room_at(&self, addr: u64) -> u64 {
        let after = self.all.partition_point(|s| s.addr <= addr);
        let next = self.all.get(after).map(|s| s.addr);
        let section = self
            .sections
            .iter()
            .find(|(from, to)| (*from..*to).contains(&addr));
        let ends = next.into_iter().chain(section.map(|s| s.1));
        ends.min().unwrap_or(addr) - addr
    }

    /// The data symbol that begins at `addr`, or holds it.
    pub fn data_at(&self, addr: u64) -> Option<&ElfSymbol> {
        let end = self.all.partition_point(|s| s.addr <= addr);
        self.all[..end]
            .iter()
            .rev()
            .take(64)
            .find(|s| s.sort == SymbolSort::Data && addr - s.addr < s.len)
    }

    pub fn iter(&self) -> impl Iterator<Item = &ElfSymbol> {
        self.all.iter()
    }
}

/// Names for the stubs of the procedure linkage table, `puts@plt`, as debuggers show them: stub N
/// belongs to relocation N of `.rela.plt`. In `.plt` itself, one entry for the linker comes first.
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

/// C++ and Rust names as a programmer writes them. Others stay: to a demangler, `f` is `float`.
pub fn demangle(name: &str) -> String {
    match name.starts_with("_Z") || name.starts_with("_R") {
        true => addr2line::demangle_auto(Cow::Borrowed(name), None).into_owned(),
        false => name.to_string(),
    }
}
