//! Types as needed for watching: sizes, members, elements, and the display of values.

use crate::dwarf::Die;
use std::collections::HashSet;
use std::rc::Rc;

#[derive(Clone, Debug, PartialEq)]
pub struct Type {
    /// The name in source form: `struct node *`, `int [4]`.
    pub name: String,
    /// Size in bytes; 0 for incomplete types, functions and arrays without a bound.
    pub size: u64,
    pub shape: Shape,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    Int {
        signed: bool,
    },
    Char {
        signed: bool,
    },
    Bool,
    Float,
    Enum {
        values: Rc<[(String, i128)]>,
    },
    /// `None`: `void *`, or a type without a description.
    Pointer {
        to: Option<Die>,
        reference: bool,
    },
    Array {
        element: Rc<Type>,
        count: Option<u64>,
        bounds: Bounds,
    },
    /// An array that is found through the object of this type ([`crate::descriptor`]).
    Descriptor(Die),
    /// Structures, unions and classes; Rust's tuples and enums.
    Struct {
        members: Rc<[Member]>,
        class: Class,
    },
    Function,
    /// Declared, but never defined in the debug information that was read.
    Incomplete,
    /// Shown as bytes.
    Opaque,
}

/// Numbering of an array's elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The first index: 1 in Fortran, unless the program declares another.
    pub first: i64,
    /// Indices are written as in Fortran: `grid(i,j)`, the innermost first.
    pub columns: bool,
    /// Distance of the elements, in bytes; 0: they are adjacent.
    pub stride: i64,
}

/// The class of a structure, independent of typedefs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Class {
    /// Its own name with arguments: `vector<int, std::allocator<int> >`; empty for an anonymous type.
    pub name: &'static str,
    /// Template arguments that are types.
    pub arguments: Rc<[Die]>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// `None` for an anonymous struct or union; a base class has the class's name.
    pub name: Option<&'static str>,
    pub offset: u64,
    pub ty: Rc<Type>,
    pub bits: Option<Bits>,
    pub base_class: bool,
    /// A variant of a Rust enum exists only while this condition holds.
    pub variant: Option<Variant>,
}

/// Values of a number in an enum that select one of its variants. The number is the tag, or a part of another variant
/// with unused values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Offset of the number in the enum.
    pub at: u64,
    /// Size of the number in bytes, up to 8.
    pub size: u64,
    /// `count` values from `first` on, which may wrap.
    pub first: u64,
    pub count: u64,
    /// True: these values select the variant; false: all other values do.
    pub inside: bool,
}

impl Variant {
    /// Whether this number selects the variant.
    pub fn is_active(&self, number: u64) -> bool {
        let mask = u64::MAX >> (64 - 8 * self.size.clamp(1, 8));
        (number.wrapping_sub(self.first) & mask < self.count) == self.inside
    }
}

/// A bit-field: `len` bits from bit `first` of the bytes at the member's offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    pub first: u64,
    pub len: u64,
}

impl Bits {
    /// The number of bytes that contain the bits.
    pub fn bytes(&self) -> u64 {
        self.first.saturating_add(self.len).div_ceil(8)
    }
}

impl Bounds {
    /// The name of an element of an array: `a[3]`, `a(3)`; an element of `a(3)` is `a(2,3)`.
    pub fn indexed(&self, array: &str, index: i64) -> String {
        match (self.columns, array.rsplit_once('(')) {
            (false, _) => format!("{array}[{index}]"),
            (true, Some((name, outer))) if outer.ends_with(')') => {
                format!("{name}({index},{outer}")
            }
            (true, _) => format!("{array}({index})"),
        }
    }
}

impl Type {
    pub fn opaque(size: u64) -> Rc<Type> {
        Rc::new(Type {
            name: format!("{size} bytes"),
            size,
            shape: Shape::Opaque,
        })
    }

    /// The member that fills the whole type (newtypes, Cell, Atomic, std::atomic). It is shown in the type's place.
    pub fn only_member(&self) -> Option<Rc<Type>> {
        let Shape::Struct { members, .. } = &self.shape else {
            return None;
        };
        let fills = |m: &&Member| m.offset == 0 && m.ty.size == self.size && m.bits.is_none();
        let only = members.iter().find(fills)?;
        let sized = members.iter().filter(|m| m.ty.size > 0).count();
        (sized == 1).then(|| only.ty.clone())
    }

    /// The type of an array's elements, if they have bytes.
    pub fn element(&self) -> Option<Rc<Type>> {
        match &self.shape {
            Shape::Array { element, .. } if element.size > 0 => Some(element.clone()),
            _ => None,
        }
    }

    /// Whether other memory lies between its elements, or between those of its elements.
    pub fn is_strided(&self) -> bool {
        match &self.shape {
            Shape::Array {
                element, bounds, ..
            } => bounds.stride != 0 || element.is_strided(),
            _ => false,
        }
    }

    /// Finds a member by name, also inside anonymous members and base classes. Its offset is relative to the start of
    /// this type.
    pub fn member(&self, name: &str) -> Option<Member> {
        self.member_that(|has| has == name)
    }

