//! Types from debug information.
//!
//! A type is built completely, except that a pointer keeps only the entry of its target. That ends every recursion, and
//! a linked list can be followed one step at a time.

use crate::descriptor::{Data, Descriptor, Unknown, is_described};
use crate::dwarf::{Die, Entry, attr_str};
use crate::index::{Index, last_component};
use crate::memory::Memory;
use crate::meter::Work;
use crate::object::ObjectFile;
use crate::slice::Slice;
use crate::types::{Bits, Bounds, Class, Member, Shape, Type, Variant};
use gimli::{AttributeValue, Reader, UnitOffset, constants as dw};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// Builds and keeps the types of one object.
pub struct Types {
    pub object: Rc<ObjectFile>,
    known: RefCell<Known>,
    /// Types that a debugger has described, which no entry describes ([`GIVEN`]).
    given: RefCell<Vec<Rc<Type>>>,
}

/// The unit number of [`Die`]s for types that a debugger has described.
const GIVEN: u32 = u32::MAX;

/// Types and their nesting depths.
type Known = HashMap<Die, (Rc<Type>, usize)>;

/// Limit of nesting: no real program reaches it, but a broken file might.
const MAX_DEPTH: usize = 64;

impl Types {
    pub fn new(object: Rc<ObjectFile>) -> Types {
        Types {
            object,
            known: RefCell::default(),
            given: RefCell::default(),
        }
    }

    /// The type of the variable or member at `die`.
    pub fn of_variable(&self, die: Die) -> Option<Rc<Type>> {
        let index = self.object.index()?;
        let _work = Work::look_up(self.size());
        self.builder(index).of_entry(die, 0)
    }

    /// The type that `die` describes.
    pub fn get(&self, die: Die) -> Option<Rc<Type>> {
        if die.unit == GIVEN {
            return self.given.borrow().get(die.offset.0).cloned();
        }
        let index = self.object.index()?;
        let _work = Work::look_up(self.size());
        Some(self.builder(index).build(die, 0))
    }

    /// Where the array is now that is found through `object`, an object of the type [`Shape::Descriptor`], and its type.
    pub fn array_at(
        &self,
        die: Die,
        object: u64,
        memory: &dyn Memory,
    ) -> Result<(Data, Rc<Type>), Unknown> {
        let index = self.object.index().ok_or(Unknown::Unsupported)?;
        let _work = Work::look_up(self.size());
        self.builder(index).array_at(die, object, memory)
    }

    /// A new entry for this type.
    pub fn give(&self, ty: Rc<Type>) -> Die {
        let mut given = self.given.borrow_mut();
        let known = given.iter().position(|known| *known == ty);
        let number = known.unwrap_or(given.len());
        if known.is_none() {
            given.push(ty);
        }
        Die {
            unit: GIVEN,
            offset: UnitOffset(number),
        }
    }

    /// The structure of this name and size. Debuggers write names with keywords, namespaces and their own blanks.
    pub fn structure(&self, name: &str, size: u64) -> Option<Rc<Type>> {
        let index = self.object.index()?;
        let keywords = ["struct ", "class ", "union "];
        let plain = keywords.iter().find_map(|word| name.strip_prefix(word));
        let found = index.complete_like(last_component(plain.unwrap_or(name)))?;
        self.get(found).filter(|ty| ty.size == size)
    }

    /// The name of a type in its language, with namespaces and classes; `None` for one without a name.
    pub fn path(&self, ty: &Rc<Type>) -> Option<String> {
        let index = self.object.index()?;
        let known = self.known.borrow();
        let mut dies = known.iter().filter(|(_, (known, _))| Rc::ptr_eq(known, ty));
        dies.find_map(|(die, _)| index.path_of(*die)).or_else(|| {
            let given = self.given.borrow();
            let given = given.iter().find(|given| Rc::ptr_eq(given, ty));
            given.map(|given| given.name.clone())
        })
    }

