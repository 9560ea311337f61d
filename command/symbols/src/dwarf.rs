//! Helpers for all readers of debug information.

use crate::slice::Slice;
use gimli::{DebuggingInformationEntry, Reader, Section, UnitOffset, constants as dw};
use std::collections::HashSet;
use std::sync::Arc;

/// Limit of attributes of one kind of entry. Compilers write about thirty at most.
const MOST_ATTRIBUTES: usize = 256;

pub type Dwarf = gimli::Dwarf<Slice>;

/// A pointer in the form that addr2line requires. It stays on its thread.
#[expect(
    clippy::arc_with_non_send_sync,
    reason = "addr2line takes no other pointer"
)]
pub fn shared(dwarf: Dwarf) -> Arc<Dwarf> {
    Arc::new(dwarf)
}

pub type Entry<'a, 'u> = DebuggingInformationEntry<'a, 'u, Slice>;

/// One debugging information entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Die {
    pub unit: u32,
    pub offset: UnitOffset,
}

/// An attribute whose value is a string.
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

/// Properties of the whole debug information, derived from its abbreviations.
#[derive(Clone, Copy, Default)]
pub struct Traits {
    /// Some entries have more attributes than any compiler writes. Readers visit all attributes of an entry, and some
    /// attributes take no bytes. So a few bytes could cause endless work.
    pub too_many: bool,
    /// Variables and functions take their names from entries of other units. Optimising linkers and dwz write such
    /// references.
    pub crosses: bool,
    /// Some units may be skeletons of units in `.dwo` files.
    pub skeletons: bool,
}

/// Reads every abbreviation table that a unit refers to.
pub fn traits(dwarf: &Dwarf) -> Traits {
    let mut traits = Traits::default();
    for dwarf in [Some(dwarf), dwarf.sup()].into_iter().flatten() {
        let mut tables = HashSet::new();
        let mut units = dwarf.units();
        while let Ok(Some(unit)) = units.next() {
            tables.insert(unit.debug_abbrev_offset().0);
            traits.skeletons |= matches!(unit.type_(), gimli::UnitType::Skeleton(_));
        }
        let mut units = dwarf.type_units();
        while let Ok(Some(unit)) = units.next() {
            tables.insert(unit.debug_abbrev_offset().0);
        }
        for table in &tables {
            // If this table is broken, gimli reports that when it reads a unit.
            let _ = look_at(dwarf, *table, &mut traits);
        }
    }
    traits
}

/// Reads one abbreviation table (DWARF 5, 7.5.3).
fn look_at(dwarf: &Dwarf, table: usize, traits: &mut Traits) -> gimli::Result<()> {
    let mut data = *dwarf.debug_abbrev.reader();
    data.skip(table)?;
    while data.read_uleb128()? != 0 {
        let (tag, _children) = (data.read_uleb128_u16()?, data.read_u8()?);
        let named = matches!(
            gimli::DwTag(tag),
            dw::DW_TAG_subprogram
                | dw::DW_TAG_variable
                | dw::DW_TAG_formal_parameter
                | dw::DW_TAG_member
        );
        let mut count = 0;
        loop {
            let (name, form) = (data.read_uleb128()?, data.read_uleb128()?);
            if (name, form) == (0, 0) {
                break;
            }
            if form == u64::from(dw::DW_FORM_implicit_const.0) {
                data.read_sleb128()?;
            }
            traits.crosses |= named && is_completion(name) && is_elsewhere(form);
            traits.skeletons |= name == u64::from(dw::DW_AT_GNU_dwo_id.0);
            count += 1;
        }
        traits.too_many |= count > MOST_ATTRIBUTES;
    }
    Ok(())
}

fn is_completion(attribute: u64) -> bool {
    [dw::DW_AT_specification, dw::DW_AT_abstract_origin]
        .iter()
        .any(|at| u64::from(at.0) == attribute)
}

/// Whether a reference of this form leads to another unit.
fn is_elsewhere(form: u64) -> bool {
    let within = [
        dw::DW_FORM_ref1,
        dw::DW_FORM_ref2,
        dw::DW_FORM_ref4,
        dw::DW_FORM_ref8,
        dw::DW_FORM_ref_udata,
    ];
    !within.iter().any(|known| u64::from(known.0) == form)
}
