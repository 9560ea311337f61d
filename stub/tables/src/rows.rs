//! How places of code unwind, remembered in a form that takes a few instructions to follow.
//!
//! For most places the tables only say three things. The frame ends a number of bytes above rsp or rbp. The caller's
//! rbp is stored a number of bytes below that end. The return address is right below the end. A row holds just that.
//! Anything more complicated is looked up in the tables each time.

use alloc::vec;
use alloc::vec::Vec;

/// Number of places that are remembered.
const ROWS: usize = 16384;

/// How to find the end of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CfaRule {
    Rsp = 1,
    Rbp,
    /// The outermost frame, which has no caller.
    End,
    /// The tables have to be asked.
    Tables,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    pub cfa: CfaRule,
    /// Distance of its end, in bytes.
    pub end: u32,
    /// How far below its end the caller's rbp is stored, in bytes; 0: rbp holds the caller's.
    pub rbp: u16,
}

impl Row {
    pub const TABLES: Row = Row {
        cfa: CfaRule::Tables,
        end: 0,
        rbp: 0,
    };

    fn word(self) -> u64 {
        u64::from(self.end) | u64::from(self.rbp) << 32 | (self.cfa as u64) << 48
    }

    #[inline]
    fn of(word: u64) -> Row {
        let cfa = match word >> 48 {
            1 => CfaRule::Rsp,
            2 => CfaRule::Rbp,
            3 => CfaRule::End,
            _ => CfaRule::Tables,
        };
        Row {
            cfa,
            end: word as u32,
            rbp: (word >> 32) as u16,
        }
    }
}

/// A place: the address to look for in tables, and whether it is a thread's instruction or a return address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place(u64);

impl Place {
    /// The place of a thread's present instruction.
    pub fn here(ip: u64) -> Place {
        Place(ip | 1 << 63)
    }

    /// The place of a call that returns to `at`.
    pub fn caller(at: u64) -> Place {
        Place(at.wrapping_sub(1))
    }

    fn slot(self) -> usize {
        (self.0 ^ self.0 >> 13) as usize % ROWS
    }
}

pub struct Rows {
    /// A place, and the row's word. (Zeroed memory costs nothing to make, and no page until it is used.)
    all: Vec<[u64; 2]>,
    /// Generation of the tables that the rows come from.
    generation: u64,
}

impl Default for Rows {
    fn default() -> Rows {
        Rows::new()
    }
}

impl Rows {
    pub fn new() -> Rows {
        Rows {
            all: vec![[0; 2]; ROWS],
            generation: 0,
        }
    }

    /// Forgets rows of an older generation of the tables.
    pub fn settle(&mut self, generation: u64) {
        if self.generation != generation {
            self.generation = generation;
            self.all.fill([0; 2]);
        }
    }

    #[inline]
    pub fn find(&self, place: Place) -> Option<Row> {
        let [known, row] = self.all.get(place.slot())?;
        (*known == place.0).then(|| Row::of(*row))
    }

    pub fn put(&mut self, place: Place, row: Row) {
        if let Some(slot) = self.all.get_mut(place.slot()) {
            *slot = [place.0, row.word()];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: Row = Row {
        cfa: CfaRule::Rbp,
        end: 1 << 20,
        rbp: 16,
    };

    #[test]
    fn keeps_all_of_a_row() {
        let mut rows = Rows::new();
        let end = Row {
            cfa: CfaRule::End,
            ..Row::TABLES
        };
        for (n, row) in [ROW, end, Row::TABLES].into_iter().enumerate() {
            let place = Place::caller(0x7fff_f7a0_1000 + n as u64);
            assert_eq!(rows.find(place), None);
            rows.put(place, row);
            assert_eq!(rows.find(place), Some(row));
        }
    }

    #[test]
    fn tells_places_apart_that_share_a_slot() {
        let mut rows = Rows::new();
        let one = Place::caller(0x1001);
        let mut others = (1..).map(|n| Place::caller(0x1001 + n));
        let other = others.find(|p| p.slot() == one.slot()).unwrap_or(one);
        rows.put(one, ROW);
        assert_ne!(one, other);
        assert_eq!(rows.find(one), Some(ROW));
        assert_eq!(rows.find(other), None);
        assert_eq!(rows.find(Place::here(0x1000)), None);
    }

    #[test]
    fn forgets_with_the_tables() {
        let mut rows = Rows::new();
        rows.settle(1);
        rows.put(Place::here(0x1000), ROW);
        rows.settle(1);
        assert_eq!(rows.find(Place::here(0x1000)), Some(ROW));
        rows.settle(2);
        assert_eq!(rows.find(Place::here(0x1000)), None);
    }
}
