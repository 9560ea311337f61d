//! Finds the units that mention a name.
//!
//! A name is a string in the unit itself, an offset in a string table, or the index of such an offset in the unit's
//! table of offsets (DWARF 5, 7.5.5). A linker may let a string begin within another string with the same end. So the
//! search takes all offsets where the name ends a string, and looks for their bytes in all units. A match counts only
//! if an entry may have its name there ([`Openings`]). A match may still be accidental, and the unit is walked in vain;
//! but no unit with the name is missed.

use super::Index;
use super::finds::File;
use super::mentions::{FEW, Mentions, Places};
use super::openings::{Openings, Tags};
use crate::dwarf::Dwarf;
use crate::slice::Slice;
use gimli::{AttributeValue, Section, constants as dw};
use memchr::memmem;
use std::collections::HashMap;
use std::rc::Rc;

/// Calls `found` with each offset at which `first` matches in a section, and the bytes before it. `found` returns where
/// to continue. `first` reads at most `len` bytes.
fn each(
    section: &Slice,
    len: usize,
    first: impl Fn(&[u8]) -> Option<usize>,
    mut found: impl FnMut(usize, &[u8]) -> usize,
) {
    let mut next = 0;
    section.scan(Openings::MOST_BEFORE + len, |at, window| {
        while let Some(from) = usize::checked_sub(next.max(at), at) {
            let Some(n) = window.get(from..).and_then(&first) else {
                break;
            };
            let here = at + from + n;
            next = found(here, &window[..from + n]).max(here + 1);
        }
        next
    });
}

/// A search in progress.
struct Search<'a> {
    index: &'a Index,
    tags: Tags,
    units: Vec<u32>,
    /// Keyed by the first unit with the abbreviation table.
    openings: HashMap<u32, Openings>,
}

impl Search<'_> {
    /// Handles bytes that may be the name or its offset. Returns where to continue.
    fn found(
        &mut self,
        file: File,
        types: bool,
        at: usize,
        before: &[u8],
        in_place: bool,
    ) -> usize {
        let Some(unit) = self.index.unit_around(file, types, at) else {
            return at + 1;
        };
        let header = &self.index.units[unit as usize].header;
        let openings = self.openings.entry(unit).or_insert_with(|| {
            let abbreviations = &self.index.home(unit).debug_abbrev;
            Openings::of(abbreviations, header, self.tags)
        });
        if !openings.fit(before, in_place) {
            return at + 1;
        }
        self.units.push(unit);
        self.index.end(unit)
    }
}

impl Index {
    /// Units that may mention a name at an entry with one of the tags.
    pub(super) fn search(&self, name: &str, tags: Tags) -> Mentions {
        let needle = [name.as_bytes(), &[0]].concat();
        let sup = self.dwarf.sup();
        let files = [(File::Own, &*self.dwarf)].into_iter();
        let files = files.chain(sup.map(|sup| (File::Supplementary, sup)));
        let split = self.split.iter().enumerate();
        let files = files.chain(split.map(|(n, file)| (File::Split(n as u32), &**file)));
        let mut search = Search {
            index: self,
            tags,
            units: Vec::new(),
            openings: HashMap::new(),
        };
        let mut places: Vec<(File, Rc<Places>)> = Vec::new();
        for (file, dwarf) in files {
            // A unit of the file itself may have names in the supplementary file.
            let shared = sup.map_or(Slice::new(&[]), |sup| *sup.debug_str.reader());
            let tables = [
                *dwarf.debug_str.reader(),
                *dwarf.debug_line_str.reader(),
                shared,
            ];
            let here = Rc::new(Places::of(&tables, &needle));
            places.push((file, here.clone()));
            for types in [false, true] {
                let section = match types {
                    false => dwarf.debug_info.reader(),
                    true => dwarf.debug_types.reader(),
                };
                let few = here.all.len() <= FEW;
                for place in here.all.iter().filter(|_| few) {
                    let place = place.to_le_bytes();
                    let finder = memmem::Finder::new(&place);
                    let found = |at, before: &[u8]| search.found(file, types, at, before, true);
                    each(section, place.len(), |bytes| finder.find(bytes), found);
                }
                if !few {
                    let found = |at, before: &[u8]| search.found(file, types, at, before, true);
                    each(section, size_of::<u32>(), |bytes| here.first(bytes), found);
                }
                let finder = memmem::Finder::new(&needle);
                let found = |at, before: &[u8]| search.found(file, types, at, before, false);
                each(section, needle.len(), |bytes| finder.find(bytes), found);
            }
            self.by_number(file, dwarf, &here, &mut search.units);
        }
        search.units.sort_unstable();
        search.units.dedup();
        Mentions {
            units: search.units,
            places,
        }
    }

    /// The end of a unit in its section.
    fn end(&self, unit: u32) -> usize {
        let header = &self.units[unit as usize].header;
        let start = match header.offset() {
            gimli::UnitSectionOffset::DebugInfoOffset(at) => at.0,
            gimli::UnitSectionOffset::DebugTypesOffset(at) => at.0,
        };
        start.saturating_add(header.length_including_self())
    }

    /// Units whose table of offsets contains one of the places.
    fn by_number(&self, file: File, dwarf: &Dwarf, places: &Places, units: &mut Vec<u32>) {
        let numbers = dwarf.debug_str_offsets.reader();
        if gimli::Reader::is_empty(numbers) || places.all.is_empty() {
            return;
        }
        let mut bases: Vec<(usize, u32)> = (0..self.len())
            .filter(|unit| self.units[*unit as usize].file == file)
            .map(|unit| (self.base(dwarf, unit).unwrap_or(0), unit))
            .collect();
        bases.sort_unstable();
        let found = |at, _: &[u8]| {
            let after = bases.partition_point(|(base, _)| *base <= at);
            let Some((base, _)) = after.checked_sub(1).map(|n| bases[n]) else {
                return at + 1;
            };
            let first = bases.partition_point(|(other, _)| *other < base);
            units.extend(bases[first..after].iter().map(|(_, unit)| unit));
            bases.get(after).map_or(usize::MAX, |(next, _)| *next)
        };
        each(
            numbers,
            size_of::<u32>(),
            |bytes| places.first(bytes),
            found,
        );
    }

    /// The start of a unit's table of offsets. Reads only the unit's first entry, because the unit may not be needed.
    fn base(&self, dwarf: &Dwarf, unit: u32) -> Option<usize> {
        let header = &self.units[unit as usize].header;
        let kinds = dwarf.abbreviations(header).ok()?;
        let mut entries = header.entries(&kinds);
        entries.next_dfs().ok()?;
        match entries
            .current()?
            .attr_value(dw::DW_AT_str_offsets_base)
            .ok()??
        {
            AttributeValue::DebugStrOffsetsBase(base) => Some(base.0),
            _ => None,
        }
    }
}
