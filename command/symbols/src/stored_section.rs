//! A large section of a file, of which only what is looked at is read.
//!
//! ```text
//!  section   |....|....|....|....|....|....|....|      pages, each of which knows what follows it without a gap
//!  read            [    ][    ][    ]    [    ]
//!  runs            ▲ one piece of memory ▲ another
//! ```
//! Runs are kept until the command ends, as the pieces of [`Image`] are: who reads on behind one gets longer ones. What
//! goes through a whole section in search of something keeps nothing of it ([`StoredSection::scan`]).

use crate::image::Image;
use crate::meter;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

/// Smaller sections are read whole. (Tests have small ones.)
pub const LARGE: u64 = if cfg!(test) { 64 } else { 1 << 20 };
const PAGE: usize = if cfg!(test) { 32 } else { 4096 };
/// What is read at once by who reads on.
const RUN: usize = 32 * PAGE;
/// What a search has in memory.
const WINDOW: usize = if cfg!(test) { 200 } else { 1 << 20 };

pub struct StoredSection {
    image: &'static Image,
    /// Where it begins in the file.
    start: u64,
    len: usize,
    /// What is there from each page's first byte to the end of its run; empty: nothing yet.
    pages: Vec<Cell<&'static [u8]>>,
    /// What lies in several runs and was asked for in one piece, by place and length.
    joined: RefCell<HashMap<(usize, usize), &'static [u8]>>,
}

impl StoredSection {
    /// A part of the file; `None`: it is not as large.
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

    /// What there is from `at` on, without a gap: at least one byte, unless it cannot be read.
    pub fn from(&self, at: usize) -> Option<&'static [u8]> {
        let page = at / PAGE;
        let known = self.pages.get(page)?.get();
        let run = match known.is_empty() {
            false => known,
            true => self.read(page)?,
        };
        run.get(at % PAGE..).filter(|rest| !rest.is_empty())
    }

    /// Reads what begins with a page.
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

    /// So many bytes from `at` on, in one piece.
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

    /// Goes through all of it, in windows that overlap by `overlap` bytes. `look` gets where a window begins, and what is
    /// in it, and says from where on it wants to see more. What was read is not kept.
    pub fn scan(&self, overlap: usize, mut look: impl FnMut(usize, &[u8]) -> usize) {
        let mut buffer = vec![0; WINDOW.max(4 * overlap)];
        let mut at = 0;
        while at < self.len {
            let size = (self.len - at).min(buffer.len());
            let window = &mut buffer[..size];
            let read = self.image.copy(self.start + at as u64, window) == size;
            if !read || !meter::step(size as u64 / 16) {
                self.image.note(|| "it cannot be read to its end".into());
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
