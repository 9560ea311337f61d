//! One ELF file: segments, symbols, and where its debug information lives.
//!
//! What is read of files is kept until the command ends ([`Image`]): every name, type and line table that is
//! handed out borrows from it, and a program maps the same few objects all the time.
//!
//! Files are other people's. Where they come from is the business of [`Source`]; what reading them may cost, of
//! [`super::meter`].

use super::demangle::demangle;
use super::image::Image;
use super::index::Index;
use super::meter::{Slice, Work};
use crate::foreign::files::{self, Opened};
use gimli::{Reader, Section};
use object::elf::{FileHeader64, PF_X, PT_LOAD, PT_TLS, SHT_STRTAB};
use object::read::elf::{ElfFile, FileHeader, ProgramHeader, SectionHeader};
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol, ReadRef, SymbolKind};
use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

pub type Dwarf = gimli::Dwarf<Slice>;
pub type Elf = ElfFile<'static, FileHeader64<LittleEndian>, &'static Image>;

/// Where separate debug information is installed.
const DEBUG_ROOT: &str = "/usr/lib/debug";

/// The longest build ID; they have twenty bytes as a rule.
const MOST_BUILD_ID: usize = 64;
/// Attributes of one kind of entry; compilers write some thirty at most.
const MOST_ATTRIBUTES: usize = 256;

/// Who names files: an object names where its debug information is.
#[derive(Clone, Debug)]
pub enum Source {
    /// The user of `ulpf`.
    User,
    /// A program: it may be hostile.
    Process(files::Process),
}

impl Source {
    /// A file by the name that the object's own path goes by.
    fn open(&self, path: &Path) -> std::io::Result<Opened> {
        match self {
            Source::User => files::ours(path),
            Source::Process(process) => process.named(path),
        }
    }

    /// A file that is installed here; its build ID proves that it belongs to the object.
    fn open_installed(&self, path: &Path) -> std::io::Result<Opened> {
        match self {
            Source::User => files::ours(path),
            Source::Process(process) => match process.named(path) {
                Ok(file) => Ok(file),
                // The program may live in another root.
                Err(_) => process.installed(path),
            },
        }
    }

    /// Where the file really is: debug information lies beside that. The kernel tells of mapped files so.
    fn real(&self, path: &Path) -> PathBuf {
        match self {
            Source::User => std::fs::canonicalize(path).unwrap_or_else(|_| path.into()),
            Source::Process(process) => process.below_its_root(path),
        }
    }
}

pub struct ObjectFile {
    /// The path that the program knows it by.
    pub path: PathBuf,
    source: Source,
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
    /// All sections together, in bytes.
    pub size: u64,
    pub lines: Option<addr2line::Context<Slice>>,
    index: OnceCell<Index>,
}

impl ObjectFile {
    /// A file that the user of `ulpf` names.
    pub fn open(path: &Path) -> Result<ObjectFile, String> {
        let file = files::ours(path).map_err(|e| format!("{}: {e}", path.display()))?;
        ObjectFile::of(path, Image::of_file(file), Source::User)
    }

    /// A file that a program has mapped; `path` is what the program calls it.
    pub fn mapped(path: &Path, file: Opened, by: &files::Process) -> Result<ObjectFile, String> {
        ObjectFile::of(path, Image::of_file(file), Source::Process(by.clone()))
    }

    #[cfg(any(test, fuzzing))]
    pub fn parse(path: &Path, data: Vec<u8>) -> Result<ObjectFile, String> {
        ObjectFile::of(path, Image::of_bytes(data), Source::User)
    }

