//! Watches in files, with the data needed to name a part of a watch and to show its value. No debug information is
//! needed to read them.
//!
//! A type refers only to types before it in a table. So types that are read back are at most [`DEEPEST`] levels deep
//! and contain no cycle, whatever a file contains.

use crate::resolve::{Each, Watched};
use crate::types::{Bits, Bounds, Class, Member, Shape, Type, Variant};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::HashMap;
use std::rc::Rc;
use ulpf_lib::WatchKind;
use ulpf_lib::command::{Path, Step};

/// Limit of nesting depth of types; no program reaches it.
const DEEPEST: usize = 64;
/// Limit of sizes and element numbers: the size of the user part of the address space.
const LARGEST: i64 = 1 << 47;

/// A watched place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place<'a> {
    spec: Cow<'a, str>,
    name: Cow<'a, str>,
    addr: u64,
    len: u64,
    #[serde(default, skip_serializing_if = "is_false")]
    heap: bool,
    kind: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ty: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slice: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bits: Option<(u64, u64)>,
    /// It follows pointers.
    #[serde(default, skip_serializing_if = "is_false")]
    follows: bool,
    /// Set if it has many places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    each: Option<KeptEach>,
}

/// Names of the places: see [`Each`].
#[derive(Clone, Debug, Serialize, Deserialize)]
struct KeptEach {
    at: usize,
    first: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    array: Option<usize>,
}

fn is_false(is: &bool) -> bool {
    !*is
}

/// A type, which refers to earlier types by number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kept<'a> {
    /// Other types refer to this number. So if a part of a file is damaged, the rest keeps its meaning.
    number: usize,
    name: Cow<'a, str>,
    size: u64,
    #[serde(flatten)]
    shape: KeptShape,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "lowercase")]
enum KeptShape {
    Int {
        signed: bool,
    },
    Char {
        signed: bool,
    },
    Bool,
    Float,
    Enum {
        /// As strings, because JSON numbers do not have this many bits everywhere.
        values: Vec<(String, String)>,
    },
    Pointer,
    Array {
        of: usize,
        count: Option<u64>,
        first: i64,
        columns: bool,
    },
    Struct {
        members: Vec<KeptMember>,
    },
    Function,
    Incomplete,
    Opaque,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct KeptMember {
    name: Option<String>,
    at: u64,
    ty: usize,
    bits: Option<(u64, u64)>,
    base: bool,
    /// For a variant of a Rust enum: offset and size of the discriminant, first value and number of values, and whether
    /// these select the variant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    variant: Option<(u64, u64, u64, u64, bool)>,
}

/// Numbers the types that are written to one file.
#[derive(Default)]
pub struct Writer {
    /// Keyed by the address of types, which `kept` keeps alive.
    numbers: HashMap<*const Type, usize>,
    kept: Vec<Rc<Type>>,
}

impl Writer {
    /// A place. The types that were not written before are appended to `types` with the next numbers.
    pub fn place<'a>(&mut self, watched: &'a Watched, types: &mut Vec<Kept<'static>>) -> Place<'a> {
        Place {
            spec: Cow::Borrowed(&watched.spec),
            name: Cow::Borrowed(&watched.name),
            addr: watched.addr,
            len: watched.len,
            heap: watched.heap,
            kind: Cow::Borrowed(watched.kind.word()),
            ty: watched.ty.as_ref().and_then(|ty| self.ty(ty, 0, types)),
            slice: watched.slice,
            bits: watched.bits.map(|b| (b.first, b.len)),
            follows: watched.path.is_some(),
            each: watched.each.as_ref().map(|each| KeptEach {
                at: each.at,
                first: each.first,
                array: each.array.as_ref().and_then(|ty| self.ty(ty, 0, types)),
            }),
        }
    }

