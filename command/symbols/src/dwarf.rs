//! What everybody says of debug information.

use crate::slice::Slice;
use gimli::{DebuggingInformationEntry, Reader, Section, UnitOffset, constants as dw};
use std::collections::HashSet;
use std::sync::Arc;

/// Attributes of one kind of entry; compilers write some thirty at most.
const MOST_ATTRIBUTES: usize = 256;

pub type Dwarf = gimli::Dwarf<Slice>;

/// As addr2line wants it. It stays on its thread.
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

/// What the abbreviations of debug information say of all of it.
#[derive(Clone, Copy, Default)]
pub struct Traits {
    /// Some entries have more attributes than any compiler writes. Readers go through all attributes of an entry, also
    /// through those that take no bytes: so few bytes could stand for endless work.
    pub too_many: bool,
    /// Variables and functions refer to entries of other units, which say their names: what linkers that optimise
    /// write, and dwz.
    pub crosses: bool,
    /// Units may stand for others, in `.dwo` files.
    pub skeletons: bool,
}

/// Looks at every table of abbreviations that a unit names.
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
            // gimli finds as well that one is broken.
            let _ = look_at(dwarf, *table, &mut traits);
        }
    }
    traits
}

/// One table of abbreviations (DWARF 5, 7.5.3).
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

/// Does a reference of that form lead to another unit?
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
