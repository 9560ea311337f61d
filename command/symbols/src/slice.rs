//! A section of debug information, or a part of one. Its readers are subject to the limits of [`crate::meter`], and the
//! file is read only where they need it.

use crate::meter::{is_shallow, step};
use crate::stored_section::StoredSection;
use gimli::{Error, LittleEndian, Reader, ReaderOffsetId};
use std::borrow::Cow;
use std::fmt;

#[derive(Clone, Copy)]
pub struct Slice {
    /// The first remaining bytes; if the section was read whole, all remaining bytes.
    near: &'static [u8],
    /// Number of remaining bytes.
    len: usize,
    /// Offset of the remaining bytes in the section.
    at: usize,
    /// The section that contains the remaining bytes.
    far: Option<&'static StoredSection>,
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..+{}", self.at, self.len)
    }
}

impl Slice {
    pub fn new(data: &'static [u8]) -> Slice {
        Slice {
            near: data,
            len: data.len(),
            at: 0,
            far: None,
        }
    }

    pub fn stored(section: StoredSection) -> Slice {
        let section: &'static StoredSection = Box::leak(Box::new(section));
        Slice {
            near: &[],
            len: section.len(),
            at: 0,
            far: Some(section),
        }
    }

    /// All remaining bytes in one piece, or none if they cannot be read.
    pub fn bytes(&self) -> &'static [u8] {
        self.piece().unwrap_or(&[])
    }

    /// Scans the slice as [`StoredSection::scan`] does. The slice must be a whole section.
    pub fn scan(&self, overlap: usize, mut look: impl FnMut(usize, &[u8]) -> usize) {
        match self.far {
            Some(section) => section.scan(overlap, look),
            None => {
                step(self.len as u64 / 16);
                look(0, self.near);
            }
        }
    }

    fn piece(&self) -> gimli::Result<&'static [u8]> {
        if self.near.len() == self.len {
            return Ok(self.near);
        }
        let piece = self.far.and_then(|far| far.piece(self.at, self.len));
        piece.ok_or(self.end())
    }

    fn end(&self) -> Error {
        Error::UnexpectedEof(self.offset_id())
    }

    #[inline]
    fn work(&self, work: usize) -> gimli::Result<()> {
        match step(work as u64) && is_shallow() {
            true => Ok(()),
            false => Err(self.end()),
        }
    }

    /// Skips `len` bytes, which must exist.
    #[inline]
    fn advance(&mut self, len: usize) {
        self.near = self.near.get(len..).unwrap_or(&[]);
        self.len -= len;
        self.at += len;
    }

    /// The bytes at `from`, if they are not in `near`.
    fn further(&self, from: usize) -> gimli::Result<&'static [u8]> {
        let found = self.far.and_then(|far| far.from(self.at + from));
        let found = found.ok_or(self.end())?;
        Ok(&found[..found.len().min(self.len - from)])
    }

    /// Fills `to` with bytes that are only partly in `near`.
    #[cold]
    fn read_further(&mut self, mut to: &mut [u8]) -> gimli::Result<()> {
        while !to.is_empty() {
            if self.near.is_empty() {
                self.near = self.further(0)?;
            }
            let n = to.len().min(self.near.len());
            to[..n].copy_from_slice(&self.near[..n]);
            self.advance(n);
            to = &mut to[n..];
        }
        Ok(())
    }
}

impl Reader for Slice {
    type Endian = LittleEndian;
    type Offset = usize;

    fn endian(&self) -> LittleEndian {
        LittleEndian
    }
    fn len(&self) -> usize {
        self.len
    }
    fn empty(&mut self) {
        (self.near, self.len) = (&[], 0);
    }
    fn truncate(&mut self, len: usize) -> gimli::Result<()> {
        if len > self.len {
            return Err(self.end());
        }
        self.len = len;
        self.near = &self.near[..self.near.len().min(len)];
        Ok(())
    }
    fn offset_from(&self, base: &Slice) -> usize {
        self.at.wrapping_sub(base.at)
    }
    fn offset_id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.at as u64)
    }
    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        let offset = usize::try_from(id.0).ok()?.checked_sub(self.at)?;
        (offset <= self.len).then_some(offset)
    }
    fn find(&self, byte: u8) -> gimli::Result<usize> {
        let mut near = self.near;
        let mut before = 0;
        loop {
            let found = memchr::memchr(byte, near);
            self.work(1 + found.unwrap_or(near.len()) / 32)?;
            if let Some(found) = found {
                return Ok(before + found);
            }
            before += near.len();
            if before == self.len {
                return Err(self.end());
            }
            near = self.further(before)?;
        }
    }
    #[inline]
    fn skip(&mut self, len: usize) -> gimli::Result<()> {
        if len > self.len {
            return Err(self.end());
        }
        self.advance(len);
        Ok(())
    }
    #[inline]
    fn split(&mut self, len: usize) -> gimli::Result<Slice> {
        self.work(1)?;
        if len > self.len {
            return Err(self.end());
        }
        let first = Slice {
            near: &self.near[..self.near.len().min(len)],
            len,
            ..*self
        };
        self.advance(len);
        Ok(first)
    }
    fn to_slice(&self) -> gimli::Result<Cow<'_, [u8]>> {
        self.piece().map(Cow::Borrowed)
    }
    fn to_string(&self) -> gimli::Result<Cow<'_, str>> {
        let text = std::str::from_utf8(self.piece()?);
        text.map(Cow::Borrowed).map_err(|_| Error::BadUtf8)
    }
    fn to_string_lossy(&self) -> gimli::Result<Cow<'_, str>> {
        self.work(1 + self.len / 32)?;
        Ok(String::from_utf8_lossy(self.piece()?))
    }
    #[inline]
    fn read_slice(&mut self, to: &mut [u8]) -> gimli::Result<()> {
        self.work(1)?;
        match self.near.get(..to.len()) {
            Some(near) => {
                to.copy_from_slice(near);
                self.advance(to.len());
                Ok(())
            }
            None if to.len() > self.len => Err(self.end()),
            None => self.read_further(to),
        }
    }
}