    /// Returns `None` if the type is nested too deeply.
    fn ty(&mut self, ty: &Rc<Type>, depth: usize, types: &mut Vec<Kept<'static>>) -> Option<usize> {
        if let Some(known) = self.numbers.get(&Rc::as_ptr(ty)) {
            return Some(*known);
        }
        if depth >= DEEPEST {
            return None;
        }
        let shape = match &ty.shape {
            Shape::Int { signed } => KeptShape::Int { signed: *signed },
            Shape::Char { signed } => KeptShape::Char { signed: *signed },
            Shape::Bool => KeptShape::Bool,
            Shape::Float => KeptShape::Float,
            Shape::Enum { values } => {
                let value = |(name, n): &(String, i128)| (name.clone(), n.to_string());
                KeptShape::Enum {
                    values: values.iter().map(value).collect(),
                }
            }
            Shape::Pointer { .. } => KeptShape::Pointer,
            Shape::Array {
                element,
                count,
                bounds,
            } => KeptShape::Array {
                of: self.ty(element, depth + 1, types)?,
                count: *count,
                first: bounds.first,
                columns: bounds.columns,
            },
            Shape::Struct { members, .. } => {
                let mut kept = Vec::with_capacity(members.len());
                for m in members.iter() {
                    kept.push(KeptMember {
                        name: m.name.map(str::to_string),
                        at: m.offset,
                        ty: self.ty(&m.ty, depth + 1, types)?,
                        bits: m.bits.map(|b| (b.first, b.len)),
                        base: m.base_class,
                        variant: m
                            .variant
                            .map(|v| (v.at, v.size, v.first, v.count, v.inside)),
                    });
                }
                KeptShape::Struct { members: kept }
            }
            Shape::Function => KeptShape::Function,
            Shape::Incomplete => KeptShape::Incomplete,
            // (Its elements are places of their own.)
            Shape::Descriptor(_) | Shape::Opaque => KeptShape::Opaque,
        };
        let number = self.kept.len();
        types.push(Kept {
            number,
            name: Cow::Owned(ty.name.clone()),
            size: ty.size,
            shape,
        });
        self.kept.push(ty.clone());
        self.numbers.insert(Rc::as_ptr(ty), number);
        Some(number)
    }
}

/// Reads places and types back.
#[derive(Default)]
pub struct Reader {
    /// Types by number, each with its depth.
    types: HashMap<usize, (Rc<Type>, usize)>,
    /// Names of members. They are leaked, since names from debug information are static, too.
    names: HashMap<String, &'static str>,
}

impl Reader {
    /// Adds a type. Returns `None` if no [`Writer`] can have written it.
    pub fn ty(&mut self, kept: Kept) -> Option<()> {
        let mut depth = 0;
        let mut of = |number: usize| {
            let (ty, below) = self.types.get(&number)?;
            depth = depth.max(below + 1);
            Some(ty.clone())
        };
        let shape = match kept.shape {
            KeptShape::Int { signed } => Shape::Int { signed },
            KeptShape::Char { signed } => Shape::Char { signed },
            KeptShape::Bool => Shape::Bool,
            KeptShape::Float => Shape::Float,
            KeptShape::Enum { values } => {
                let values = values
                    .into_iter()
                    .map(|(name, n)| Some((name, n.parse().ok()?)));
                let values: Option<Vec<(String, i128)>> = values.collect();
                Shape::Enum {
                    values: values?.into(),
                }
            }
            KeptShape::Pointer => Shape::Pointer {
                to: None,
                reference: false,
            },
            KeptShape::Array {
                of: element,
                count,
                first,
                columns,
            } => Shape::Array {
                element: of(element)?,
                count,
                bounds: Bounds {
                    first,
                    columns,
                    stride: 0,
                },
            },
            KeptShape::Struct { members } => {
                let mut read = Vec::with_capacity(members.len());
                for m in members {
                    read.push(Member {
                        name: m.name.map(|name| {
                            let keep = |name: &String| &*Box::leak(name.clone().into_boxed_str());
                            *self.names.entry(name).or_insert_with_key(keep)
                        }),
                        offset: m.at,
                        ty: of(m.ty)?,
                        bits: bits(m.bits).ok()?,
                        base_class: m.base,
                        variant: m.variant.map(|(at, size, first, count, inside)| Variant {
                            at,
                            size,
                            first,
                            count,
                            inside,
                        }),
                    });
                }
                Shape::Struct {
                    members: read.into(),
                    class: Class::default(),
                }
            }
            KeptShape::Function => Shape::Function,
            KeptShape::Incomplete => Shape::Incomplete,
            KeptShape::Opaque => Shape::Opaque,
        };
        let first = match &shape {
            Shape::Array { bounds, .. } => bounds.first,
            _ => 0,
        };
        if depth > DEEPEST || kept.size > LARGEST as u64 || !countable(first) {
            return None;
        }
        let ty = Rc::new(Type {
            name: kept.name.into_owned(),
            size: kept.size,
            shape,
        });
        self.types.insert(kept.number, (ty, depth));
        Some(())
    }