    fn builder<'a>(&'a self, index: &'a Index) -> Builder<'a> {
        Builder {
            index,
            known: &self.known,
            deepest: Cell::new(0),
        }
    }

    fn size(&self) -> u64 {
        self.object.debug().info.as_ref().map_or(0, |i| i.size)
    }
}

pub fn is_fortran(language: gimli::DwLang) -> bool {
    matches!(
        language,
        dw::DW_LANG_Fortran77
            | dw::DW_LANG_Fortran90
            | dw::DW_LANG_Fortran95
            | dw::DW_LANG_Fortran03
            | dw::DW_LANG_Fortran08
    )
}

/// The discriminant value of a variant. Of a value of sixteen bytes only the lower half is used; it distinguishes the
/// variants.
fn own_value(said: AttributeValue<Slice>) -> Option<u64> {
    if let AttributeValue::Block(mut bytes) = said {
        return bytes.read_u64().ok();
    }
    let signed = || said.sdata_value().map(|n| n as u64);
    said.udata_value().or_else(signed)
}

/// The variant with this value. Without a value, it has all values that the other variants do not use.
fn variant(at: u64, size: u64, value: Option<u64>, all: &[Option<u64>]) -> Variant {
    let mask = u64::MAX >> (64 - 8 * size);
    if let Some(value) = value {
        return Variant {
            at,
            size,
            first: value & mask,
            count: 1,
            inside: true,
        };
    }
    // The others' values are consecutive and may wrap; they usually follow the last value of this variant. The values
    // between them that are free never occur.
    let mut others: Vec<u64> = all.iter().flatten().map(|v| v & mask).collect();
    others.sort_unstable();
    let next = others.iter().cycle().skip(1);
    let gaps = others.iter().zip(next);
    let widest = gaps.max_by_key(|(a, b)| b.wrapping_sub(**a).wrapping_sub(1) & mask);
    let (first, count) = widest.map_or((0, 0), |(last, first)| {
        (*first, (last.wrapping_sub(*first) & mask).saturating_add(1))
    });
    Variant {
        at,
        size,
        first,
        count,
        inside: false,
    }
}

struct Builder<'a> {
    index: &'a Index,
    known: &'a RefCell<Known>,
    /// Deepest nesting of the parts built so far for the current type.
    deepest: Cell<usize>,
}

