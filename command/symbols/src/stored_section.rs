//! A large section of a file, read in parts on demand.
//!
//! ```text
//!  section   |....|....|....|....|....|....|....|      pages, each of which knows what follows it without a gap
//!  read            [    ][    ][    ]    [    ]
//!  runs            ▲ one piece of memory ▲ another
//! ```
//! Runs are kept until the command ends, as the parts of [`Image`] are. Sequential reads get longer runs. A scan
//! through the whole section keeps nothing ([`StoredSection::scan`]).

use crate::image::Image;
use crate::meter;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// Sections from this size in bytes are read in parts. (Tests use small ones.)
pub const LARGE: u64 = if cfg!(test) { 64 } else { 1 << 20 };
const PAGE: usize = if cfg!(test) { 32 } else { 4096 };
/// Bytes of a sequential read.
const RUN: usize = 32 * PAGE;
/// Bytes in memory during a scan.
const WINDOW: usize = if cfg!(test) { 200 } else { 1 << 20 };

pub struct StoredSection {
    image: &'static Image,
    /// Offset of the section in the file.
    start: u64,
    len: usize,
    /// For each page, the bytes from its start to the end of its run; empty if not read yet.
    pages: Vec<Cell<&'static [u8]>>,
    /// Pieces that cross runs, by offset and length.
    joined: RefCell<HashMap<(usize, usize), &'static [u8]>>,
}

impl StoredSection {
    /// A part of the file, or `None` if the file is too short.
    pub fn new(image: &'static Image, start: u64, len: u64) -> Option<StoredSection> {
        if start.checked_add(len)? > image.size() {
            return None;
        }
        let len = usize::try_from(len).ok()?;
        Some(StoredSection {
            image,
            start,
            len,
            pages: vec![Cell::new(&[][..]); len.div_ceil(PAGE)],
            joined: RefCell::default(),
        })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes from `at` to the end of their run: at least one byte, or `None` if they cannot be read.
    pub fn from(&self, at: usize) -> Option<&'static [u8]> {
        let page = at / PAGE;
        let known = self.pages.get(page)?.get();
        let run = match known.is_empty() {
            false => known,
            true => self.read(page)?,
        };
        run.get(at % PAGE..).filter(|rest| !rest.is_empty())
    }