    /// Reads a place. Returns `None` if no [`Writer`] can have written it.
    pub fn place(&self, place: Place) -> Option<Watched> {
        let ty = match place.ty {
            Some(number) => Some(self.types.get(&number)?.0.clone()),
            None => None,
        };
        let slice = place.slice;
        if slice.is_some_and(|first| !countable(first)) {
            return None;
        }
        let each = match place.each {
            Some(kept) => Some(self.each(kept, &place.name)?),
            None => None,
        };
        Some(Watched {
            freeze: false,
            spec: place.spec.into_owned(),
            name: place.name.into_owned(),
            addr: place.addr,
            len: place.len,
            heap: place.heap,
            kind: WatchKind::parse(&place.kind)?,
            ty,
            slice,
            bits: bits(place.bits).ok()?,
            path: match place.follows {
                true => Some(Path::new(0, vec![(Step::Pointer, 0)]).ok()?),
                false => None,
            },
            each,
            note: None,
            filter: Default::default(),
        })
    }

    fn each(&self, kept: KeptEach, name: &str) -> Option<Each> {
        let array = match kept.array {
            Some(number) => Some(self.types.get(&number)?.0.clone()),
            None => None,
        };
        (name.is_char_boundary(kept.at) && countable(kept.first)).then_some(Each {
            at: kept.at,
            first: kept.first,
            array,
        })
    }
}

/// Returns `Err` if the bits are not within eight bytes.
fn bits(kept: Option<(u64, u64)>) -> Result<Option<Bits>, ()> {
    match kept {
        None => Ok(None),
        Some((first @ 0..64, len @ 1..=64)) => Ok(Some(Bits { first, len })),
        Some(_) => Err(()),
    }
}

/// Whether element numbers from `first` on are safe from overflow.
fn countable(first: i64) -> bool {
    (-LARGEST..=LARGEST).contains(&first)
}

impl Watched {
    /// The part of this watch with a name such as `node.next` or `tab[3]`, which must begin with the watch's own name.
    /// Returns its offset and length in bytes, or `None` if it is not a part of this watch.
    pub fn part_named(&self, name: &str) -> Option<(u64, u64)> {
        let rest = name.strip_prefix(self.name.as_str())?;
        if rest.is_empty() {
            return Some((0, self.len));
        }
        let (mut ty, mut at, mut rest) = (self.ty.clone()?, 0u64, rest);
        let mut first = self.slice;
        while !rest.is_empty() {
            if let Some(inside) = rest.strip_prefix('[') {
                let (index, behind) = inside.split_once(']')?;
                let Shape::Array {
                    element, bounds, ..
                } = &ty.shape
                else {
                    return None;
                };
                let first = first.take().unwrap_or(bounds.first);
                let index = index.parse::<i64>().ok()?.checked_sub(first)?;
                let index = u64::try_from(index).ok()?;
                at = at.checked_add(index.checked_mul(element.size)?)?;
                (ty, rest) = (element.clone(), behind);
            } else {
                let inside = rest.strip_prefix('.')?;
                let end = inside.find(['.', '[']).unwrap_or(inside.len());
                let (member, behind) = inside.split_at(end);
                let member = ty.member(member)?;
                at = at.checked_add(member.offset)?;
                (ty, rest) = (member.ty.clone(), behind);
            }
        }
        let within = at.checked_add(ty.size)? <= self.len.max(1);
        within.then_some((at, ty.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int() -> Rc<Type> {
        Rc::new(Type {
            name: "int".into(),
            size: 4,
            shape: Shape::Int { signed: true },
        })
    }

    fn watched() -> Watched {
        let color = Rc::new(Type {
            name: "enum color".into(),
            size: 4,
            shape: Shape::Enum {
                values: vec![
                    ("RED".to_string(), i128::from(u64::MAX)),
                    ("BLUE".into(), -1),
                ]
                .into(),
            },
        });
        let member = |name, offset, ty: &Rc<Type>, bits| Member {
            name,
            offset,
            ty: ty.clone(),
            bits,
            base_class: false,
            variant: None,
        };
        let members = [
            member(Some("x"), 0, &int(), None),
            member(None, 4, &color, None),
            member(Some("lo"), 8, &int(), Some(Bits { first: 1, len: 3 })),
        ];
        let node = Rc::new(Type {
            name: "struct node".into(),
            size: 12,
            shape: Shape::Struct {
                members: members.into(),
                class: Class::default(),
            },
        });
        let tab = Rc::new(Type {
            name: "struct node [3]".into(),
            size: 36,
            shape: Shape::Array {
                element: node,
                count: Some(3),
                bounds: Bounds::default(),
            },
        });
        Watched {
            freeze: false,
            spec: "tab[2..5] if $new".into(),
            name: "tab".into(),
            addr: 0x4000,
            len: 36,
            heap: false,
            kind: WatchKind::Access,
            ty: Some(tab),
            slice: Some(2),
            bits: None,
            path: None,
            each: None,
            note: None,
            filter: Default::default(),
        }
    }

    #[test]
    fn what_is_read_back_names_and_shows_the_same() {
        let before = watched();
        let (mut writer, mut types) = (Writer::default(), Vec::new());
        let place = serde_json::to_string(&writer.place(&before, &mut types)).unwrap();
        let again = writer.place(&before, &mut Vec::new()).ty;
        assert_eq!((again, types.len()), (Some(types.len() - 1), 5));
        let mut reader = Reader::default();
        for ty in types {
            let text = serde_json::to_string(&ty).unwrap();
            assert_eq!(reader.ty(serde_json::from_str(&text).unwrap()), Some(()));
        }
        let after = reader.place(serde_json::from_str(&place).unwrap()).unwrap();
        assert_eq!((after.addr, after.kind), (0x4000, WatchKind::Access));
        for (offset, len) in [(0, 4), (12, 4), (16, 4), (20, 1), (0, 12), (24, 12), (3, 2)] {
            let ((name, old), (same, new)) = (before.part(offset, len), after.part(offset, len));
            let bytes = vec![0xff; len as usize];
            assert_eq!(name, same);
            assert_eq!(old.value(&bytes, len), new.value(&bytes, len), "{name}");
            assert_eq!(old.type_name(len), new.type_name(len), "{name}");
        }
    }

    #[test]
    fn a_file_may_not_refer_forward_nor_nest_for_ever() {
        let read =
            |reader: &mut Reader, text: String| reader.ty(serde_json::from_str(&text).unwrap());
        let array = |of: usize| {
            format!(
                r#"{{"number":{},"name":"a","size":4,"is":"array","of":{of},"count":1,"first":0,"columns":false}}"#,
                of + 1
            )
        };
        let mut reader = Reader::default();
        assert_eq!(read(&mut reader, array(0)), None);
        let int = r#"{"number":0,"name":"int","size":4,"is":"int","signed":true}"#;
        assert_eq!(read(&mut reader, int.into()), Some(()));
        let deep = (0..100).map(|n| read(&mut reader, array(n)));
        assert_eq!(deep.take_while(Option::is_some).count(), DEEPEST);
    }

    #[test]
    fn parts_by_their_names() {
        let watched = watched();
        for (name, part) in [
            ("tab", Some((0, 36))),
            ("tab[2]", Some((0, 12))),
            ("tab[4].x", Some((24, 4))),
            ("tab[5]", None),
            ("tab[1]", None),
            ("tab[3].nothing", None),
            ("tab.x", None),
            ("table", None),
            ("other", None),
        ] {
            assert_eq!(watched.part_named(name), part, "{name}");
        }
    }
}
