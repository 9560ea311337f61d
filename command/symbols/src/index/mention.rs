//! Which units mention a name.
//!
//! Names are texts in the unit itself, or places in tables of texts, or numbers of such places in a table of the
//! unit's (DWARF 5, 7.5.5). Linkers let a text begin within another one that ends alike. So all places where the name
//! ends a text are looked for, as bytes, in all that units consist of: what is found may be something else, and the
//! unit is walked in vain; but none that has the name is left out.

use super::{File, Index};
use crate::dwarf::Dwarf;
use crate::meter;
use gimli::{AttributeValue, Section, constants as dw};
use memchr::memmem;

/// So many places are looked for one after the other; more of them all at once.
const FEW: usize = 4;

/// Places in tables of texts.
struct Places {
    all: Vec<u32>,
    /// One bit for each place.
    bits: Vec<u64>,
}

impl Places {
    fn of(tables: &[&[u8]], needle: &[u8]) -> Places {
        let finder = memmem::Finder::new(needle);
        let found = |table: &&[u8]| {
            let texts = finder
                .find_iter(table)
                .filter_map(|at| u32::try_from(at).ok());
            texts.collect::<Vec<u32>>()
        };
        let mut all: Vec<u32> = tables.iter().flat_map(found).collect();
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

    /// Calls `found` with each offset at which one of the places may stand, until it says where to go on.
    fn each(&self, bytes: &[u8], mut found: impl FnMut(usize) -> usize) {
        if self.all.len() <= FEW {
            for place in &self.all {
                let place = place.to_le_bytes();
                let finder = memmem::Finder::new(&place);
                let mut at = 0;
                while let Some(n) = bytes.get(at..).and_then(|rest| finder.find(rest)) {
                    at = found(at + n).max(at + n + 1);
                }
            }
            return;
        }
        let mut at = 0;
        while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk()) {
            at = match self.has(u32::from_le_bytes(*word)) {
                true => found(at).max(at + 1),
                false => at + 1,
            };
        }
    }
}

impl Index {
    /// Units that may mention a name, in order.
    pub(super) fn search(&self, name: &str) -> Vec<u32> {
        let needle = [name.as_bytes(), &[0]].concat();
        let sup = self.dwarf.sup();
        let files = [(File::Own, &*self.dwarf)].into_iter();
        let files = files.chain(sup.map(|sup| (File::Supplementary, sup)));
        let split = self.split.iter().enumerate();
        let files = files.chain(split.map(|(n, file)| (File::Split(n as u32), &**file)));
        let mut units = Vec::new();
        for (file, dwarf) in files {
            // A unit of the file itself may have names in the supplementary file.
            let shared = sup.map_or(&[][..], |sup| sup.debug_str.reader().bytes());
            let tables = [
                dwarf.debug_str.reader().bytes(),
                dwarf.debug_line_str.reader().bytes(),
                shared,
            ];
            let places = Places::of(&tables, &needle);
            for types in [false, true] {
                let bytes = match types {
                    false => dwarf.debug_info.reader().bytes(),
                    true => dwarf.debug_types.reader().bytes(),
                };
                let mut found = |at| match self.unit_around(file, types, at) {
                    Some(unit) => {
                        units.push(unit);
                        self.end(unit)
                    }
                    None => at + 1,
                };
                places.each(bytes, &mut found);
                let mut at = 0;
                while let Some(n) = bytes.get(at..).and_then(|rest| memmem::find(rest, &needle)) {
                    at = found(at + n).max(at + n + 1);
                }
                meter::step(bytes.len() as u64 / 16);
            }
            self.by_number(file, dwarf, &places, &mut units);
        }
        units.sort_unstable();
        units.dedup();
        units
    }

    /// Where a unit ends in its section.
    fn end(&self, unit: u32) -> usize {
        let header = &self.units[unit as usize].header;
        let start = match header.offset() {
            gimli::UnitSectionOffset::DebugInfoOffset(at) => at.0,
            gimli::UnitSectionOffset::DebugTypesOffset(at) => at.0,
        };
        start.saturating_add(header.length_including_self())
    }

    /// Units whose table of numbers has one of the places.
    fn by_number(&self, file: File, dwarf: &Dwarf, places: &Places, units: &mut Vec<u32>) {
        let numbers = dwarf.debug_str_offsets.reader().bytes();
        if numbers.is_empty() || places.all.is_empty() {
            return;
        }
        let mut bases: Vec<(usize, u32)> = (0..self.len())
            .filter(|unit| self.units[*unit as usize].file == file)
            .map(|unit| (self.base(dwarf, unit).unwrap_or(0), unit))
            .collect();
        bases.sort_unstable();
        places.each(numbers, |at| {
            let after = bases.partition_point(|(base, _)| *base <= at);
            let Some((base, _)) = after.checked_sub(1).map(|n| bases[n]) else {
                return at + 1;
            };
            let first = bases.partition_point(|(other, _)| *other < base);
            units.extend(bases[first..after].iter().map(|(_, unit)| unit));
            bases.get(after).map_or(numbers.len(), |(next, _)| *next)
        });
    }

    /// Where a unit's table of numbers begins. Only its first entry is read, for the unit may not be needed.
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
