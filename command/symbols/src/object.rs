//! One ELF file: segments, symbols, debug information.
//!
//! The data read from files is kept until the command ends ([`Image`]). Names, types and line tables borrow from it,
//! and a program maps the same few objects all the time.
//!
//! Files are untrusted. [`Source`] decides where they may come from, and [`crate::meter`] limits the cost of reading
//! them.

use crate::debug::{Debug, DebugInfo};
use crate::elf::{Elf, contents, parse_elf};
use crate::elf_symbols::{self, ElfSymbols};
use crate::image::Image;
use crate::index::{Hints, Index};
use crate::meter::Work;
use crate::source::Source;
use object::elf::{
    PF_W, PF_X, PT_GNU_EH_FRAME, PT_GNU_RELRO, PT_INTERP, PT_LOAD, PT_TLS, R_X86_64_COPY,
};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Object, ObjectSection, ReadRef, RelocationFlags};
use std::cell::OnceCell;
use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use ulpf_host::foreign::files::{self, Opened};

pub struct ObjectFile {
    /// The program's path of the file.
    pub path: PathBuf,
    source: Source,
    elf: Elf,
    pub segments: Vec<Segment>,
    pub tls: Option<Tls>,
    /// PT_GNU_RELRO: data that only the dynamic linker writes.
    relocated: Range<u64>,
    /// Position independent: addresses are relative to the load address.
    pub relocatable: bool,
    /// PT_INTERP: a dynamic loader runs it.
    pub needs_loader: bool,
    /// PT_GNU_EH_FRAME: its unwind table can be found without sections.
    pub has_unwind_header: bool,
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
    writable: bool,
}

impl Segment {
    /// Whether the segment contains this address (as linked).
    pub fn contains(&self, addr: u64) -> bool {
        addr.checked_sub(self.vaddr)
            .is_some_and(|offset| offset < self.mem_len)
    }
}

/// The PT_TLS entry.
#[derive(Clone, Copy, Debug)]
pub struct Tls {
    vaddr: u64,
    pub mem_len: u64,
    pub align: u64,
}

impl ObjectFile {
    /// Opens a file named by the user of `ulpf`.
    pub fn open(path: &Path) -> Result<ObjectFile, String> {
        let file = files::ours(path).map_err(|e| format!("{}: {e}", path.display()))?;
        ObjectFile::of(path, Image::of_file(file), Source::User)
    }

    /// A file that a program has mapped. `path` is the program's path of it.
    pub fn mapped(path: &Path, file: Opened, by: &files::Process) -> Result<ObjectFile, String> {
        ObjectFile::of(path, Image::of_file(file), Source::Process(by.clone()))
    }

    /// A file whose bytes are in memory, for tests and fuzz targets.
    pub fn parse(path: &Path, data: Vec<u8>) -> Result<ObjectFile, String> {
        ObjectFile::of(path, Image::of_bytes(data), Source::User)
    }

