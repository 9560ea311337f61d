//! Layout of the file; docs/log.md describes it for authors of other readers.
//!
//! ```text
//! file  := MAGIC block*
//! block := head (HEAD_LEN bytes) payload
//!
//! head   0 "ULPB"   4 CRC of the head behind it   8 CRC of the payload   12 length of the payload
//!       16 what (1 words, 2 hits)                20 life                 24 ring   28 hits
//!       32 time of the first hit   40 of the last   48 lowest address   56 highest   64 lost   72 marks …
//! ```
//! All numbers are little-endian. Each block can be read on its own, so damage costs only the hits of its block. The
//! heads are the index: they give the times of a block's hits and the bytes that those hits touched.

use crc32fast::hash;

/// Magic number of the file; the last byte is the version of the format.
pub const MAGIC: &[u8; 8] = b"ulpflog\x01";
/// Magic number of a block.
const BLOCK: &[u8; 4] = b"ULPB";
/// Length of [`Head::marks`] in words.
const MARK_WORDS: usize = 16;
/// Length of a head in bytes.
pub const HEAD_LEN: usize = 72 + 8 * MARK_WORDS;
/// A block of hits is written when it has this many bytes.
pub const FULL: usize = 64 << 10;
/// Upper limit of the bytes that one hit adds to a block, with its site, callers and optional parts.
pub const LARGEST_HIT: usize = 512;
/// Upper limit of a payload; longer words are split.
pub const LARGEST: usize = 1 << 20;

/// Bytes that share a mark.
const GRAIN: u64 = 64;
/// A hit that touches more grains sets all marks.
const MOST_GRAINS: u64 = 16;

/// Kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Lines of JSON: lives, watches, instructions, and the messages of the run.
    Words,
    /// Hits of one thread's ring.
    Hits,
}

/// Head of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub what: What,
    /// Length of the payload in bytes.
    pub len: u32,
    pub crc: u32,
    /// Number of the life: a process from one exec to the next, counted as in the words.
    pub life: u32,
    pub ring: u32,
    /// Number of hits.
    pub hits: u32,
    /// TSC of the first and the last hit.
    pub first: u64,
    pub last: u64,
    /// The lowest and the highest byte that the hits touched.
    pub lowest: u64,
    pub highest: u64,
    /// Hits of this ring that were lost after the last hit of the block. Hits lost earlier are counted at the hit that
    /// follows them.
    pub lost: u64,
    pub marks: Marks,
}

impl Head {
    pub fn new(what: What, life: u32, ring: u32) -> Head {
        Head {
            what,
            len: 0,
            crc: 0,
            life,
            ring,
            hits: 0,
            first: 0,
            last: 0,
            lowest: u64::MAX,
            highest: 0,
            lost: 0,
            marks: Marks::default(),
        }
    }

    /// The head as it is stored before `payload`.
    pub fn bytes(&self, payload: &[u8]) -> [u8; HEAD_LEN] {
        let mut out = [0; HEAD_LEN];
        let what = match self.what {
            What::Words => 1u32,
            What::Hits => 2,
        };
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, BLOCK);
        put(8, &hash(payload).to_le_bytes());
        put(12, &(payload.len() as u32).to_le_bytes());
        put(16, &what.to_le_bytes());
        put(20, &self.life.to_le_bytes());
        put(24, &self.ring.to_le_bytes());
        put(28, &self.hits.to_le_bytes());
        put(32, &self.first.to_le_bytes());
        put(40, &self.last.to_le_bytes());
        put(48, &self.lowest.to_le_bytes());
        put(56, &self.highest.to_le_bytes());
        put(64, &self.lost.to_le_bytes());
        for (n, word) in self.marks.0.iter().enumerate() {
            put(72 + 8 * n, &word.to_le_bytes());
        }
        let crc = hash(&out[8..]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// `None` if no block starts here.
    pub fn read(bytes: &[u8; HEAD_LEN]) -> Option<Head> {
        let (small, large) = (|at: usize| number(bytes, at) as u32, |at| number(bytes, at));
        if !bytes.starts_with(BLOCK) || small(4) != hash(&bytes[8..]) {
            return None;
        }
        let what = match small(16) {
            1 => What::Words,
            2 => What::Hits,
            _ => return None,
        };
        (small(12) as usize <= LARGEST).then(|| Head {
            what,
            crc: small(8),
            len: small(12),
            life: small(20),
            ring: small(24),
            hits: small(28),
            first: large(32),
            last: large(40),
            lowest: large(48),
            highest: large(56),
            lost: large(64),
            marks: Marks(std::array::from_fn(|n| large(72 + 8 * n))),
        })
    }

    /// Records that a hit touched these bytes.
    #[inline]
    pub fn touch(&mut self, addr: u64, len: u32) {
        let end = addr.saturating_add(u64::from(len.max(1)) - 1);
        self.lowest = self.lowest.min(addr);
        self.highest = self.highest.max(end);
        self.marks.add(addr, end);
    }

    /// Whether a hit may overlap `[addr, addr + len)`; `false` is certain.
    pub fn may_touch(&self, addr: u64, len: u64) -> bool {
        let end = addr.saturating_add(len.max(1) - 1);
        self.hits > 0 && addr <= self.highest && end >= self.lowest && self.marks.has(addr, end)
    }
}

/// Touched grains of the program's memory, by hash of the address: a Bloom filter with one hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks([u64; MARK_WORDS]);

impl Marks {
    fn place(grain: u64) -> (usize, u64) {
        let hash = grain.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
        ((hash / 64) as usize % MARK_WORDS, 1 << (hash % 64))
    }

