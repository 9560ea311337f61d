//! The stub image: an ELF shared object turned into the bytes and protections of one mapping.
//!
//! ```text
//! base                         args_offset      stack_offset               len
//! | segments of the ELF file … | BootArgs page  | boot stack (256 KiB)      |
//! ```

use object::LittleEndian as LE;
use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, Rela, Sym};
use std::borrow::Cow;
use std::sync::OnceLock;
use thiserror::Error;

/// Packed relative relocations; newer than the `object` crate.
const DT_RELR: u32 = 36;

type Header = elf::FileHeader64<LE>;

/// In bytes.
pub const PAGE: u64 = 4096;
/// Encoding of the instruction.
pub const SYSCALL: [u8; 2] = [0x0f, 0x05];
const BOOT_STACK: u64 = 256 * 1024;

/// Reasons why a file is not a stub image.
#[derive(Clone, Debug, Error)]
pub enum ImageError {
    #[error(
        "The stub image is not a usable ELF file: {0}. The ulpf binary was not built properly; build it again."
    )]
    Malformed(#[from] object::read::Error),
    #[error("The stub image {0}. The ulpf binary was not built properly; build it again.")]
    Unusable(String),
}

/// The file that [`provide`] received.
static FILE: OnceLock<&'static [u8]> = OnceLock::new();

/// Sets the file of the stub's image, an ELF shared object aligned to 16 bytes; the first call decides. (The file is
/// not part of this crate, so that a change of the stub does not recompile all dependents.)
pub fn provide(file: &'static [u8]) {
    FILE.get_or_init(|| file);
}

/// The parsed stub image.
///
/// # Errors
/// The provided file is not a stub image, or no file was provided.
pub fn stub_image() -> Result<&'static Image, ImageError> {
    static IMAGE: OnceLock<Result<Image, ImageError>> = OnceLock::new();
    let image = IMAGE.get_or_init(|| match FILE.get() {
        Some(file) => Image::parse(file),
        None => Err(ImageError::Unusable("was not provided".into())),
    });
    image.as_ref().map_err(Clone::clone)
}

/// Memory protection of one page range of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Offset from the image's base, page aligned.
    pub offset: u64,
    pub len: u64,
    pub prot: i32,
}

/// The parsed file of the stub. All positions are offsets from the image's base, in bytes.
#[derive(Debug)]
pub struct Image {
    /// Contents of `[0, args_offset)` from the file, before relocation; the rest is zero.
    segments: Vec<Segment>,
    relocations: Vec<Relocation>,
    pub regions: Vec<Region>,
    pub boot: u64,
    pub boot_thread: u64,
    /// Offset of a `syscall` instruction. Once the stub runs, only system calls from inside the image
    /// are the stub's own.
    pub gate: u64,
    pub args_offset: u64,
    /// Just above the boot stack (it grows down).
    pub stack_top: u64,
    pub len: u64,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    offset: u64,
    data: &'static [u8],
    executable: bool,
}

impl Segment {
    /// Index in `data` of the 8 bytes at `offset` of the image.
    fn word(&self, offset: u64) -> Option<usize> {
        let at = usize::try_from(offset.checked_sub(self.offset)?).ok()?;
        (at.checked_add(8)? <= self.data.len()).then_some(at)
    }
}

/// The 8 bytes at `offset` become base + `addend`.
#[derive(Clone, Copy, Debug)]
struct Relocation {
    offset: u64,
    addend: u64,
}

impl Image {
    /// Parses a shared object.
    ///
    /// # Errors
    /// It is not a usable ELF file for x86-64, needs a dynamic linker, has an unsupported relocation, or lacks a symbol.
    pub fn parse(file: &'static [u8]) -> Result<Image, ImageError> {
        let unusable = |text: &str| ImageError::Unusable(text.into());
        let header = Header::parse(file)?;
        let endian = LE;
        if header.e_machine(endian) != elf::EM_X86_64 {
            return Err(unusable("is not for x86-64"));
        }
        let segments = header.program_headers(endian, file)?;
        let mut span = 0;
        let mut regions = Vec::new();
        for s in segments.iter().filter(|s| s.p_type(endian) == elf::PT_LOAD) {
            let start = s.p_vaddr(endian) / PAGE * PAGE;
            let end = align_up(s.p_vaddr(endian) + s.p_memsz(endian));
            regions.push(Region {
                offset: start,
                len: end - start,
                prot: protection(s.p_flags(endian)),
            });
            span = span.max(end);
        }
        if span == 0 || span > 1 << 30 {
            return Err(unusable("has no loadable segments, or absurd ones"));
        }
        let mut contents = Vec::new();
        for s in segments.iter().filter(|s| s.p_type(endian) == elf::PT_LOAD) {
            let data = s
                .data(endian, file)
                .map_err(|()| unusable("is truncated"))?;
            if data.len() as u64 > s.p_memsz(endian) {
                return Err(unusable("has overlapping segments"));
            }
            contents.push(Segment {
                offset: s.p_vaddr(endian),
                data,
                executable: s.p_flags(endian) & elf::PF_X != 0,
            });
        }
        // Read-only after relocation, at page granularity (the linker pads it to whole pages).
        for s in segments
            .iter()
            .filter(|s| s.p_type(endian) == elf::PT_GNU_RELRO)
        {
            let start = s.p_vaddr(endian) / PAGE * PAGE;
            let end = (s.p_vaddr(endian) + s.p_memsz(endian)) / PAGE * PAGE;
            if end > start {
                regions.push(Region {
                    offset: start,
                    len: end - start,
                    prot: libc::PROT_READ,
                });
            }
        }
        let relocations = relocations(header, file, segments)?;
        for r in &relocations {
            if !contents.iter().any(|s| s.word(r.offset).is_some()) {
                return Err(unusable("relocates bytes outside itself"));
            }
        }
        let gate = contents
            .iter()
            .filter(|s| s.executable)
            .find_map(|s| Some(s.offset + s.data.windows(2).position(|w| w == SYSCALL)? as u64))
            .ok_or_else(|| unusable("makes no system calls"))?;
        let args_offset = span;
        let len = args_offset + PAGE + BOOT_STACK;
        Ok(Image {
            segments: contents,
            relocations,
            regions,
            boot: symbol(header, file, "ulpf_stub_boot")?,
            boot_thread: symbol(header, file, "ulpf_stub_boot_thread")?,
            gate,
            args_offset,
            stack_top: len,
            len,
        })
    }

