//! Opens and checks ELF files.

use crate::image::Image;
use crate::slice::Slice;
use crate::stored_section::{LARGE, StoredSection};
use object::elf::{FileHeader64, SHT_STRTAB};
use object::read::CompressionFormat;
use object::read::elf::{ElfFile, FileHeader, SectionHeader};
use object::{LittleEndian, Object, ObjectSection, ReadRef};

pub type Elf = ElfFile<'static, FileHeader64<LittleEndian>, &'static Image>;

/// Parses the image of a 64-bit program.
///
/// # Errors
///
/// Why the image is not such a program.
pub fn parse_elf(image: Image) -> Result<Elf, String> {
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
        // Names are looked up one by one, and their tables are read as a whole.
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

/// A section of debug information. Of a large, uncompressed section, only the parts in use are read.
pub fn section(elf: &Elf, name: &str) -> Slice {
    stored(elf, name)
        .map(Slice::stored)
        .or_else(|| contents(elf, name).map(Slice::new))
        .unwrap_or(Slice::new(&[]))
}

fn stored(elf: &Elf, name: &str) -> Option<StoredSection> {
    let part = elf.section_by_name(name)?.compressed_file_range().ok()?;
    let image = elf.data();
    let stays = part.format == CompressionFormat::None && image.is_stored();
    match stays && part.uncompressed_size >= LARGE {
        true => StoredSection::new(image, part.offset, part.uncompressed_size),
        false => None,
    }
}

/// The contents of a section, unpacked if it is compressed.
pub fn contents(elf: &Elf, name: &str) -> Option<&'static [u8]> {
    let section = elf.section_by_name(name)?;
    elf.data().unpacked(section.compressed_data().ok()?)
}

/// All sections of this name, concatenated. An unlinked object has one section for each type unit.
pub fn joined_contents(elf: &Elf, name: &str) -> Option<&'static [u8]> {
    let named = elf.sections().filter(|section| section.name() == Ok(name));
    let each = named.filter_map(|section| elf.data().unpacked(section.compressed_data().ok()?));
    let each: Vec<&'static [u8]> = each.collect();
    match each[..] {
        [] => None,
        [one] => Some(one),
        _ => Some(Box::leak(each.concat().into_boxed_slice())),
    }
}

pub fn has_dwarf(elf: &Elf) -> bool {
    // `only-keep-debug` leaves sections without contents.
    elf.section_by_name(".debug_info")
        .and_then(|s| s.compressed_file_range().ok())
        .is_some_and(|part| part.compressed_size > 0 && part.offset < elf.data().size())
}