    #[inline]
    fn add(&mut self, first: u64, last: u64) {
        let (first, last) = (first / GRAIN, last / GRAIN);
        if last - first > MOST_GRAINS {
            self.0 = [u64::MAX; MARK_WORDS];
            return;
        }
        for grain in first..=last {
            let (word, bit) = Marks::place(grain);
            self.0[word] |= bit;
        }
    }

    fn has(&self, first: u64, last: u64) -> bool {
        let (first, last) = (first / GRAIN, last / GRAIN);
        let has = |grain| {
            let (word, bit) = Marks::place(grain);
            self.0[word] & bit != 0
        };
        last - first > MOST_GRAINS || (first..=last).any(has)
    }
}

/// Reads eight bytes, or fewer at the end, as a number.
pub fn number(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    let from = bytes.get(at..).unwrap_or_default();
    let n = from.len().min(8);
    out[..n].copy_from_slice(&from[..n]);
    u64::from_le_bytes(out)
}

/// Zigzag coding: maps numbers near zero, of either sign, to small numbers.
#[inline]
pub fn zigzag(n: u64) -> u64 {
    n << 1 ^ ((n as i64) >> 63) as u64
}

/// Inverse of [`zigzag`].
#[inline]
pub fn unzigzag(n: u64) -> u64 {
    n >> 1 ^ (n & 1).wrapping_neg()
}

/// Instruction, thread and watch of a hit: the part that many hits share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Site {
    pub pc: u64,
    pub watch: u32,
    pub tid: u32,
    pub len: u32,
    pub kind: u8,
    pub flags: u8,
}

/// Limit of the sites of a block.
pub const MOST_SITES: usize = 2000;
/// Limit of the distinct call stacks of a block.
pub const MOST_STACKS: usize = 4096;
/// Site numbers from here on take two bytes.
pub const SHORT_SITES: usize = 0xe0;
/// In place of a site's number: the next item is not a hit.
pub const NO_HIT: u8 = 0xff;
/// Codes after [`NO_HIT`]: the next site, a call stack, optional parts of the next hit.
pub const A_SITE: u8 = 1;
pub const A_STACK: u8 = 2;
pub const MORE: u8 = 3;
/// Optional parts of the next hit, in this order.
pub mod more {
    /// Eight bytes: the number of hits lost before it.
    pub const LOST: u8 = 1;
    /// Eight bytes: `Hit::inside`.
    pub const INSIDE: u8 = 2;
    /// The bytes of its values after the first eight: one byte for the number of bytes, then the old and the new ones.
    pub const VALUES: u8 = 4;
    /// A system call: number, six arguments and result, eight bytes each.
    pub const CALL: u8 = 8;
    /// Two bytes: number of the call stack.
    pub const STACK: u8 = 16;
}

/// Bytes of a field, by its two bits of the control byte.
pub const TIME: [usize; 4] = [1, 2, 4, 8];
pub const FIELD: [usize; 4] = [0, 1, 4, 8];

/// The last values, by hash of the address: the old value of a hit is mostly the new value of the one before.
pub struct Values(Box<[u64; VALUES]>);

const VALUES: usize = 1024;

impl Default for Values {
    fn default() -> Values {
        Values(Box::new([0; VALUES]))
    }
}

impl Values {
    pub fn clear(&mut self) {
        self.0.fill(0);
    }

    #[inline]
    pub fn at(&mut self, addr: u64) -> &mut u64 {
        let hash = addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
        &mut self.0[hash as usize % VALUES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_back_and_know_when_they_are_damaged() {
        let mut head = Head::new(What::Hits, 3, 7);
        (head.hits, head.first, head.last, head.lost) = (2, 10, u64::MAX, 5);
        head.touch(0x1000, 4);
        head.touch(0x203c, 8);
        let payload = b"abc";
        let bytes = head.bytes(payload);
        (head.len, head.crc) = (3, hash(payload));
        assert_eq!(Head::read(&bytes), Some(head.clone()));
        for at in 0..HEAD_LEN {
            let mut other = bytes;
            other[at] ^= 0x10;
            assert_eq!(Head::read(&other), None, "byte {at}");
        }
        for (addr, len, may) in [
            (0x1003, 1, true),
            (0x103f, 2, true),
            (0x2043, 1, true),
            (0x2044, 1, false),
            (0xfff, 1, false),
            (0, u64::MAX, true),
        ] {
            assert_eq!(head.may_touch(addr, len), may, "{addr:#x}");
        }
        // Between the two, in a different grain.
        assert!(!head.may_touch(0x1800, 8));
    }

    #[test]
    fn near_zero_is_small() {
        for (n, small) in [(0, 0), (u64::MAX, 1), (1, 2), (1 << 63, u64::MAX)] {
            assert_eq!((zigzag(n), unzigzag(small)), (small, n));
        }
    }
}