    fn of(path: &Path, image: Image, source: Source) -> Result<ObjectFile, String> {
        let _work = Work::look_up(0);
        let elf = parse_elf(image).map_err(|e| format!("{}: {e}", path.display()))?;
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
            source,
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

    /// Fills `to` with the code from an address (as linked), as the file has it; how many bytes there are.
    pub fn code(&self, addr: u64, to: &mut [u8]) -> usize {
        let holds = |s: &&Segment| s.executable && s.contains(addr);
        let Some(s) = self.segments.iter().find(holds) else {
            return 0;
        };
        let within = addr - s.vaddr;
        let len = s.file_len.saturating_sub(within).min(to.len() as u64);
        let from = s.offset.saturating_add(within);
        self.elf.data().copy(from, &mut to[..len as usize])
    }

    /// Why something of the file, or of its debug information, was not read.
    pub fn trouble(&self) -> Option<String> {
        let debug = self.debug.get();
        let separate = debug.and_then(|d| d.file_elf.as_ref());
        let images = [Some(&self.elf), separate].into_iter().flatten();
        images.into_iter().find_map(|elf| elf.data().trouble())
    }

    pub fn debug(&self) -> &Debug {
        self.debug.get_or_init(|| self.find_debug())
    }

    pub fn index(&self) -> Option<&Index> {
        let info = self.debug().info.as_ref()?;
        Some(info.index.get_or_init(|| {
            let work = Work::through(info.size);
            let index = Index::build(&info.dwarf);
            if work.is_over() {
                let why = || "its debug information takes too long to read".into();
                self.elf.data().note(why);
            }
            index
        }))
    }

    pub fn symbols(&self) -> &ElfSymbols {
        self.symbols.get_or_init(|| {
            let separate = &self.debug().file_elf;
            let _work = Work::through(self.elf.data().len().unwrap_or(0));
            // A separate debug file repeats the symbol table that was stripped from the object.
            let mut symbols = ElfSymbols::new(&self.elf);
            symbols.all.extend(plt_symbols(&self.elf));
            if let Some(file) = separate {
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
                info: load_dwarf(&self.elf, &self.source, &self.real()),
            };
        }
        for candidate in self.debug_candidates() {
            let opened = match candidate.crc {
                None => self.source.open_installed(&candidate.path),
                Some(_) => self.source.open(&candidate.path),
            };
            // Most of them are not there; why another one is not read is worth to be told.
            let trouble = |why: String| {
                let path = candidate.path.display();
                self.elf.data().note(|| format!("{path}: {why}"));
            };
            let file = match opened {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => {
                    trouble(error.to_string());
                    continue;
                }
            };
            let elf = match parse_elf(Image::of_file(file)) {
                Ok(elf) => elf,
                Err(why) => {
                    trouble(why);
                    continue;
                }
            };
            let belongs = match candidate.crc {
                None => elf.build_id().ok().flatten() == self.elf.build_id().ok().flatten(),
                crc => elf.data().crc() == crc,
            };
            if !belongs {
                elf.data().trouble().map(trouble);
                continue;
            }
            let info = match has_dwarf(&elf) {
                true => load_dwarf(&elf, &self.source, &candidate.path),
                false => None,
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

    fn real(&self) -> PathBuf {
        self.source.real(&self.path)
    }

    fn debug_candidates(&self) -> Vec<Candidate> {
        let mut found = Vec::new();
        if let Ok(Some(id)) = self.elf.build_id()
            && let Some(path) = build_id_path(id)
        {
            found.push(Candidate { path, crc: None });
        }
        if let Ok(Some((name, crc))) = self.elf.gnu_debuglink() {
            let name = Path::new(std::str::from_utf8(name).unwrap_or(""));
            // The name of a file, in folders that are known: it does not say where to look.
            if !files::is_plain_name(name) {
                return found;
            }
            let real = self.real();
            let dir = real.parent().unwrap_or(Path::new("/"));
            let mut push = |path: PathBuf| {
                if path != real {
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
    let (first, rest) = id.split_first().filter(|_| id.len() <= MOST_BUILD_ID)?;
    let mut path = format!("{DEBUG_ROOT}/.build-id/{first:02x}/");
    for byte in rest {
        let _ = write!(path, "{byte:02x}");
    }
    Some(PathBuf::from(path + ".debug"))
}

fn parse_elf(image: Image) -> Result<Elf, String> {
    let mut start = [0; 5];
    if image.copy(0, &mut start) < start.len() || &start[..4] != b"\x7fELF" {
        return Err("not an ELF file".into());
    }
    if start[4] != 2 {
        return Err("a 32-bit program; only 64-bit x86 programs can be watched".into());
    }
    let image: &'static Image = Box::leak(Box::new(image));
    let read = || {
        let header = FileHeader64::<LittleEndian>::parse(image)?;
        // Names are looked up one by one; their tables are read whole.
        for section in header.sections(header.endian()?, image)?.iter() {
            if section.sh_type(LittleEndian) == SHT_STRTAB {
                let (offset, size) = (
                    section.sh_offset(LittleEndian),
                    section.sh_size(LittleEndian),
                );
                let _ = image.read_bytes_at(offset, size);
            }
        }
        Elf::parse(image)
    };
    read().map_err(|e: object::Error| image.trouble().unwrap_or_else(|| e.to_string()))
}

fn contents(elf: &Elf, name: &str) -> Option<&'static [u8]> {
    let section = elf.section_by_name(name)?;
    elf.data().unpacked(section.compressed_data().ok()?)
}

fn has_dwarf(elf: &Elf) -> bool {
    // `only-keep-debug` leaves sections without contents in the stripped file's twin.
    elf.section_by_name(".debug_info")
        .is_some_and(|s| s.compressed_data().is_ok_and(|d| !d.data.is_empty()))
}

/// `path` is where the file with the debug information is.
fn load_dwarf(elf: &Elf, source: &Source, path: &Path) -> Option<DebugInfo> {
    let size = std::cell::Cell::new(0u64);
    let load = |elf: &Elf, id: gimli::SectionId| {
        let data = contents(elf, id.name()).unwrap_or(&[]);
        size.set(size.get() + data.len() as u64);
        Ok::<_, gimli::Error>(Slice::new(data))
    };
    let mut dwarf = Dwarf::load(|id| load(elf, id)).ok()?;
    // What several packages' debug files share was moved to a supplementary file by dwz.
    if let Ok(Some((name, id))) = elf.gnu_debugaltlink() {
        let name = Path::new(std::str::from_utf8(name).unwrap_or(""));
        let beside = path
            .parent()
            .and_then(|dir| installed_name(&dir.join(name)));
        for file in beside.into_iter().chain(build_id_path(id)) {
            let Ok(file) = source.open_installed(&file) else {
                continue;
            };
            let sup = parse_elf(Image::of_file(file)).ok();
            if let Some(sup) = sup.filter(|s| s.build_id().ok().flatten() == Some(id)) {
                let _ = dwarf.load_sup(|id| load(&sup, id));
                break;
            }
        }
    }
    let size = size.get();
    let work = Work::through(size);
    if !attributes_are_few(&dwarf) {
        elf.data()
            .note(|| "its entries have too many attributes".into());
        return None;
    }
    dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
    let dwarf = Arc::new(dwarf);
    let lines = addr2line::Context::from_arc_dwarf(dwarf.clone()).ok();
    if work.is_over() {
        elf.data()
            .note(|| "its debug information takes too long to read".into());
    }
    Some(DebugInfo {
        dwarf,
        size,
        lines,
        index: OnceCell::new(),
    })
}

/// A path without links such as `..`, if it leads to where debug information is installed.
fn installed_name(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain.starts_with(DEBUG_ROOT).then_some(plain)
}

/// Readers go through all attributes of an entry, also through those that take no bytes: so few bytes could
/// stand for endless work. Every table of abbreviations that a unit names is looked at.
fn attributes_are_few(dwarf: &Dwarf) -> bool {
    let all = [Some(dwarf), dwarf.sup()];
    all.into_iter().flatten().all(|dwarf| {
        let mut tables = HashSet::new();
        let mut units = dwarf.units();
        while let Ok(Some(unit)) = units.next() {
            tables.insert(unit.debug_abbrev_offset().0);
        }
        let mut units = dwarf.type_units();
        while let Ok(Some(unit)) = units.next() {
            tables.insert(unit.debug_abbrev_offset().0);
        }
        let few = |table: &usize| attributes_of(dwarf, *table).is_none_or(|n| n <= MOST_ATTRIBUTES);
        tables.iter().all(few)
    })
}

/// The most attributes of one abbreviation of a table (DWARF 5, 7.5.3); `None` if the table is broken, which
/// gimli finds as well.
fn attributes_of(dwarf: &Dwarf, table: usize) -> Option<usize> {
    let mut data = *dwarf.debug_abbrev.reader();
    data.skip(table).ok()?;
    let mut most = 0;
    while data.read_uleb128().ok()? != 0 {
        let (_tag, _children) = (data.read_uleb128().ok()?, data.read_u8().ok()?);
        let mut count = 0;
        loop {
            let (name, form) = (data.read_uleb128().ok()?, data.read_uleb128().ok()?);
            if (name, form) == (0, 0) {
                break;
            }
            if form == u64::from(gimli::DW_FORM_implicit_const.0) {
                data.read_sleb128().ok()?;
            }
            count += 1;
        }
        most = most.max(count);
    }
    Some(most)
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
        let sections = elf
            .sections()
            .filter(|s| s.address() > 0)
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
            let _work = Work::through(self.all.len() as u64);
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