    /// Reads a run that begins with this page.
    fn read(&self, page: usize) -> Option<&'static [u8]> {
        let reads_on = page > 0 && !self.pages[page - 1].get().is_empty();
        let most = if reads_on { RUN / PAGE } else { 1 };
        let gap = self.pages[page..].iter().take(most);
        let count = gap.take_while(|page| page.get().is_empty()).count();
        let from = page * PAGE;
        let size = (count * PAGE).min(self.len - from);
        let run = self.image.run(self.start + from as u64, size)?;
        for n in 0..count {
            self.pages[page + n].set(&run[n * PAGE..]);
        }
        Some(run)
    }

    /// `len` bytes from `at`, in one piece.
    pub fn piece(&self, at: usize, len: usize) -> Option<&'static [u8]> {
        if len == 0 {
            return Some(&[]);
        }
        if at.checked_add(len)? > self.len {
            return None;
        }
        if let Some(piece) = self.from(at)?.get(..len) {
            return Some(piece);
        }
        if let Some(known) = self.joined.borrow().get(&(at, len)) {
            return Some(known);
        }
        let piece = self.image.run(self.start + at as u64, len)?;
        self.joined.borrow_mut().insert((at, len), piece);
        Some(piece)
    }

    /// Scans the section in windows that overlap by `overlap` bytes. `look` receives the offset and the contents of a
    /// window, and returns the offset from which to continue. The data is not kept.
    pub fn scan(&self, overlap: usize, mut look: impl FnMut(usize, &[u8]) -> usize) {
        let mut buffer = vec![0; WINDOW.max(4 * overlap)];
        let mut at = 0;
        while at < self.len {
            let size = (self.len - at).min(buffer.len());
            let window = &mut buffer[..size];
            if self.image.copy(self.start + at as u64, window) < size {
                self.image.note(|| "it cannot be read to its end".into());
                return;
            }
            if !meter::step(size as u64 / 16) {
                return;
            }
            let wanted = look(at, window);
            let next = at + size;
            if next >= self.len {
                return;
            }
            at = (next - overlap).max(wanted.saturating_sub(overlap));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::Slice;
    use gimli::Reader;
    use ulpf_host::foreign::files;

    const SIZE: usize = 40 * RUN + 7;

    fn byte(at: usize) -> u8 {
        (at as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .to_le_bytes()[7]
    }

    /// A file with a section that begins at its third byte.
    fn section(name: &str) -> (StoredSection, std::path::PathBuf) {
        let path = crate::tests::folder().join(name);
        let bytes: Vec<u8> = [0, 0].into_iter().chain((0..SIZE).map(byte)).collect();
        std::fs::write(&path, bytes).unwrap();
        let image = Box::leak(Box::new(Image::of_file(files::ours(&path).unwrap())));
        assert!(StoredSection::new(image, 3, SIZE as u64).is_none());
        (StoredSection::new(image, 2, SIZE as u64).unwrap(), path)
    }

    #[test]
    fn pieces_and_numbers_are_those_of_the_file() {
        let whole = Slice::stored(section("pieces").0);
        let mut at = 1;
        // Scattered reads, across pages and runs, repeated and sequential.
        for n in 0..2000 {
            at = (at * 31 + n) % (SIZE - 300);
            let mut part = whole;
            part.skip(at).unwrap();
            let mut number = [0; 8];
            part.read_slice(&mut number).unwrap();
            assert!((0..8).all(|i| number[i] == byte(at + i)), "{at}");
            let rest = part.split(at % 290).unwrap();
            assert_eq!(rest.offset_from(&whole), at + 8);
            let expected = (0..at % 290).map(|i| byte(at + 8 + i));
            assert!(rest.bytes().iter().copied().eq(expected), "{at}");
            let next = part.read_u8().unwrap();
            assert_eq!(next, byte(at + 8 + at % 290));
            let from = at + 9 + at % 290;
            let expected = (from..SIZE).position(|at| byte(at) == next);
            assert_eq!(part.find(next).ok(), expected);
        }
        let mut part = whole;
        part.skip(SIZE - 3).unwrap();
        assert!(part.read_u32().is_err() && part.split(4).is_err() && part.skip(4).is_err());
        assert_eq!(part.bytes().len(), 3);
    }

    #[test]
    fn one_search_sees_everything_with_what_is_around() {
        let (section, _) = section("search");
        let mut next = 0usize;
        section.scan(20, |at, window| {
            assert_eq!(at, next.saturating_sub(20));
            assert!(window.iter().enumerate().all(|(i, b)| *b == byte(at + i)));
            next = at + window.len();
            0
        });
        assert_eq!(next, SIZE);
        // The scan continues where the callback says.
        let mut seen = 0;
        section.scan(20, |at, _| {
            seen += 1;
            at + 10 * WINDOW
        });
        assert!((2..SIZE / WINDOW / 5).contains(&seen), "{seen}");
    }

    #[test]
    fn a_file_that_becomes_shorter_is_an_error() {
        let (section, path) = section("shorter");
        let whole = Slice::stored(section);
        let mut part = whole;
        assert_eq!(part.read_u8().unwrap(), byte(0));
        let file = std::fs::File::options().write(true).open(path).unwrap();
        file.set_len(2 + PAGE as u64).unwrap();
        assert!(part.skip(4 * PAGE).is_ok() && part.read_u8().is_err());
        assert_eq!((whole.bytes(), part.bytes()), (&[][..], &[][..]));
        let mut windows = 0;
        whole.scan(4, |_, _| {
            windows += 1;
            0
        });
        assert_eq!(windows, 0);
        // Bytes that were read remain available.
        let mut part = whole;
        assert_eq!(part.read_u8().unwrap(), byte(0));
    }
}