impl Builder<'_> {
    fn unit(&self, die: Die) -> &gimli::Unit<Slice> {
        self.index.unit(die.unit)
    }

    /// Follows DW_AT_type; `None` without one (void).
    fn type_die(&self, unit: u32, entry: &Entry) -> Option<Die> {
        let value = entry.attr_value(dw::DW_AT_type).ok()??;
        self.index.reference(unit, value)
    }

    fn of_entry(&self, die: Die, hops: u32) -> Option<Rc<Type>> {
        let entry = self.unit(die).entry(die.offset).ok()?;
        if let Some(ty) = self.type_die(die.unit, &entry) {
            return Some(self.build(ty, 0));
        }
        for at in [dw::DW_AT_specification, dw::DW_AT_abstract_origin] {
            if let (Ok(Some(value)), 0..8) = (entry.attr_value(at), hops) {
                return self.of_entry(self.index.reference(die.unit, value)?, hops + 1);
            }
        }
        None
    }

    fn build(&self, die: Die, depth: usize) -> Rc<Type> {
        if let Some((ty, nested)) = self.known.borrow().get(&die) {
            self.deepest.set(self.deepest.get().max(*nested));
            return ty.clone();
        }
        let others = self.deepest.replace(0);
        let built = match depth {
            0..MAX_DEPTH => self.build_new(die, depth + 1),
            _ => None,
        };
        // Parts that were built before may nest deeper than the present walk.
        let (ty, nested) = match (built, self.deepest.get() + 1) {
            (Some(ty), nested @ ..=MAX_DEPTH) => (ty, nested),
            _ => (Type::opaque(0), 1),
        };
        self.deepest.set(others.max(nested));
        self.known.borrow_mut().insert(die, (ty.clone(), nested));
        ty
    }

    fn build_new(&self, die: Die, depth: usize) -> Option<Rc<Type>> {
        let unit = self.unit(die);
        let entry = unit.entry(die.offset).ok()?;
        let name = attr_str(self.index.home(die.unit), unit, &entry, dw::DW_AT_name);
        let size = entry
            .attr_value(dw::DW_AT_byte_size)
            .ok()?
            .and_then(|v| v.udata_value());
        let target = self.type_die(die.unit, &entry);
        let ty = |name: String, size: u64, shape: Shape| Some(Rc::new(Type { name, size, shape }));
        match entry.tag() {
            dw::DW_TAG_typedef => {
                let under = self.build(target?, depth);
                // Keep the typedef's own name: programmers know it.
                ty(
                    name.unwrap_or(&under.name).to_string(),
                    under.size,
                    under.shape.clone(),
                )
            }
            dw::DW_TAG_const_type
            | dw::DW_TAG_volatile_type
            | dw::DW_TAG_restrict_type
            | dw::DW_TAG_atomic_type
            | dw::DW_TAG_immutable_type
            | dw::DW_TAG_packed_type
            | dw::DW_TAG_template_alias => match target {
                Some(target) => Some(self.build(target, depth)),
                None => ty("void".into(), 0, Shape::Incomplete),
            },
            dw::DW_TAG_base_type => {
                let size = size.unwrap_or(0);
                let encoding = match entry.attr_value(dw::DW_AT_encoding).ok()? {
                    Some(AttributeValue::Encoding(encoding)) => encoding,
                    _ => dw::DW_ATE_unsigned,
                };
                let shape = match encoding {
                    dw::DW_ATE_boolean => Shape::Bool,
                    dw::DW_ATE_signed => Shape::Int { signed: true },
                    dw::DW_ATE_unsigned | dw::DW_ATE_address => Shape::Int { signed: false },
                    dw::DW_ATE_signed_char => Shape::Char { signed: true },
                    // Rust's u8 is an unsigned_char, too. Only names with "char" are characters.
                    dw::DW_ATE_unsigned_char if name.is_some_and(|n| n.contains("char")) => {
                        Shape::Char { signed: false }
                    }
                    dw::DW_ATE_unsigned_char => Shape::Int { signed: false },
                    dw::DW_ATE_UTF | dw::DW_ATE_ASCII => Shape::Char { signed: false },
                    dw::DW_ATE_float if size <= 16 => Shape::Float,
                    _ => Shape::Opaque,
                };
                ty(name.unwrap_or("?").to_string(), size, shape)
            }
            dw::DW_TAG_unspecified_type => ty(
                name.unwrap_or("?").to_string(),
                size.unwrap_or(8),
                Shape::Opaque,
            ),
            dw::DW_TAG_pointer_type
            | dw::DW_TAG_reference_type
            | dw::DW_TAG_rvalue_reference_type => {
                let reference = entry.tag() != dw::DW_TAG_pointer_type;
                let to = target.filter(|t| !self.is_void(*t, 8));
                let name = match (name, to) {
                    (Some(name), _) => name.to_string(),
                    (None, Some(to)) => {
                        self.short_name(to, 8) + if reference { " &" } else { " *" }
                    }
                    (None, None) => "void *".to_string(),
                };
                ty(name, size.unwrap_or(8), Shape::Pointer { to, reference })
            }
            dw::DW_TAG_ptr_to_member_type => {
                ty("pointer to member".into(), size.unwrap_or(8), Shape::Opaque)
            }
            dw::DW_TAG_subroutine_type | dw::DW_TAG_subprogram => {
                ty("function".into(), 0, Shape::Function)
            }
            dw::DW_TAG_enumeration_type => {
                let size = size
                    .or_else(|| Some(self.build(target?, depth).size))
                    .unwrap_or(4);
                let mut values = Vec::new();
                self.children(die, |child| {
                    if child.tag() == dw::DW_TAG_enumerator {
                        let dwarf = self.index.home(die.unit);
                        let name = attr_str(dwarf, unit, child, dw::DW_AT_name).unwrap_or("?");
                        let value = match child.attr_value(dw::DW_AT_const_value)? {
                            Some(AttributeValue::Udata(v)) => v as i128,
                            Some(v) => v.sdata_value().unwrap_or(0) as i128,
                            None => 0,
                        };
                        values.push((name.to_string(), value));
                    }
                    Ok(())
                });
                ty(
                    name.map_or("enum".into(), |n| format!("enum {n}")),
                    size,
                    Shape::Enum {
                        values: values.into(),
                    },
                )
            }
            dw::DW_TAG_array_type if is_described(&entry) => {
                let element = self.build(target?, depth);
                ty(format!("{} []", element.name), 0, Shape::Descriptor(die))
            }
            dw::DW_TAG_array_type => self.array(die, &entry, target?, depth),
            dw::DW_TAG_structure_type
            | dw::DW_TAG_class_type
            | dw::DW_TAG_union_type
            | dw::DW_TAG_interface_type => {
                let keyword = match entry.tag() {
                    dw::DW_TAG_union_type => "union",
                    dw::DW_TAG_class_type => "class",
                    _ => "struct",
                };
                let label = name.map_or(keyword.into(), |n| format!("{keyword} {n}"));
                if entry.attr_value(dw::DW_AT_declaration).ok()?.is_some() {
                    // A type unit or another unit may contain the definition.
                    if let Some(signature) = entry.attr_value(dw::DW_AT_signature).ok()?
                        && let Some(definition) = self.index.reference(die.unit, signature)
                    {
                        return Some(self.build(definition, depth));
                    }
                    return match name.and_then(|n| self.index.complete_type(n)) {
                        Some(definition) if definition != die => {
                            Some(self.build(definition, depth))
                        }
                        _ => ty(label, 0, Shape::Incomplete),
                    };
                }
                let members = self.members(die, depth);
                let mut arguments = Vec::new();
                self.children(die, |child| {
                    match child.tag() {
                        dw::DW_TAG_template_type_parameter => {
                            arguments.extend(self.type_die(die.unit, child));
                        }
                        dw::DW_TAG_GNU_template_parameter_pack => {
                            let pack = Die {
                                unit: die.unit,
                                offset: child.offset(),
                            };
                            self.children(pack, |child| {
                                arguments.extend(self.type_die(die.unit, child));
                                Ok(())
                            });
                        }
                        _ => {}
                    }
                    Ok(())
                });
                ty(
                    label,
                    size.unwrap_or(0),
                    Shape::Struct {
                        members: members.into(),
                        class: Class {
                            name: name.unwrap_or(""),
                            arguments: arguments.into(),
                        },
                    },
                )
            }
            _ => ty(
                name.unwrap_or("?").to_string(),
                size.unwrap_or(0),
                Shape::Opaque,
            ),
        }
    }

    fn array(&self, die: Die, entry: &Entry, element: Die, depth: usize) -> Option<Rc<Type>> {
        let element = self.build(element, depth);
        let vector = entry.attr_value(dw::DW_AT_GNU_vector).ok()?.is_some();
        let language = self.language(die.unit);
        let lowest = language.and_then(|l| l.default_lower_bound()).unwrap_or(0) as i64;
        let columns = matches!(
            entry.attr_value(dw::DW_AT_ordering),
            Ok(Some(AttributeValue::Ordering(dw::DW_ORD_col_major)))
        ) || language.is_some_and(is_fortran);
        let mut bounds = Vec::new();
        self.children(die, |child| {
            if child.tag() == dw::DW_TAG_subrange_type || child.tag() == dw::DW_TAG_enumeration_type
            {
                // (Forms of few bytes do not tell the sign. Values here are not negative.)
                let number = |at| {
                    let plain = |value: AttributeValue<Slice>| {
                        let unsigned = value.udata_value().map(i64::try_from);
                        unsigned.and_then(Result::ok).or(value.sdata_value())
                    };
                    child.attr_value(at).map(|value| value.and_then(plain))
                };
                let given = child.attr_value(dw::DW_AT_lower_bound)?.is_some();
                let lower = match number(dw::DW_AT_lower_bound)? {
                    // The lower bound is known only at run time, and so is the length.
                    None if given => {
                        bounds.push((None, lowest));
                        return Ok(());
                    }
                    lower => lower.unwrap_or(lowest),
                };
                let count = match (number(dw::DW_AT_count)?, number(dw::DW_AT_upper_bound)?) {
                    (Some(count), _) => Some(count),
                    (None, Some(upper)) => {
                        let count = upper.checked_sub(lower).and_then(|n| n.checked_add(1));
                        // `int a[0]` has an upper bound of -1.
                        count.filter(|n| (1..1 << 60).contains(n))
                    }
                    (None, None) => None,
                };
                bounds.push((count.and_then(|n| u64::try_from(n).ok()), lower));
            }
            Ok(())
        });
        if bounds.is_empty() {
            bounds.push((None, lowest));
        }
        self.deepest.set(self.deepest.get() + bounds.len());
        if self.deepest.get() > MAX_DEPTH {
            return None;
        }
        // `int a[2][3]` is an array of 2 arrays of 3: build the inner ones first.
        let mut ty = element;
        let mut suffix = String::new();
        let base = ty.name.clone();
        // In column-major order the first index is the innermost.
        if !columns {
            bounds.reverse();
        }
        for (count, first) in bounds {
            suffix = format!(
                "[{}]{suffix}",
                count.map_or(String::new(), |c| c.to_string())
            );
            let size = ty.size.checked_mul(count.unwrap_or(0))?;
            let space = if vector { " vector " } else { " " };
            ty = Rc::new(Type {
                name: format!("{base}{space}{suffix}"),
                size,
                shape: Shape::Array {
                    element: ty,
                    count,
                    bounds: Bounds {
                        first,
                        columns,
                        stride: 0,
                    },
                },
            });
        }
        Some(ty)
    }

    /// Where the array is that `die` describes ([`Shape::Descriptor`]), and its type there.
    fn array_at(
        &self,
        die: Die,
        object: u64,
        memory: &dyn Memory,
    ) -> Result<(Data, Rc<Type>), Unknown> {
        let unit = self.unit(die);
        let entry = unit.entry(die.offset)?;
        let target = self.type_die(die.unit, &entry);
        let element = self.build(target.ok_or(Unknown::Unsupported)?, 0);
        let descriptor = Descriptor {
            encoding: unit.encoding(),
            object,
            memory,
        };
        let data = descriptor.data(&entry)?;
        let language = self.language(die.unit);
        let lowest = language.and_then(|l| l.default_lower_bound()).unwrap_or(0) as i64;
        let columns = language.is_some_and(is_fortran);
        let mut dimensions = Vec::new();
        self.children(die, |child| {
            if child.tag() == dw::DW_TAG_subrange_type {
                dimensions.push(descriptor.dimension(child, lowest));
            }
            Ok(())
        });
        if dimensions.is_empty() || dimensions.len() > MAX_DEPTH {
            return Err(Unknown::Unsupported);
        }
        if !columns {
            dimensions.reverse();
        }
        let name = element.name.clone();
        let mut ty = element;
        for dimension in dimensions {
            let dimension = dimension?;
            let apart = dimension.stride.filter(|s| *s != ty.size as i64);
            let size = ty.size.checked_mul(dimension.count);
            ty = Rc::new(Type {
                name: format!("{name} [{}]", dimension.count),
                size: size.ok_or(Unknown::Unsupported)?,
                shape: Shape::Array {
                    element: ty,
                    count: Some(dimension.count),
                    bounds: Bounds {
                        first: dimension.first,
                        columns,
                        stride: apart.unwrap_or(0),
                    },
                },
            });
        }
        Ok((data, ty))
    }

    /// The source language of a unit.
    fn language(&self, unit: u32) -> Option<gimli::DwLang> {
        let mut entries = self.index.unit(unit).entries();
        entries.next_dfs().ok()?;
        match entries.current()?.attr_value(dw::DW_AT_language).ok()?? {
            AttributeValue::Language(language) => Some(language),
            _ => None,
        }
    }

    fn members(&self, die: Die, depth: usize) -> Vec<Member> {
        let unit = self.unit(die);
        let dwarf = self.index.home(die.unit);
        let mut members = Vec::new();
        let mut variants = Vec::new();
        self.children(die, |child| {
            let base_class = child.tag() == dw::DW_TAG_inheritance;
            match child.tag() {
                // The variant part of a Rust enum: each variant becomes a member with the variant's name.
                dw::DW_TAG_variant_part => variants.push(Die {
                    unit: die.unit,
                    offset: child.offset(),
                }),
                dw::DW_TAG_member | dw::DW_TAG_inheritance => {}
                _ => return Ok(()),
            }
            if child.tag() == dw::DW_TAG_variant_part
                || child.attr_value(dw::DW_AT_external)?.is_some()
            {
                return Ok(());
            }
            let Some(ty) = self.type_die(die.unit, child) else {
                return Ok(());
            };
            let offset = match child.attr_value(dw::DW_AT_data_member_location)? {
                Some(AttributeValue::Exprloc(expression)) => {
                    // DWARF 2 writes `plus_uconst N`. Virtual bases have no fixed offset.
                    match expression.operations(unit.encoding()).next()? {
                        Some(gimli::Operation::PlusConstant { value }) => Some(value),
                        _ => None,
                    }
                }
                Some(value) => value.udata_value(),
                None => Some(0),
            };
            let Some(mut offset) = offset else {
                return Ok(());
            };
            let ty = self.build(ty, depth);
            let number = |at| {
                child
                    .attr_value(at)
                    .map(|v| v.and_then(|v| v.udata_value()))
            };
            let mut bits = None;
            if let Some(len) = number(dw::DW_AT_bit_size)? {
                let first = if let Some(first) = number(dw::DW_AT_data_bit_offset)? {
                    Some(first.saturating_add(offset.saturating_mul(8)))
                } else if let Some(from_top) = number(dw::DW_AT_bit_offset)? {
                    // DWARF 2 and 3 count from the most significant bit of the storage unit.
                    let storage = number(dw::DW_AT_byte_size)?.unwrap_or(ty.size);
                    storage
                        .saturating_mul(8)
                        .checked_sub(from_top.saturating_add(len))
                        .map(|first| first.saturating_add(offset.saturating_mul(8)))
                } else {
                    Some(offset.saturating_mul(8))
                };
                if let Some(first) = first {
                    offset = first / 8;
                    bits = Some(Bits {
                        first: first % 8,
                        len,
                    });
                }
            }
            let name = match attr_str(dwarf, unit, child, dw::DW_AT_name) {
                None if base_class => ty
                    .name
                    .split_once(' ')
                    .map(|(_, name)| &*Box::leak(name.to_string().into_boxed_str())),
                name => name,
            };
            members.push(Member {
                name,
                offset,
                ty,
                bits,
                base_class,
                variant: None,
            });
            Ok(())
        });
        // Variants may have variant parts of their own.
        if depth >= MAX_DEPTH {
            variants.clear();
        }
        for part in variants {
            let mut inner = Vec::new();
            self.children(part, |child| {
                if child.tag() == dw::DW_TAG_variant {
                    let said = child.attr_value(dw::DW_AT_discr_value)?;
                    inner.push((child.offset(), said.and_then(own_value)));
                }
                Ok(())
            });
            let number = self.discriminant(part, depth);
            let values: Vec<Option<u64>> = inner.iter().map(|(_, value)| *value).collect();
            for (offset, value) in inner {
                let unit = die.unit;
                let variant = number.map(|(at, size)| variant(at, size, value, &values));
                let of_variant = self.members(Die { unit, offset }, depth + 1);
                members.extend(of_variant.into_iter().map(|m| Member { variant, ..m }));
            }
        }
        members
    }

    /// Offset and size of the discriminant, or `None` if there is only one variant.
    fn discriminant(&self, part: Die, depth: usize) -> Option<(u64, u64)> {
        let entry = self.unit(part).entry(part.offset).ok()?;
        let value = entry.attr_value(dw::DW_AT_discr).ok()??;
        let number = self.index.reference(part.unit, value)?;
        let entry = self.unit(number).entry(number.offset).ok()?;
        let at = entry.attr_value(dw::DW_AT_data_member_location).ok()?;
        let at = at.map_or(Some(0), |at| at.udata_value())?;
        let size = self.build(self.type_die(number.unit, &entry)?, depth).size;
        // (The lower half of a wider one distinguishes all variants that a real program has.)
        Some((at, size.clamp(1, 8)))
    }

    fn children(&self, die: Die, mut visit: impl FnMut(&Entry) -> gimli::Result<()>) {
        let mut walk = || -> gimli::Result<()> {
            let mut tree = self.unit(die).entries_tree(Some(die.offset))?;
            let mut children = tree.root()?.children();
            while let Some(child) = children.next()? {
                visit(child.entry())?;
            }
            Ok(())
        };
        // A broken entry ends the list; the entries before it are valid.
        let _ = walk();
    }

    fn is_void(&self, die: Die, hops: u32) -> bool {
        let Ok(entry) = self.unit(die).entry(die.offset) else {
            return true;
        };
        let qualifier = matches!(
            entry.tag(),
            dw::DW_TAG_const_type | dw::DW_TAG_volatile_type
        );
        match self.type_die(die.unit, &entry) {
            Some(inner) => qualifier && hops > 0 && self.is_void(inner, hops - 1),
            None => qualifier,
        }
    }

    /// The name of a pointer's target, without building its type.
    fn short_name(&self, die: Die, hops: u32) -> String {
        let unit = self.unit(die);
        let Ok(entry) = unit.entry(die.offset) else {
            return "?".into();
        };
        let dwarf = self.index.home(die.unit);
        let own = attr_str(dwarf, unit, &entry, dw::DW_AT_name);
        let keyword = match entry.tag() {
            dw::DW_TAG_structure_type => "struct ",
            dw::DW_TAG_union_type => "union ",
            dw::DW_TAG_class_type => "class ",
            dw::DW_TAG_enumeration_type => "enum ",
            _ => "",
        };
        match (own, self.type_die(die.unit, &entry)) {
            (Some(name), _) => format!("{keyword}{name}"),
            (None, Some(inner)) if hops > 0 => {
                let inner = self.short_name(inner, hops - 1);
                match entry.tag() {
                    dw::DW_TAG_pointer_type => inner + " *",
                    dw::DW_TAG_const_type => format!("const {inner}"),
                    dw::DW_TAG_array_type => inner + " []",
                    dw::DW_TAG_subroutine_type => "function".into(),
                    _ => inner,
                }
            }
            (None, _) if entry.tag() == dw::DW_TAG_subroutine_type => "function".into(),
            (None, _) if entry.tag() == dw::DW_TAG_pointer_type => "void *".into(),
            _ => format!("{keyword}?").trim().to_string(),
        }
    }
}
