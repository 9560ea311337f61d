//! Reads parts of a file on demand, within the limits of the machine's memory.
//!
//! Parts are kept until the command ends, because names, types and line tables borrow from them. They are read with
//! pread(2): a file that is truncated meanwhile gives an error, whereas a mapping would raise SIGBUS.

use crate::meter;
use object::ReadRef;
use object::read::{CompressedData, CompressionFormat};
use std::cell::{Cell, RefCell};
use std::io::Read;
use std::ops::Range;
use ulpf_host::foreign::files::Opened;
use ulpf_host::signals::{Reading, asked_to_end};

/// Limit in bytes for one file, whatever it claims: enough for the debug information of a browser.
const MOST: u64 = 8 << 30;
/// Limit of the compression ratio. Real debug information shrinks to between a third and a tenth.
const MOST_SHRUNK: u64 = 100;
/// Limit of a file's size relative to its storage, because holes occupy none and some file systems compress. So an
/// attacker must store something.
const MOST_SPARSE: u64 = 16;
const SOME: u64 = 64 << 20;
/// Limit of parts of one file. A real file has about fifty.
const MOST_PIECES: usize = 4096;
/// Longest name of a symbol.
const MOST_NAME: u64 = 64 << 10;
const CHUNK: usize = 16 << 20;

pub struct Image {
    file: Option<Opened>,
    len: u64,
    pieces: RefCell<Vec<Piece>>,
    /// Bytes that may still be read or unpacked.
    left: Cell<u64>,
    /// Why a part was not read.
    trouble: RefCell<Option<String>>,
}

#[derive(Clone, Copy)]
struct Piece {
    start: u64,
    data: &'static [u8],
}

impl Piece {
    fn part(&self, offset: u64, size: u64) -> Option<&'static [u8]> {
        let from = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        let size = usize::try_from(size).ok()?;
        self.data.get(from..from.checked_add(size)?)
    }
}

impl Image {
    pub fn of_file(file: Opened) -> Image {
        let left = MOST
            .min(free_memory() / 2)
            .min(SOME + MOST_SPARSE.saturating_mul(file.stored));
        Image {
            len: file.len,
            file: Some(file),
            pieces: RefCell::default(),
            left: Cell::new(left),
            trouble: RefCell::default(),
        }
    }

    pub fn of_bytes(data: Vec<u8>) -> Image {
        let data: &'static [u8] = Box::leak(data.into_boxed_slice());
        Image {
            file: None,
            len: data.len() as u64,
            pieces: RefCell::new(vec![Piece { start: 0, data }]),
            left: Cell::new(MOST.min(SOME + MOST_SPARSE * data.len() as u64)),
            trouble: RefCell::default(),
        }
    }

    pub fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    /// Stores the reason if it is the first one.
    pub fn note(&self, why: impl FnOnce() -> String) {
        self.trouble.borrow_mut().get_or_insert_with(why);
    }

    /// Copies bytes at `offset` of the file without keeping them. Returns their number.
    pub fn copy(&self, offset: u64, to: &mut [u8]) -> usize {
        let size = (self.len.saturating_sub(offset)).min(to.len() as u64) as usize;
        let to = &mut to[..size];
        let known = self
            .pieces
            .borrow()
            .iter()
            .find_map(|p| p.part(offset, size as u64));
        match (known, &self.file) {
            (Some(data), _) => to.copy_from_slice(data),
            (None, Some(file)) if file.read_at(offset, to).is_ok() => {}
            _ => return 0,
        }
        size
    }

    /// CRC-32 of the whole file, if the file is within the remaining limit.
    pub fn crc(&self) -> Option<u32> {
        let Some(file) = &self.file else {
            return Some(crc32fast::hash(self.pieces.borrow().first()?.data));
        };
        if self.len > self.left.get() {
            self.note(|| format!("it is too large ({} bytes)", self.len));
            return None;
        }
        let _reading = Reading::begin();
        let (mut crc, mut buffer) = (crc32fast::Hasher::new(), vec![0; 1 << 20]);
        let mut at = 0;
        while at < self.len && !asked_to_end() {
            let n = (self.len - at).min(buffer.len() as u64) as usize;
            file.read_at(at, &mut buffer[..n]).ok()?;
            crc.update(&buffer[..n]);
            at += n as u64;
        }
        Some(crc.finalize())
    }

