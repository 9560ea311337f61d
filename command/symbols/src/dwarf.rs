//! What everybody says of debug information.

use crate::meter::Slice;
use gimli::{DebuggingInformationEntry, UnitOffset};

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