    fn of(path: &Path, image: Image, source: Source) -> Result<ObjectFile, String> {
        let _work = Work::look_up(0);
        let elf = parse_elf(image).map_err(|e| format!("{}: {e}", path.display()))?;
        let endian = elf.endian();
        let mut segments = Vec::new();
        let mut tls = None;
        let mut relocated = 0..0;
        let (mut needs_loader, mut has_unwind_header) = (false, false);
        for header in elf.elf_program_headers() {
            match header.p_type(endian) {
                PT_LOAD => segments.push(Segment {
                    offset: header.p_offset(endian),
                    vaddr: header.p_vaddr(endian),
                    file_len: header.p_filesz(endian),
                    mem_len: header.p_memsz(endian),
                    executable: header.p_flags(endian) & PF_X != 0,
                    writable: header.p_flags(endian) & PF_W != 0,
                }),
                PT_INTERP => needs_loader = true,
                PT_GNU_EH_FRAME => has_unwind_header = true,
                PT_GNU_RELRO => {
                    let from = header.p_vaddr(endian);
                    relocated = from..from.saturating_add(header.p_memsz(endian));
                }
                PT_TLS => {
                    tls = Some(Tls {
                        vaddr: header.p_vaddr(endian),
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
            relocated,
            relocatable,
            needs_loader,
            has_unwind_header,
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

    /// Whether the program may store at this address (as linked).
    pub fn may_change(&self, addr: u64) -> bool {
        let holds = |s: &Segment| s.writable && s.contains(addr);
        self.segments.iter().any(holds) && !self.relocated.contains(&addr)
    }

    /// Addresses (as linked) to which variables of libraries are copied.
    pub fn copied(&self) -> HashSet<u64> {
        const COPY: RelocationFlags = RelocationFlags::Elf {
            r_type: R_X86_64_COPY,
        };
        let _work = Work::through(self.elf.data().len().unwrap_or(0));
        let all = self.elf.dynamic_relocations().into_iter().flatten();
        all.filter(|(_, r)| r.flags() == COPY)
            .map(|(at, _)| at)
            .collect()
    }

    /// Copies the file's code at an address (as linked) to `to`. Returns the number of bytes.
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

    /// The unwind table `.eh_frame`, and its address as linked.
    pub fn unwind_table(&self) -> Option<(&'static [u8], u64)> {
        let section = self.elf.section_by_name(".eh_frame")?;
        Some((contents(&self.elf, ".eh_frame")?, section.address()))
    }

    /// Why a part of the file, or of its debug information, was not read.
    pub fn trouble(&self) -> Option<String> {
        let debug = self.debug.get();
        let separate = debug.and_then(|d| d.file_elf.as_ref());
        let mut images = [Some(&self.elf), separate].into_iter().flatten();
        let info = debug.and_then(|d| d.info.as_ref());
        images.find_map(|elf| elf.data().trouble()).or_else(|| {
            let cut = info.is_some_and(DebugInfo::is_cut);
            cut.then(|| "its debug information takes too long to read".into())
        })
    }

    pub fn debug(&self) -> &Debug {
        self.debug
            .get_or_init(|| Debug::find(&self.elf, &self.source, &self.source.real(&self.path)))
    }

    pub fn index(&self) -> Option<&Index> {
        let debug = self.debug();
        let info = debug.info.as_ref()?;
        let index = info.index.get_or_init(|| {
            let hints = Hints::of(debug.file_elf.as_ref().unwrap_or(&self.elf));
            Index::build(&info.dwarf, &info.split, info.traits, info.size, hints)
        });
        index.as_ref()
    }

    pub fn symbols(&self) -> &ElfSymbols {
        self.symbols.get_or_init(|| {
            let separate = &self.debug().file_elf;
            let _work = Work::through(self.elf.data().len().unwrap_or(0));
            ElfSymbols::of(&self.elf, separate.as_ref())
        })
    }

    /// Whether it exports a variable of this name to other objects.
    pub fn exports(&self, name: &str) -> bool {
        let _work = Work::through(self.elf.data().len().unwrap_or(0));
        elf_symbols::exports(&self.elf, name)
    }

    /// Offset of a thread-local variable from the thread pointer, for the executable itself (x86-64
    /// psABI, TLS variant II: the executable's block ends at the thread pointer).
    pub fn tls_offset_of_executable(&self, offset: u64) -> Option<i64> {
        let tls = self.tls?;
        // GCC (12) writes the address of the initial value into .debug_addr (-gsplit-dwarf), where an offset belongs.
        let from_address = offset.checked_sub(tls.vaddr);
        let from_address = from_address.filter(|n| offset >= tls.mem_len && *n < tls.mem_len);
        let offset = from_address.unwrap_or(offset);
        let block = tls.mem_len.checked_next_multiple_of(tls.align)?;
        (offset as i64).checked_sub(block as i64)
    }
}