    /// The contents of a section, unpacked if compressed.
    pub fn unpacked(&self, section: CompressedData<'static>) -> Option<&'static [u8]> {
        let size = section.uncompressed_size;
        if section.format == CompressionFormat::None {
            return Some(section.data);
        }
        let most = (1 << 20) + MOST_SHRUNK.saturating_mul(section.data.len() as u64);
        if size > most || !self.take(size) {
            self.note(|| format!("a compressed section claims to have {size} bytes"));
            return None;
        }
        let _reading = Reading::begin();
        let data = match section.format {
            CompressionFormat::Zstandard => unpack_zstd(section.data, size)?,
            // Unpacks at most the claimed size.
            _ => section.decompress().ok()?.into_owned(),
        };
        Some(Box::leak(data.into_boxed_slice()))
    }

    /// Length of the file.
    pub fn size(&self) -> u64 {
        self.len
    }

    /// The file, unless the image is in memory.
    pub fn file(&self) -> Option<&Opened> {
        self.file.as_ref()
    }

    /// Whether the image is a file, so that parts may be read later.
    pub fn is_stored(&self) -> bool {
        self.file.is_some()
    }

    /// Reads a part of the file anew. It is not kept with the other parts: the caller keeps it.
    pub fn run(&self, offset: u64, size: usize) -> Option<&'static [u8]> {
        let file = self.file.as_ref()?;
        if !self.take(size as u64) {
            self.note(|| "it would take too much memory".into());
            return None;
        }
        let mut data = Vec::new();
        data.try_reserve_exact(size).ok()?;
        data.resize(size, 0);
        if let Err(error) = file.read_at(offset, &mut data) {
            self.note(|| format!("it cannot be read to its end: {error}"));
            return None;
        }
        Some(Box::leak(data.into_boxed_slice()))
    }

    fn take(&self, size: u64) -> bool {
        let left = self.left.get().checked_sub(size);
        left.inspect(|left| self.left.set(*left)).is_some()
    }

    fn read(&self, offset: u64, size: u64) -> Option<&'static [u8]> {
        let file = self.file.as_ref()?;
        if offset.checked_add(size)? > self.len {
            return None;
        }
        if self.pieces.borrow().len() == MOST_PIECES || !self.take(size) {
            self.note(|| "it would take too much memory".into());
            return None;
        }
        let _reading = Reading::begin();
        let size = usize::try_from(size).ok()?;
        let mut data = Vec::new();
        data.try_reserve_exact(size).ok()?;
        while data.len() < size {
            if asked_to_end() {
                return None;
            }
            let from = data.len();
            data.resize(size.min(from + CHUNK), 0);
            if let Err(error) = file.read_at(offset + from as u64, &mut data[from..]) {
                self.note(|| format!("it cannot be read to its end: {error}"));
                return None;
            }
        }
        let data: &'static [u8] = Box::leak(data.into_boxed_slice());
        self.pieces.borrow_mut().push(Piece {
            start: offset,
            data,
        });
        Some(data)
    }
}

impl ReadRef<'static> for &'static Image {
    fn len(self) -> Result<u64, ()> {
        Ok(self.len)
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'static [u8], ()> {
        if size == 0 {
            return Ok(&[]);
        }
        let known = self
            .pieces
            .borrow()
            .iter()
            .find_map(|p| p.part(offset, size));
        known.or_else(|| self.read(offset, size)).ok_or(())
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'static [u8], ()> {
        let size = range.end.checked_sub(range.start).ok_or(())?;
        let data = self.read_bytes_at(range.start, size.min(MOST_NAME))?;
        let end = data.iter().position(|b| *b == delimiter).ok_or(())?;
        // Many symbols may share a long name, so each scan is metered.
        match meter::step(1 + end as u64 / 8) {
            true => Ok(&data[..end]),
            false => Err(()),
        }
    }
}

/// Unpacks several frames, at most `size` bytes: the section's claim.
fn unpack_zstd(mut input: &[u8], size: u64) -> Option<Vec<u8>> {
    let mut data = Vec::new();
    data.try_reserve_exact(usize::try_from(size).ok()?).ok()?;
    while !input.is_empty() {
        let decoder = ruzstd::decoding::StreamingDecoder::new(&mut input).ok()?;
        let left = size - data.len() as u64;
        decoder.take(left + 1).read_to_end(&mut data).ok()?;
        if data.len() as u64 > size {
            return None;
        }
    }
    (data.len() as u64 == size).then_some(data)
}

/// Memory available to programs, as estimated by the kernel.
fn free_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|l| {
        l.strip_prefix("MemAvailable:")?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    });
    kib.unwrap_or(1u64 << 20) << 10
}