    /// Whether these bytes are part of its code (which no relocation changes).
    pub fn has_code(&self, code: &[u8]) -> bool {
        let mut executable = self.segments.iter().filter(|s| s.executable);
        executable.any(|s| s.data.windows(code.len()).any(|w| w == code))
    }

    /// The pieces of the image relocated to `base`, by their offsets; the bytes between them are zero.
    pub fn relocated(&self, base: u64) -> impl Iterator<Item = (u64, Cow<'static, [u8]>)> {
        self.segments.iter().map(move |segment| {
            let mut data = Cow::Borrowed(segment.data);
            for r in &self.relocations {
                if let Some(at) = segment.word(r.offset) {
                    let word = base.wrapping_add(r.addend).to_le_bytes();
                    data.to_mut()[at..at + 8].copy_from_slice(&word);
                }
            }
            (segment.offset, data)
        })
    }
}

/// Rounds up to whole pages.
pub fn align_up(n: u64) -> u64 {
    n.div_ceil(PAGE) * PAGE
}

fn protection(flags: u32) -> i32 {
    let mut prot = 0;
    for (flag, bit) in [
        (elf::PF_R, libc::PROT_READ),
        (elf::PF_W, libc::PROT_WRITE),
        (elf::PF_X, libc::PROT_EXEC),
    ] {
        if flags & flag != 0 {
            prot |= bit;
        }
    }
    prot
}

fn symbol(header: &Header, file: &[u8], name: &str) -> Result<u64, ImageError> {
    let sections = header.sections(LE, file)?;
    let symbols = sections.symbols(LE, file, elf::SHT_DYNSYM)?;
    symbols
        .iter()
        .find(|s| {
            s.name(LE, symbols.strings())
                .is_ok_and(|n| n == name.as_bytes())
                && s.st_shndx(LE) != elf::SHN_UNDEF
        })
        .map(|s| s.st_value(LE))
        .ok_or_else(|| ImageError::Unusable(format!("does not export {name}")))
}

/// All relocations as "base + addend". The image is linked with -Bsymbolic and -z defs, so all symbols are defined in
/// it.
fn relocations(
    header: &Header,
    file: &[u8],
    segments: &[elf::ProgramHeader64<LE>],
) -> Result<Vec<Relocation>, ImageError> {
    let sections = header.sections(LE, file)?;
    let symbols = sections.symbols(LE, file, elf::SHT_DYNSYM)?;
    for s in segments {
        if let Some(dynamic) = s.dynamic(LE, file)? {
            for d in dynamic {
                if [elf::DT_NEEDED, DT_RELR, elf::DT_REL].contains(&(d.d_tag(LE) as u32)) {
                    return Err(ImageError::Unusable(format!(
                        "needs a dynamic linker (entry {:#x})",
                        d.d_tag(LE)
                    )));
                }
            }
        }
    }
    let mut list = Vec::new();
    for section in sections.iter() {
        let Some((relas, _)) = object::read::elf::SectionHeader::rela(section, LE, file)? else {
            continue;
        };
        for r in relas {
            let kind = r.r_type(LE, false);
            let own = |what: &str| -> Result<u64, ImageError> {
                let symbol = symbols.symbol(object::SymbolIndex(r.r_sym(LE, false) as usize))?;
                if symbol.st_shndx(LE) == elf::SHN_UNDEF {
                    let name =
                        String::from_utf8_lossy(symbol.name(LE, symbols.strings())?).into_owned();
                    return Err(ImageError::Unusable(format!(
                        "has an undefined symbol, {name} ({what})"
                    )));
                }
                Ok(symbol.st_value(LE))
            };
            let addend = match kind {
                elf::R_X86_64_NONE => continue,
                elf::R_X86_64_RELATIVE => r.r_addend(LE) as u64,
                elf::R_X86_64_GLOB_DAT | elf::R_X86_64_JUMP_SLOT => own("GOT entry")?,
                elf::R_X86_64_64 => own("pointer")?.wrapping_add(r.r_addend(LE) as u64),
                other => {
                    return Err(ImageError::Unusable(format!(
                        "has a relocation of type {other}, which the loader does not know"
                    )));
                }
            };
            list.push(Relocation {
                offset: r.r_offset(LE),
                addend,
            });
        }
    }
    Ok(list)
}
