//! Hot accesses, stored for the next run of their file (`BUILD-ID.hot` in the user's cache folder).
//!
//! ```text
//!   8 bytes          "ulpfhot2"
//!   of each page of code that has some, ascending:
//!     16 bytes       offset of the page in the file as it is mapped (32 bits), how many entries follow (32), a hash of all bytes
//!                    of the page (64)
//!     8 bytes each   offset of the instruction (32 bits), its length (8), does it store (1), a hash of its bytes (23)
//! ```
//! All little-endian. A file chooses its own build ID, so entries are keyed by the code's bytes as well.

use crate::hash::fnv1a;

/// The first bytes of such a file.
pub const MAGIC: &[u8; 8] = b"ulpfhot2";
/// More entries are neither written nor read.
pub const MOST: usize = 1 << 17;
/// Bytes of one.
pub const ENTRY: usize = 8;
/// Bytes of a page's head.
pub const PAGE: usize = 16;

/// A page of code that has entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// As [`Entry::offset`].
    pub offset: u32,
    /// Number of entries that follow.
    pub entries: u32,
    /// [`code_hash`] of the page.
    pub code: u64,
}

impl Page {
    /// Its form in a file.
    pub fn to_bytes(self) -> [u8; PAGE] {
        let head = u64::from(self.offset) | u64::from(self.entries) << 32;
        let mut bytes = [0; PAGE];
        let (low, high) = bytes.split_at_mut(8);
        low.copy_from_slice(&head.to_le_bytes());
        high.copy_from_slice(&self.code.to_le_bytes());
        bytes
    }
}

/// Pages of a file's bytes, each with its entries, as far as these are whole.
pub fn pages(bytes: &[u8]) -> impl Iterator<Item = (Page, impl Iterator<Item = Entry>)> {
    let mut words = bytes.strip_prefix(MAGIC).unwrap_or(&[]);
    core::iter::from_fn(move || {
        let (head, rest) = words.split_first_chunk::<8>()?;
        let (code, rest) = rest.split_first_chunk::<8>()?;
        let head = u64::from_le_bytes(*head);
        let page = Page {
            offset: head as u32,
            entries: (head >> 32) as u32,
            code: u64::from_le_bytes(*code),
        };
        let (entries, rest) = rest.split_at_checked((page.entries as usize).checked_mul(ENTRY)?)?;
        words = rest;
        let entries = entries.chunks_exact(ENTRY);
        let entries = entries.filter_map(|e| Some(Entry(u64::from_le_bytes(*e.first_chunk()?))));
        Some((page, entries))
    })
}

/// A hash of code, in 64 bits: FNV-1a over words.
pub fn code_hash(code: &[u8]) -> u64 {
    let word = |bytes: &[u8]| {
        let bytes = bytes.iter().rev();
        bytes.fold(0u64, |word, byte| word << 8 | u64::from(*byte))
    };
    let hash = code.chunks(8).fold(0xcbf2_9ce4_8422_2325, |hash, bytes| {
        let hash = (hash ^ word(bytes)).wrapping_mul(0x0100_0000_01b3);
        hash ^ hash >> 29
    });
    hash ^ code.len() as u64
}

const LEN: u32 = 32;
const STORES: u32 = 40;
const HASH: u32 = 41;

/// An access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry(pub u64);

impl Entry {
    /// Of the instruction with these bytes (1 to 15) at this offset.
    pub fn new(offset: u32, code: &[u8], stores: bool) -> Entry {
        let (offset, len) = (u64::from(offset), code.len() as u64 & 0xff);
        Entry(offset | len << LEN | u64::from(stores) << STORES | hash(code) << HASH)
    }

    /// Offset of the instruction.
    pub fn offset(self) -> u32 {
        self.0 as u32
    }

    /// Whether it writes to memory.
    pub fn stores(self) -> bool {
        self.0 >> STORES & 1 != 0
    }

    /// Whether this code begins with the same instruction.
    pub fn is(self, code: &[u8]) -> bool {
        let len = (self.0 >> LEN & 0xff) as usize;
        let own = code.get(..len).filter(|own| !own.is_empty());
        own.is_some_and(|own| hash(own) == self.0 >> HASH)
    }
}

/// FNV-1a, in 23 bits.
fn hash(code: &[u8]) -> u64 {
    let hash = fnv1a(code.iter().copied());
    (hash ^ hash >> 23 ^ hash >> 46) & 0x7f_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_with_their_entries() {
        let page = |offset, entries, code| Page {
            offset,
            entries,
            code,
        };
        let entries = [
            Entry::new(0x1008, &[0x90], true),
            Entry::new(0x1010, &[0xc3], false),
        ];
        let mut file = MAGIC.to_vec();
        for (page, entries) in [
            (page(0x1000, 2, 7), &entries[..]),
            (page(0x3000, 1, 8), &entries[..1]),
        ] {
            file.extend(page.to_bytes());
            file.extend(entries.iter().flat_map(|e| e.0.to_le_bytes()));
        }
        let read = |bytes: &[u8]| -> Vec<(Page, Vec<Entry>)> {
            pages(bytes)
                .map(|(page, all)| (page, all.collect()))
                .collect()
        };
        assert_eq!(
            read(&file),
            [
                (page(0x1000, 2, 7), entries.to_vec()),
                (page(0x3000, 1, 8), entries[..1].to_vec())
            ]
        );
        assert_eq!(read(&file[..file.len() - 1]).len(), 1);
        assert!(read(&file[1..]).is_empty() && read(b"").is_empty());
        assert_ne!(code_hash(&[1, 2, 3]), code_hash(&[1, 2, 3, 0]));
        assert_ne!(code_hash(&[0; 16]), code_hash(&[0; 24]));
    }

    #[test]
    fn an_entry_is_of_one_instruction() {
        let code = [0x48, 0x89, 0x47, 0x08, 0x90];
        let entry = Entry::new(0x1234, &code[..4], true);
        assert!(entry.offset() == 0x1234 && entry.stores() && entry.is(&code));
        assert!(!entry.is(&code[..3]) && !entry.is(&[0x48, 0x89, 0x47, 0x10, 0x90]));
        assert!(!Entry::new(1, &code[..4], false).stores());
        assert!(!Entry(0).is(&code));
    }
}
