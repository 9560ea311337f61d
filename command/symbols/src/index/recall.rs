//! Converts between hints and the present index.

use super::Index;
use super::finds::File;
use super::hints::Hint;
use super::mentions::Mentions;
use gimli::{Reader, Section, UnitSectionOffset};

impl Index {
    /// The places where a name should be searched first.
    pub(super) fn hint(&self, path: &str, name: &str) -> Option<Mentions> {
        let hint = self.hints.as_ref()?.get(path, name)?;
        let unit = |(types, at): &(bool, u64)| {
            let at = usize::try_from(*at).ok()?;
            let unit = self.unit_around(File::Own, *types, at)?;
            (self.begin(unit).1 == at as u64).then_some(unit)
        };
        // If one offset is not a unit, the hint belongs to another file.
        let mut units: Vec<u32> = hint.units.iter().map(unit).collect::<Option<_>>()?;
        units.sort_unstable();
        units.dedup();
        let end = self.dwarf.debug_str.reader().len();
        let within = |place: &u32| (*place as usize) < end;
        let places = hint.places.into_iter().filter(within).collect();
        Some(Mentions::known(units, places))
    }

    /// Keeps the places of a name for later runs.
    pub(super) fn keep(&self, path: &str, name: &str, found: &Mentions) {
        if let Some(hints) = &self.hints {
            hints.keep(self.to_hint(path, name, found));
        }
    }

    pub(super) fn to_hint(&self, path: &str, name: &str, found: &Mentions) -> Hint {
        Hint {
            name: name.into(),
            path: path.into(),
            units: found.units.iter().map(|unit| self.begin(*unit)).collect(),
            places: found.places_in(File::Own).to_vec(),
        }
    }

    /// Whether a unit is in .debug_types, and its offset in the section.
    fn begin(&self, unit: u32) -> (bool, u64) {
        match self.units[unit as usize].header.offset() {
            UnitSectionOffset::DebugInfoOffset(at) => (false, at.0 as u64),
            UnitSectionOffset::DebugTypesOffset(at) => (true, at.0 as u64),
        }
    }
}
