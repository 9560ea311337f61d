//! What everybody says of debug information.

use crate::meter::Slice;
use gimli::{DebuggingInformationEntry, Reader, Section, UnitOffset};
use std::collections::HashSet;

/// Attributes of one kind of entry; compilers write some thirty at most.
const MOST_ATTRIBUTES: usize = 256;

pub type Dwarf = gimli::Dwarf<Slice>;

pub type Entry<'a, 'u> = DebuggingInformationEntry<'a, 'u, Slice>;

/// One debugging information entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Die {
    pub unit: u32,
    pub offset: UnitOffset,
}

/// An attribute that is a text.
pub fn attr_str(
    dwarf: &Dwarf,
    unit: &gimli::Unit<Slice>,
    entry: &Entry,
    at: gimli::DwAt,
) -> Option<&'static str> {
    let value = entry.attr_value(at).ok()??;
    let slice = dwarf.attr_string(unit, value).ok()?;
    std::str::from_utf8(slice.bytes()).ok()
}

/// Readers go through all attributes of an entry, also through those that take no bytes: so few bytes could
/// stand for endless work. Every table of abbreviations that a unit names is looked at.
pub fn attributes_are_few(dwarf: &Dwarf) -> bool {
    let all = [Some(dwarf), dwarf.sup()];
    all.into_iter().flatten().all(|dwarf| {
        let mut tables = HashSet::new();
        let mut units = dwarf.units();
        while let Ok(Some(unit)) = units.next() {
            tables.insert(unit.debug_abbrev_offset().0);
        }
        let mut units = dwarf.type_units();
        while let Ok(Some(unit)) = units.next() {
            tables.insert(unit.debug_abbrev_offset().0);
        }
        let few = |table: &usize| attributes_of(dwarf, *table).is_none_or(|n| n <= MOST_ATTRIBUTES);
        tables.iter().all(few)
    })
}

/// The most attributes of one abbreviation of a table (DWARF 5, 7.5.3); `None` if the table is broken, which
/// gimli finds as well.
fn attributes_of(dwarf: &Dwarf, table: usize) -> Option<usize> {
    let mut data = *dwarf.debug_abbrev.reader();
    data.skip(table).ok()?;
    let mut most = 0;
    while data.read_uleb128().ok()? != 0 {
        let (_tag, _children) = (data.read_uleb128().ok()?, data.read_u8().ok()?);
        let mut count = 0;
        loop {
            let (name, form) = (data.read_uleb128().ok()?, data.read_uleb128().ok()?);
            if (name, form) == (0, 0) {
                break;
            }
            if form == u64::from(gimli::DW_FORM_implicit_const.0) {
                data.read_sleb128().ok()?;
            }
            count += 1;
        }
        most = most.max(count);
    }
    Some(most)
}
