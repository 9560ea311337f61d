//! Types as far as watching needs them: sizes, members, elements, and how to show a value.

use crate::dwarf::Die;
use std::collections::HashSet;
use std::rc::Rc;

#[derive(Clone, Debug, PartialEq)]
pub struct Type {
    /// As a programmer would write it: `struct node *`, `int [4]`.
    pub name: String,
    /// In bytes; 0 for incomplete types, functions and arrays without a bound.
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
    /// `None`: `void *`, or a type that is described nowhere.
    Pointer {
        to: Option<Die>,
        reference: bool,
    },
    Array {
        element: Rc<Type>,
        count: Option<u64>,
        bounds: Bounds,
    },
    /// Structures, unions, classes; Rust's tuples and enums.
    Struct {
        members: Rc<[Member]>,
        class: Class,
    },
    Function,
    /// Declared, never defined in what was read.
    Incomplete,
    /// Shown as bytes.
    Opaque,
}

/// How the elements of an array are numbered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The first index: 1 in Fortran, unless the program says another.
    pub first: i64,
    /// Indices are written as in Fortran: `grid(i,j)`, the innermost first.
    pub columns: bool,
}

/// What a structure is, whatever typedefs call it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Class {
    /// Its own name, with arguments: `vector<int, std::allocator<int> >`; empty: it has none.
    pub name: &'static str,
    /// Types that it is a template of.
    pub arguments: Rc<[Die]>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// `None`: an anonymous struct or union; a base class has the class's name.
    pub name: Option<&'static str>,
    pub offset: u64,
    pub ty: Rc<Type>,
    pub bits: Option<Bits>,
    pub base_class: bool,
    /// A variant of an enum of Rust's: it is there only while this is so.
    pub variant: Option<Variant>,
}

/// Which values of a number in an enum (its tag, or a part of another variant that has values to spare) mean that
/// one of its variants is the active one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Where the number is, from the beginning of the enum.
    pub at: u64,
    /// Its bytes, up to 8.
    pub size: u64,
    /// `count` values from this one on, which may wrap.
    pub first: u64,
    pub count: u64,
    /// These values mean that it is the active one; else all others do.
    pub inside: bool,
}

impl Variant {
    /// Does this number say that it is active?
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
    /// How many bytes hold them.
    pub fn bytes(&self) -> u64 {
        self.first.saturating_add(self.len).div_ceil(8)
    }
}

impl Bounds {
    /// The element of an array of that name: `a[3]`, `a(3)`, and of that `a(3)(2)`: `a(2,3)`.
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

    /// The member that fills the whole (newtypes, Cell, Atomic, std::atomic), which is shown in its place.
    pub fn only_member(&self) -> Option<Rc<Type>> {
        let Shape::Struct { members, .. } = &self.shape else {
            return None;
        };
        let fills = |m: &&Member| m.offset == 0 && m.ty.size == self.size && m.bits.is_none();
        let only = members.iter().find(fills)?;
        let sized = members.iter().filter(|m| m.ty.size > 0).count();
        (sized == 1).then(|| only.ty.clone())
    }

    /// Finds a member by name, also inside anonymous members and base classes. The offset returned
    /// is from the start of this type.
    pub fn member(&self, name: &str) -> Option<Member> {
        self.member_that(|has| has == name)
    }

    /// As [`Type::member`]; `name*` is the first one whose name begins so.
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

    /// Is there something of it, and not only room, where these bytes are?
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

    /// The variants of an enum of Rust's; none: it is no such enum, or has just one.
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

    /// Visits the members, then those inside anonymous members and base classes, with the offset of what they
    /// are in, until `visit` says that it is enough. Each type is gone into once: they may contain one another
    /// in more ways than anybody could visit.
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
            // The first of them is the next one.
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

    /// How its objects are aligned (x86-64 psABI: as the largest scalar in them).
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
