//! Records of last writers: four bytes for each byte of moved memory.
//!
//! ```text
//! record    31                14 13           0
//!           |      site         |    stamp    |      0: not written since records began
//!
//! tables    | stamps | sites | callers | records: four bytes for each byte of our place, by its alias |
//! ```
//! A *site* is an instruction, or a system call and the instruction that made it. A *stamp* is a thread and the time from
//! which on it used this stamp; it gets another one after a while. So the time of a store is known up to the distance of two
//! stamps. That distance doubles after each [`STAMPS_AT_ONE_RATE`] stamps: their number suffices for any time.

use crate::syscalls::uring;

/// Bytes of a record.
pub const RECORD: u64 = 4;
/// Bits of a stamp's number.
const STAMP_BITS: u32 = 14;
/// Number of stamps. The first one is no stamp: the thread and the time are not known.
pub const STAMPS: usize = 1 << STAMP_BITS;
/// Number of sites. The first one is no site: the writer is not known.
pub const SITES: usize = 1 << (32 - STAMP_BITS);
/// Stamps after which their distance doubles.
pub const STAMPS_AT_ONE_RATE: u32 = 1024;
/// Nanoseconds between two stamps of a thread at first.
pub const FIRST_DISTANCE_NS: u64 = 10_000_000;

/// Entries of the table of callers: a return address, and the records of its site in both halves of a word. A return address
/// has its place by its lowest bits.
pub const CALLERS: usize = 1 << 16;

/// Offset of the sites in the tables, in bytes.
pub const SITES_OFFSET: u64 = STAMPS as u64 * 16;
/// Offset of the callers.
pub const CALLERS_OFFSET: u64 = SITES_OFFSET + SITES as u64 * 8;
/// Offset of the records.
pub const RECORDS_OFFSET: u64 = CALLERS_OFFSET + CALLERS as u64 * 16;
/// Bytes of all tables for a place of `memory` bytes.
pub const fn tables_len(memory: u64) -> u64 {
    RECORDS_OFFSET + memory * RECORD
}

/// A record.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LastWriter(pub u32);

impl LastWriter {
    /// Nothing is known.
    pub const NONE: LastWriter = LastWriter(0);

    /// The record of a store.
    pub const fn new(site: u32, stamp: u32) -> LastWriter {
        LastWriter(site << STAMP_BITS | stamp & (STAMPS as u32 - 1))
    }
    /// The number of its site; 0: not known.
    pub const fn site(self) -> usize {
        (self.0 >> STAMP_BITS) as usize
    }
    /// The number of its stamp; 0: not known.
    pub const fn stamp(self) -> usize {
        self.0 as usize & (STAMPS - 1)
    }
}

/// Two equal records in a row, as trampolines store them.
pub const fn pair(site: u32, stamp: u32) -> u64 {
    let record = LastWriter::new(site, stamp).0 as u64;
    record << 32 | record
}

/// A site: an instruction, and the system call that it made, if it was one. Of a store in a runtime library, it is the
/// program's own call that led there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Site {
    /// Address of the instruction; of a call, its return address.
    pub pc: u64,
    /// It is a call of a function that has written, or made the system call.
    pub called: bool,
    /// That function is the allocator's: it keeps its books.
    pub books: bool,
    /// Number of the system call, or of the request of io_uring ([`crate::syscalls::uring`]).
    pub call: Option<u64>,
}

impl Site {
    const CALL_SHIFT: u32 = 48;
    const CALLED: u64 = 1 << 63;
    const BOOKS: u64 = 1 << 62;
    /// In place of the first request of io_uring.
    const FIRST_REQUEST: u64 = 1 << 13;

    /// As the table of sites has it: not 0.
    pub fn word(self) -> u64 {
        let call = match self.call {
            None => 0,
            Some(nr) if nr >= uring::FIRST => nr - uring::FIRST + Self::FIRST_REQUEST + 1,
            Some(nr) => nr + 1,
        };
        let bit = |is, bit| if is { bit } else { 0 };
        let bits = bit(self.called, Self::CALLED) | bit(self.books, Self::BOOKS);
        self.pc & ((1 << Self::CALL_SHIFT) - 1) | call << Self::CALL_SHIFT | bits
    }

    /// The site that has this word in the table; `None`: no site.
    pub fn of(word: u64) -> Option<Site> {
        let bits = Self::CALLED | Self::BOOKS;
        let call = ((word & !bits) >> Self::CALL_SHIFT).checked_sub(1);
        (word != 0).then(|| Site {
            pc: word & ((1 << Self::CALL_SHIFT) - 1),
            called: word & Self::CALLED != 0,
            books: word & Self::BOOKS != 0,
            call: call.map(|nr| match nr.checked_sub(Self::FIRST_REQUEST) {
                Some(request) => uring::FIRST + request,
                None => nr,
            }),
        })
    }

    /// Where the search for its place in the table begins.
    pub fn place(self) -> usize {
        (self.word().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % SITES
    }
}

/// A stretch of bytes that have one last writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Their record.
    pub by: LastWriter,
}

/// Joins records of consecutive bytes, the first one at `addr`, to stretches.
pub fn stretches(addr: u64, records: impl Iterator<Item = LastWriter>) -> alloc::vec::Vec<Written> {
    let mut all: alloc::vec::Vec<Written> = alloc::vec::Vec::new();
    for (at, by) in (addr..).zip(records) {
        match all.last_mut() {
            Some(last) if last.by == by => last.len += 1,
            _ => all.push(Written {
                addr: at,
                len: 1,
                by,
            }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_a_site_and_a_stamp() {
        for (site, stamp) in [(1, 0), (SITES as u32 - 1, STAMPS as u32 - 1), (77, 9)] {
            let record = LastWriter::new(site, stamp);
            assert_eq!(
                (record.site(), record.stamp()),
                (site as usize, stamp as usize)
            );
            assert_eq!(pair(site, stamp) as u32, record.0);
            assert_eq!(
                (pair(site, 0) + (u64::from(stamp) << 32 | u64::from(stamp))) as u32,
                record.0
            );
        }
    }

    #[test]
    fn sites_are_told_from_their_words() {
        for call in [
            None,
            Some(0),
            Some(334),
            Some(uring::FIRST),
            Some(uring::FIRST + 22),
        ] {
            for called in [false, true] {
                let site = Site {
                    pc: 0x7fff_1234_5678,
                    called,
                    books: called,
                    call,
                };
                assert_eq!(Site::of(site.word()), Some(site));
                assert!(site.place() < SITES);
            }
        }
        assert_eq!(Site::of(0), None);
    }

    #[test]
    fn equal_neighbours_are_one_stretch() {
        let records = [3, 3, 0, 5].map(LastWriter);
        let found = stretches(100, records.into_iter());
        let found: alloc::vec::Vec<_> = found.iter().map(|w| (w.addr, w.len, w.by.0)).collect();
        assert_eq!(found, [(100, 2, 3), (102, 1, 0), (103, 1, 5)]);
    }
}
