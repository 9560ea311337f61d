//! Types in a debugger's words (`gdb-plugin/ulpf/types.py`): of values and of variables that only the debugger knows.

use crate::dwarf_types::Types;
use crate::types::{Bounds, Class, Member, Shape, Type};
use serde::Deserialize;
use std::rc::Rc;

/// A type, described by a debugger.
#[derive(Clone, Debug, Deserialize)]
pub struct Described {
    /// Its name in the program's language.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    is: Kind,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    /// True if it is signed.
    Int(bool),
    /// True if it is signed.
    Char(bool),
    Bool,
    Float,
    /// Names and values of its enumerators.
    Enum(Vec<(String, i64)>),
    /// The target, if it matters.
    Pointer(Option<Box<Described>>),
    Array {
        of: Box<Described>,
        /// The first index.
        first: i64,
        /// Of an array of Fortran: how they lie.
        #[serde(flatten)]
        lie: Option<Lie>,
    },
    /// The member that fills the whole type, if it matters.
    Struct(Option<Box<Described>>),
    Other,
}

/// How the elements of an array of Fortran lie in memory.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Lie {
    /// Number of elements.
    count: u64,
    /// Distance of elements, in bytes.
    stride: i64,
}

impl Described {
    /// The type of a value. Targets of pointers and members are not known.
    pub fn of_value(&self) -> Rc<Type> {
        let shape = match &self.is {
            Kind::Pointer(_) => Shape::Pointer {
                to: None,
                reference: false,
            },
            Kind::Array { of, first, lie } => self.array(of.of_value(), *first, *lie),
            Kind::Struct(only) => {
                let member = |only: &Described| Member {
                    name: None,
                    offset: 0,
                    ty: only.of_value(),
                    bits: None,
                    base_class: false,
                    variant: None,
                };
                Shape::Struct {
                    members: only.iter().map(|only| member(only)).collect(),
                    class: Class::default(),
                }
            }
            _ => self.scalar(),
        };
        self.ty(shape)
    }

    /// The type of a variable, with structures as `types` has them. `None` if it does not have one of them.
    pub(crate) fn of_variable(&self, types: &Types) -> Option<Rc<Type>> {
        let shape = match &self.is {
            Kind::Pointer(to) => Shape::Pointer {
                to: match to {
                    Some(to) => Some(types.give(to.of_variable(types)?)),
                    None => None,
                },
                reference: false,
            },
            Kind::Array { of, first, lie } => self.array(of.of_variable(types)?, *first, *lie),
            Kind::Struct(_) => return types.structure(&self.name, self.size),
            _ => self.scalar(),
        };
        Some(self.ty(shape))
    }

    fn ty(&self, shape: Shape) -> Rc<Type> {
        let size = match &shape {
            // (A debugger may count what lies between its elements.)
            Shape::Array {
                element,
                count: Some(count),
                bounds,
            } if bounds.columns => element.size.saturating_mul(*count),
            _ => self.size,
        };
        Rc::new(Type {
            name: self.name.clone(),
            size,
            shape,
        })
    }

    fn array(&self, element: Rc<Type>, first: i64, lie: Option<Lie>) -> Shape {
        let adjacent = element.size as i64;
        let stride = lie.map(|lie| lie.stride).filter(|s| *s != adjacent);
        let count = self.size.checked_div(element.size);
        Shape::Array {
            count: lie.map(|lie| lie.count).or(count),
            element,
            bounds: Bounds {
                first,
                columns: lie.is_some(),
                stride: stride.unwrap_or(0),
            },
        }
    }

    fn scalar(&self) -> Shape {
        match &self.is {
            Kind::Int(signed) => Shape::Int { signed: *signed },
            Kind::Char(signed) => Shape::Char { signed: *signed },
            Kind::Bool => Shape::Bool,
            Kind::Float => Shape::Float,
            Kind::Enum(values) => {
                let values = values.iter();
                let values = values.map(|(name, value)| (name.clone(), i128::from(*value)));
                Shape::Enum {
                    values: values.collect(),
                }
            }
            _ => Shape::Opaque,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Part, Value};

    fn value(described: &str, bytes: &[u8]) -> Value {
        let described: Described = serde_json::from_str(described).unwrap();
        let part = Part {
            ty: described.of_value(),
            repeat: None,
            inside: 0,
            bits: None,
        };
        part.value(bytes, bytes.len() as u64)
    }

    #[test]
    fn values_of_described_types() {
        let int = r#"{"name":"int","size":4,"is":{"int":true}}"#;
        let minus = (-7i32).to_le_bytes();
        assert_eq!(value(int, &minus), Value::Signed(-7));
        let two =
            format!(r#"{{"name":"int [1]","size":4,"is":{{"array":{{"of":{int},"first":0}}}}}}"#);
        assert_eq!(value(&two, &minus), Value::List(vec![Value::Signed(-7)]));
        let only = format!(r#"{{"name":"only","size":4,"is":{{"struct":{int}}}}}"#);
        assert_eq!(value(&only, &minus), Value::Signed(-7));
        let several = r#"{"name":"pair","size":4,"is":{"struct":null}}"#;
        assert_eq!(value(several, &[1, 0, 0, 0]), Value::Text("0x1".into()));
        let colour = r#"{"name":"colour","size":4,"is":{"enum":[["RED",0],["BLUE",4]]}}"#;
        assert_eq!(value(colour, &[4, 0, 0, 0]), Value::Text("BLUE".into()));
        assert_eq!(value(colour, &[5, 0, 0, 0]), Value::Signed(5));
        let pointer = r#"{"name":"int *","size":8,"is":{"pointer":null}}"#;
        let at = 0x4040u64.to_le_bytes();
        assert_eq!(value(pointer, &at), Value::Text("0x4040".into()));
        let flag = r#"{"name":"bool","size":1,"is":"bool"}"#;
        assert_eq!(value(flag, &[1]), Value::Bool(true));
    }
}
