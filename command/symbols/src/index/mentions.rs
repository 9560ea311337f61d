//! Places of a name: the result of a search, which a walk compares names with.

use super::finds::File;
use crate::slice::Slice;
use memchr::memmem;
use std::rc::Rc;

/// Up to this number, places are searched one by one; more of them are searched all at once.
pub const FEW: usize = 4;

/// The result of a search.
#[derive(Default)]
pub struct Mentions {
    /// Units, in order.
    pub units: Vec<u32>,
    /// Offsets of the name in each file's string tables.
    pub places: Vec<(File, Rc<Places>)>,
}

impl Mentions {
    /// The result of an earlier search in the file itself.
    pub fn known(units: Vec<u32>, places: Vec<u32>) -> Mentions {
        let places = Rc::new(Places::new(places));
        Mentions {
            units,
            places: vec![(File::Own, places)],
        }
    }

    pub fn places_in(&self, file: File) -> &[u32] {
        let known = self.places.iter().find(|(of, _)| *of == file);
        known.map_or(&[], |(_, places)| &places.all)
    }

    /// Whether the name may be at this offset of that file's string tables.
    pub fn may_be(&self, file: File, place: usize) -> bool {
        let found = self.places.binary_search_by_key(&file, |(file, _)| *file);
        let known = found.ok().map(|n| &self.places[n].1);
        known.is_some_and(|places| u32::try_from(place).is_ok_and(|place| places.has(place)))
    }
}

/// Offsets in string tables.
pub struct Places {
    pub all: Vec<u32>,
    /// A bit set of the places.
    bits: Vec<u64>,
}

impl Places {
    pub fn of(tables: &[Slice], needle: &[u8]) -> Places {
        let finder = memmem::Finder::new(needle);
        let mut all: Vec<u32> = Vec::new();
        for table in tables {
            table.scan(needle.len(), |at, window| {
                let found = finder.find_iter(window).map(|n| at + n);
                all.extend(found.filter_map(|place| u32::try_from(place).ok()));
                0
            });
        }
        Places::new(all)
    }

    fn new(mut all: Vec<u32>) -> Places {
        all.sort_unstable();
        all.dedup();
        let most = all.last().map_or(0, |most| *most as usize / 64 + 1);
        let mut bits = vec![0u64; most];
        for place in &all {
            bits[*place as usize / 64] |= 1 << (place % 64);
        }
        Places { all, bits }
    }

    fn has(&self, place: u32) -> bool {
        let word = self.bits.get(place as usize / 64);
        word.is_some_and(|word| word >> (place % 64) & 1 != 0)
    }

    /// The first offset in the bytes that may contain one of the places.
    pub fn first(&self, bytes: &[u8]) -> Option<usize> {
        let has = |word: &[u8]| {
            let word = word.first_chunk().map(|word| u32::from_le_bytes(*word));
            word.is_some_and(|place| self.has(place))
        };
        bytes.windows(size_of::<u32>()).position(has)
    }
}

/// A name to find, and the places of that name.
#[derive(Clone, Copy)]
pub struct Sought<'a> {
    pub name: &'a str,
    pub mentions: &'a Mentions,
}
