//! The bytes before the name in entries that have a name.
//!
//! ```text
//!   entry   | number of its abbreviation | attributes of a fixed size | name, or its place | …
//!             what is looked for ────────────────────────────────────▶ what was found
//! ```
//! The four bytes of a small offset occur by accident in any larger unit. Few of these matches are at a position where
//! the unit's abbreviations allow a name.

use crate::slice::Slice;
use gimli::{
    AttributeSpecification, DebugAbbrev, DwAt, DwForm, DwTag, Reader, Section, UnitHeader,
    constants as dw,
};

/// The kinds of entries to find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tags {
    /// Variables and structures.
    Things,
    /// Their enclosing scopes.
    Scopes,
}

impl Tags {
    fn has(self, tag: DwTag) -> bool {
        match tag {
            dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type => true,
            dw::DW_TAG_variable | dw::DW_TAG_formal_parameter | dw::DW_TAG_member => {
                self == Tags::Things
            }
            dw::DW_TAG_namespace | dw::DW_TAG_module | dw::DW_TAG_subprogram => {
                self == Tags::Scopes
            }
            _ => false,
        }
    }
}

/// The entries of a unit, by the bytes before their names.
#[derive(Default)]
pub struct Openings {
    /// For names by offset in a table.
    places: Kinds,
    /// For names in the entry itself.
    texts: Kinds,
}

#[derive(Default)]
struct Kinds {
    /// The abbreviation's number as bytes, and the number of bytes between it and the name.
    known: Vec<(Vec<u8>, usize)>,
    /// There are also entries for which this number is unknown.
    any: bool,
}

impl Openings {
    /// Limit of bytes before a name.
    pub const MOST_BEFORE: usize = 64;

    /// The openings of a unit. Unreadable abbreviations are ignored, as they are in a walk of the unit.
    pub fn of(
        abbreviations: &DebugAbbrev<Slice>,
        header: &UnitHeader<Slice>,
        tags: Tags,
    ) -> Openings {
        let mut openings = Openings::default();
        let _ = openings.read(*abbreviations.reader(), header, tags);
        openings
    }

    /// Reads one abbreviation table (DWARF 5, 7.5.3).
    fn read(
        &mut self,
        mut data: Slice,
        header: &UnitHeader<Slice>,
        tags: Tags,
    ) -> gimli::Result<()> {
        data.skip(header.debug_abbrev_offset().0)?;
        loop {
            let code = data.read_uleb128()?;
            if code == 0 {
                return Ok(());
            }
            let (tag, _children) = (data.read_uleb128_u16()?, data.read_u8()?);
            let mut wanted = tags.has(DwTag(tag));
            let mut before = Some(0);
            loop {
                let (name, form) = (data.read_uleb128_u16()?, data.read_uleb128_u16()?);
                if (name, form) == (0, 0) {
                    break;
                }
                let (name, form) = (DwAt(name), DwForm(form));
                let constant = match form {
                    dw::DW_FORM_implicit_const => Some(data.read_sleb128()?),
                    _ => None,
                };
                if wanted && name == dw::DW_AT_name {
                    self.add(code, before, form);
                    wanted = false;
                }
                let size = AttributeSpecification::new(name, form, constant).size(header);
                before = before.zip(size).map(|(before, size)| before + size);
            }
        }
    }

    fn add(&mut self, code: u64, before: Option<usize>, form: DwForm) {
        let kinds = match form {
            dw::DW_FORM_string => &mut self.texts,
            dw::DW_FORM_strp
            | dw::DW_FORM_line_strp
            | dw::DW_FORM_strp_sup
            | dw::DW_FORM_GNU_strp_alt => &mut self.places,
            // By index.
            _ => return,
        };
        let code = uleb128(code);
        match before.filter(|before| before + code.len() <= Openings::MOST_BEFORE) {
            Some(before) => kinds.known.push((code, before)),
            None => kinds.any = true,
        }
    }

    /// Whether a name, or (`in_place`) its offset in a table, may follow these bytes.
    pub fn fit(&self, before: &[u8], in_place: bool) -> bool {
        let kinds = if in_place { &self.places } else { &self.texts };
        let ends = |(code, size): &(Vec<u8>, usize)| {
            let rest = before.len().checked_sub(*size);
            rest.is_some_and(|rest| before[..rest].ends_with(code))
        };
        kinds.any || kinds.known.iter().any(ends)
    }
}

fn uleb128(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = number as u8 & 0x7f;
        number >>= 7;
        bytes.push(if number == 0 { low } else { low | 0x80 });
        if number == 0 {
            return bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_abbreviations() {
        assert_eq!(uleb128(0x7f), [0x7f]);
        assert_eq!(uleb128(0x80), [0x80, 1]);
        assert_eq!(uleb128(624_485), [0xe5, 0x8e, 0x26]);
    }
}
