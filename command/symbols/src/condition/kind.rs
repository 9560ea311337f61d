//! Types of the values in conditions.

use crate::maps::Module;
use crate::types::{Shape, Type};
use std::rc::Rc;

#[derive(Clone)]
pub enum Kind {
    Int {
        size: u8,
        signed: bool,
    },
    /// A size of 4 or 8 bytes.
    Float(u8),
    Pointer(Box<Kind>),
    /// A type of the debug information, and the module of its types.
    Described(Rc<Type>, Option<Rc<Module>>),
    Void,
    /// Without a type. The address is known, and the size if it is that of an integer.
    Bytes(u64),
}

pub const INT: Kind = Kind::Int {
    size: 4,
    signed: true,
};
pub const LONG: Kind = Kind::Int {
    size: 8,
    signed: true,
};
pub const ULONG: Kind = Kind::Int {
    size: 8,
    signed: false,
};

impl Kind {
    /// Resolves a described type to one that code can be generated for.
    pub fn plain(self) -> Kind {
        let Kind::Described(ty, _) = &self else {
            return self;
        };
        let size = ty.size as u8;
        match &ty.shape {
            Shape::Int { signed } | Shape::Char { signed } if matches!(ty.size, 1 | 2 | 4 | 8) => {
                Kind::Int {
                    size,
                    signed: *signed,
                }
            }
            Shape::Bool if ty.size == 1 => Kind::Int {
                size,
                signed: false,
            },
            Shape::Enum { values } if matches!(ty.size, 1 | 2 | 4 | 8) => Kind::Int {
                size,
                signed: values.iter().any(|v| v.1 < 0),
            },
            Shape::Float if matches!(ty.size, 4 | 8) => Kind::Float(size),
            _ => self,
        }
    }

    pub fn size(&self) -> u64 {
        match self {
            Kind::Int { size, .. } | Kind::Float(size) => (*size).into(),
            Kind::Pointer(_) => 8,
            Kind::Described(ty, _) => ty.size,
            Kind::Void => 1,
            Kind::Bytes(size) => *size,
        }
    }

    pub fn name(&self) -> String {
        match self {
            Kind::Int { size, signed } => {
                let sign = if *signed { "" } else { "unsigned " };
                format!("{sign}integer of {size} bytes")
            }
            Kind::Float(_) => "floating-point number".into(),
            Kind::Pointer(to) => format!("pointer to {}", to.name()),
            Kind::Described(ty, _) => ty.name.clone(),
            Kind::Void => "void".into(),
            Kind::Bytes(_) => "something of unknown type".into(),
        }
    }

    /// The referent of a pointer, or the element of an array.
    pub fn target(&self) -> Option<Kind> {
        match self {
            Kind::Pointer(to) => Some((**to).clone()),
            Kind::Described(ty, module) => match &ty.shape {
                Shape::Pointer { to, .. } => {
                    let target = to
                        .as_ref()
                        .zip(module.as_ref())
                        .and_then(|(die, m)| m.types.get(*die));
                    Some(target.map_or(Kind::Void, |ty| Kind::Described(ty, module.clone())))
                }
                Shape::Array { element, .. } => {
                    Some(Kind::Described(element.clone(), module.clone()))
                }
                _ => None,
            },
            _ => None,
        }
    }

    pub fn is_array(&self) -> bool {
        matches!(self, Kind::Described(ty, _) if matches!(ty.shape, Shape::Array { .. }))
    }

    pub fn is_reference(&self) -> bool {
        let reference = |ty: &Type| {
            matches!(
                ty.shape,
                Shape::Pointer {
                    reference: true,
                    ..
                }
            )
        };
        matches!(self, Kind::Described(ty, _) if reference(ty))
    }
}

/// Size and sign after C's integer promotions.
pub fn promoted(ty: &Kind) -> (u8, bool) {
    match ty {
        Kind::Int { size, .. } if *size < 4 => (4, true),
        Kind::Int { size, signed } => (*size, *signed),
        _ => (8, false),
    }
}

/// The integer type of this size and sign.
pub fn kind((size, signed): (u8, bool)) -> Kind {
    Kind::Int { size, signed }
}
