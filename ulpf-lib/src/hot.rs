//! What is kept of an access that was hot, for the next run of its file (`BUILD-ID.hot` in the user's cache folder).
//!
//! ```text
//!   8 bytes        "ulpfhot1"
//!   8 bytes each   offset in the file as it is mapped (32 bits), length of the instruction (8), does it store (1), a hash of
//!                  its bytes (23); little-endian, ascending
//! ```

/// The first bytes of such a file.
pub const MAGIC: &[u8; 8] = b"ulpfhot1";
/// More entries are neither written nor read.
pub const MOST: usize = 1 << 17;
/// Bytes of one.
pub const ENTRY: usize = 8;

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

    /// Where it is.
    pub fn offset(self) -> u32 {
        self.0 as u32
    }

    /// Does it write to memory?
    pub fn stores(self) -> bool {
        self.0 >> STORES & 1 != 0
    }

    /// Does this code begin with the same instruction?
    pub fn is(self, code: &[u8]) -> bool {
        let len = (self.0 >> LEN & 0xff) as usize;
        let own = code.get(..len).filter(|own| !own.is_empty());
        own.is_some_and(|own| hash(own) == self.0 >> HASH)
    }
}

/// FNV-1a, in 23 bits.
fn hash(code: &[u8]) -> u64 {
    let hash = code.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ hash >> 23 ^ hash >> 46) & 0x7f_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

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