    /// As [`Type::member`]; `name*` is the first member with that prefix.
    pub fn matching(&self, name: &str) -> Option<Member> {
        match name.strip_suffix('*') {
            Some(beginning) => self.member_that(|has| has.starts_with(beginning)),
            None => self.member(name),
        }
    }

    fn member_that(&self, is_called: impl Fn(&str) -> bool) -> Option<Member> {
        let mut found = None;
        self.each_member(&mut |member, offset| {
            if member.name.is_some_and(&is_called) {
                let offset = member.offset.wrapping_add(offset);
                found = Some(Member {
                    offset,
                    ..member.clone()
                });
            }
            found.is_none()
        });
        found
    }

    /// The base classes that have a member of this name, if there are several and the class has none itself.
    pub fn ambiguous(&self, name: &str) -> Vec<&'static str> {
        let mut found = Vec::new();
        let mut places = HashSet::new();
        self.inherited(name, 0, 0, &mut |base, offset| {
            if places.insert(offset) {
                found.extend(base);
            }
        });
        if found.len() < 2 { Vec::new() } else { found }
    }

    /// Calls `visit` with the offset of each member of that name that no other hides, and with the base class of this type that
    /// has it.
    fn inherited(
        &self,
        name: &str,
        offset: u64,
        depth: usize,
        visit: &mut dyn FnMut(Option<&'static str>, u64),
    ) -> bool {
        const DEEPEST: usize = 16;
        let Some(members) = self.members().filter(|_| depth < DEEPEST) else {
            return false;
        };
        let at = |m: &Member| m.offset.wrapping_add(offset);
        if let Some(own) = members
            .iter()
            .find(|m| !m.base_class && m.name == Some(name))
        {
            visit(None, at(own));
            return true;
        }
        let nameless = |m: &&Member| m.name.is_none();
        for inner in members.iter().filter(nameless) {
            if inner.ty.inherited(name, at(inner), depth + 1, visit) {
                return true;
            }
        }
        let mut any = false;
        for base in members.iter().filter(|m| m.base_class) {
            let mut seen = |_: Option<&'static str>, offset: u64| visit(base.name, offset);
            any |= base.ty.inherited(name, at(base), depth + 1, &mut seen);
        }
        any
    }

    /// Whether these bytes belong to a member, not only to padding.
    pub fn holds(&self, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len);
        match &self.shape {
            Shape::Struct { members, .. } => members.iter().any(|m| {
                let bytes = m.bits.map_or(m.ty.size, |b| b.bytes());
                m.offset <= offset && end <= m.offset.saturating_add(bytes)
            }),
            _ => end <= self.size,
        }
    }

    /// The variants of a Rust enum; empty if the type is not an enum, or has only one variant.
    pub fn variants(&self) -> Vec<Member> {
        let members = self.members();
        let members = members.iter().flat_map(|members| members.iter());
        members.filter(|m| m.variant.is_some()).cloned().collect()
    }

    /// A base class that the debug information only declares.
    pub fn undescribed_base(&self) -> Option<Rc<Type>> {
        let mut found = None;
        self.each_member(&mut |member, _| {
            if member.base_class && matches!(member.ty.shape, Shape::Incomplete) {
                found = Some(member.ty.clone());
            }
            found.is_none()
        });
        found
    }

    pub fn member_names(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        self.each_member(&mut |member, _| {
            names.extend(member.name);
            true
        });
        names
    }

    /// Visits the members, then those inside anonymous members and base classes, until `visit` returns false. `visit`
    /// gets the offset of the enclosing type. Each type is entered once, because types may contain each other in
    /// exponentially many ways.
    fn each_member(&self, visit: &mut impl FnMut(&Member, u64) -> bool) {
        let mut gone_into = HashSet::new();
        let mut waiting = vec![];
        let mut this: Option<(Rc<[Member]>, u64)> = self.members().map(|m| (m, 0));
        while let Some((members, offset)) = this {
            for member in members.iter() {
                if !visit(member, offset) {
                    return;
                }
            }
            // Reversed, so that the first one is popped next.
            for outer in members.iter().rev() {
                if outer.name.is_none() || outer.base_class {
                    waiting.push((outer.ty.clone(), outer.offset.wrapping_add(offset)));
                }
            }
            this = None;
            while this.is_none()
                && let Some((ty, offset)) = waiting.pop()
            {
                if gone_into.insert(Rc::as_ptr(&ty)) {
                    this = ty.members().map(|m| (m, offset));
                }
            }
        }
    }

    /// Alignment of its objects (x86-64 psABI: that of the largest scalar in them).
    pub fn align(&self) -> u64 {
        match &self.shape {
            Shape::Struct { members, .. } => {
                let each = members.iter().map(|member| member.ty.align());
                each.max().unwrap_or(1)
            }
            Shape::Array { element, .. } => element.align(),
            _ => self.size.clamp(1, 16).next_power_of_two(),
        }
    }

    fn members(&self) -> Option<Rc<[Member]>> {
        match &self.shape {
            Shape::Struct { members, .. } => Some(members.clone()),
            _ => None,
        }
    }
}
