//! The beginning of a watch that a debugger has evaluated, and the answer in the debugger's terms (`resolve/debugger.rs`
//! finds it).

use crate::described::Described;
use crate::maps::Module;
use crate::problem::Problem;
use crate::types::{Shape, Type};
use serde::{Deserialize, Serialize};
use std::rc::Rc;

/// The name of the head in the text of a watch.
pub const HEAD: &str = "it";

/// The beginning of a watch, evaluated by a debugger.
#[derive(Clone, Debug, Deserialize)]
pub struct Head {
    /// As the user has written it.
    pub(crate) text: String,
    /// The variable's name, if it is one.
    pub(crate) name: Option<String>,
    /// Address of the object.
    pub(crate) at: Option<u64>,
    /// The value of a pointer that has no address.
    pub(crate) value: Option<u64>,
    /// The instruction of the selected frame.
    pub(crate) pc: Option<u64>,
    #[serde(rename = "type")]
    pub(crate) ty: Described,
}

/// The places of such a watch, as [`crate::Program::locate_watch`] finds them.
pub struct Located {
    pub places: Result<Vec<DebuggerPlace>, Problem>,
    /// The language of the debugged program does not have what the expression says: what a container or a variant
    /// holds, or an element beyond the end.
    pub decided: bool,
}

/// A place in the debugger's terms.
#[derive(Debug, Serialize)]
pub struct DebuggerPlace {
    pub(crate) name: String,
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// The way there, for a watch that follows pointers; `at` is 0 if it leads nowhere now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<String>,
    /// Number of the first element, for a slice of an array.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) first: Option<i64>,
    /// Number of the first of many places.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) many: Option<i64>,
    /// Of a bit-field: its bits in the bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mask: Option<u64>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) ty: Option<Named>,
}

/// A type by its name, so that a debugger finds its own.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Named {
    Pointer(Option<Box<Named>>),
    Array {
        of: Box<Named>,
        first: i64,
        count: u64,
    },
    Type {
        name: String,
        size: u64,
    },
}

impl Named {
    /// `None` if the type has no name. `hops`: limit of pointers to pointers.
    pub(crate) fn of(ty: &Rc<Type>, module: &Module, hops: u32) -> Option<Named> {
        Some(match &ty.shape {
            Shape::Pointer { to, .. } if hops > 0 => {
                let to = to.and_then(|to| module.types.get(to));
                let to = to.and_then(|to| Named::of(&to, module, hops - 1));
                Named::Pointer(to.map(Box::new))
            }
            Shape::Array {
                element,
                count,
                bounds,
            } => Named::Array {
                of: Box::new(Named::of(element, module, hops)?),
                first: bounds.first,
                count: count.unwrap_or(0),
            },
            // (A type that a debugger has described has no entry.)
            Shape::Int { .. } | Shape::Char { .. } | Shape::Bool | Shape::Float => Named::Type {
                name: module.types.path(ty).unwrap_or_else(|| ty.name.clone()),
                size: ty.size,
            },
            _ => Named::Type {
                name: module.types.path(ty)?,
                size: ty.size,
            },
        })
    }
}
