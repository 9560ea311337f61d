//! Walks an expression: fields, pointers, elements.

use super::explain::BUILD_WITH_G;
use super::{Lvalue, Resolver, Way};
use crate::closest::{closest, list};
use crate::problem::Problem;
use crate::spec::Expr;
use crate::types::{Shape, Type};
use std::rc::Rc;

impl Resolver<'_> {
    pub(super) fn eval(&self, expr: &Expr) -> Result<Lvalue, Problem> {
        match expr {
            Expr::Address(addr) => Ok(Lvalue {
                addr: *addr,
                ty: None,
                module: None,
                size: 0,
                name: format!("{addr:#x}"),
                slice: None,
                bits: None,
                note: None,
                way: Way::default(),
                untyped: true,
                thread_local: false,
            }),
            Expr::Name(name) => self.variable(name),
            Expr::Malformed(problem) => Err(problem.clone()),
            Expr::Heap => Err(self.problem("the heap has no parts", "watch `[heap]` alone")),
            Expr::Deref(inner) => {
                let value = self.one(inner)?;
                let name = format!("*{}", value.name);
                if let Some(Shape::Array { element, .. }) = value.ty.as_ref().map(|t| &t.shape) {
                    return Ok(Lvalue {
                        ty: Some(element.clone()),
                        name,
                        slice: None,
                        ..value
                    });
                }
                Ok(Lvalue {
                    name,
                    ..self.deref(value)?
                })
            }
            Expr::Arrow(inner, field) => {
                let value = self.one(inner)?;
                let of = match value.name.starts_with('*') {
                    true => format!("({})", value.name),
                    false => value.name.clone(),
                };
                let name = format!("{of}->{field}");
                let target = match value.ty.as_ref().map(|t| &t.shape) {
                    Some(Shape::Pointer { .. }) | None => self.deref(value)?,
                    Some(Shape::Struct { .. }) => {
                        let ty = value.ty.as_ref().map_or("?", |t| &t.name);
                        return Err(self.problem(
                            format!("`{}` is a {ty}, no pointer", value.name),
                            "use `.` instead of `->`",
                        ));
                    }
                    _ => return Err(self.not_a_pointer(&value)),
                };
                Ok(Lvalue {
                    name,
                    ..self.field(target, field)?
                })
            }
            Expr::Field(inner, field) => {
                let value = match self.one(inner) {
                    // `main.total`: a variable of a Go package.
                    Err(problem) => {
                        let found = dotted(expr).map(|name| self.variable(&name));
                        return found.and_then(Result::ok).ok_or(problem);
                    }
                    Ok(value) => value,
                };
                let name = format!(
                    "{}.{}",
                    value.name,
                    field
                        .strip_prefix("__")
                        .filter(|f| f.parse::<u32>().is_ok())
                        .unwrap_or(field)
                );
                let target = match value.ty.as_ref().map(|t| &t.shape) {
                    Some(Shape::Pointer { .. }) => self.deref(value)?,
                    _ => value,
                };
                Ok(Lvalue {
                    name,
                    ..self.field(target, field)?
                })
            }
            Expr::Index(inner, index) => {
                let value = self.one(inner)?;
                let name = format!("{}[{index}]", value.name);
                let (start, element) = self.elements(value, *index, *index + 1)?;
                Ok(Lvalue {
                    ty: Some(element),
                    name,
                    slice: None,
                    ..start
                })
            }
            Expr::Slice(inner, from, to) => {
                let value = self.one(inner)?;
                let from = from.unwrap_or(0);
                let to = match (to, value.ty.as_ref().map(|t| &t.shape)) {
                    (Some(to), _) => *to,
                    (
                        None,
                        Some(Shape::Array {
                            count: Some(count), ..
                        }),
                    ) => *count as i64,
                    (None, _) => {
                        return Err(self.problem(
                            format!("how many elements `{}` has is not known", value.name),
                            "write [FROM..TO]",
                        ));
                    }
                };
                if from >= to {
                    return Err(self.problem(
                        format!("the range {from}..{to} of `{}` is empty", value.name),
                        "`..` excludes its end, `..=` includes it",
                    ));
                }
                let (start, element) = self.elements(value, from, to)?;
                let count = (to - from) as u64;
                let ty = Type {
                    name: format!("{} [{count}]", element.name),
                    size: element.size.saturating_mul(count),
                    shape: Shape::Array {
                        element,
                        count: Some(count),
                    },
                };
                Ok(Lvalue {
                    ty: Some(Rc::new(ty)),
                    slice: Some(from),
                    ..start
                })
            }
            Expr::Offset(inner, bytes) => {
                let value = self.eval(inner)?;
                let sign = if *bytes < 0 { '-' } else { '+' };
                let name = format!("({}{sign}{})", value.name, bytes.unsigned_abs());
                let addr = value.addr.wrapping_add_signed(*bytes);
                Ok(Lvalue {
                    addr,
                    ty: None,
                    size: 0,
                    untyped: true,
                    name,
                    bits: None,
                    ..value
                })
            }
        }
    }

    /// What more is said of: `a[0..4]` is several elements, and a watch is one stretch of memory.
    fn one(&self, expr: &Expr) -> Result<Lvalue, Problem> {
        let value = self.eval(expr)?;
        match value.slice {
            None => Ok(value),
            Some(from) => Err(self.problem(
                format!(
                    "a range of `{}` stands before the end: its parts are not one stretch of memory",
                    value.name
                ),
                format!(
                    "watch each by itself ({}[{from}], …), or all of it; `ulpf watch` in gdb takes ranges anywhere",
                    value.name
                ),
            )),
        }
    }

    /// Goes through a pointer: the object it points to now.
    pub(super) fn deref(&self, value: Lvalue) -> Result<Lvalue, Problem> {
        let target = match value.ty.as_ref().map(|t| &t.shape) {
            Some(Shape::Pointer { to, .. }) => *to,
            None => None,
            Some(Shape::Opaque) if value.untyped => None,
            _ => return Err(self.not_a_pointer(&value)),
        };
        let mut bytes = [0; 8];
        let readable = value.way.whole && self.memory.read(value.addr, &mut bytes);
        if !readable && !self.follows {
            return Err(self.problem(
                format!("`{}` at {:#x} cannot be read", value.name, value.addr),
                "check that it exists when the watches are set; --at FUNCTION sets them later",
            ));
        }
        let addr = u64::from_le_bytes(bytes);
        let points = readable && addr >= 0x1000;
        if !points && !self.follows {
            return Err(self.problem(
                format!(
                    "the pointer `{}` is {} now",
                    value.name,
                    if addr == 0 {
                        "null".into()
                    } else {
                        format!("{addr:#x}")
                    }
                ),
                "set the watches later with --at FUNCTION, or watch the pointer itself",
            ));
        }
        let ty = match (&value.module, target) {
            (Some(module), Some(die)) => module.types.get(die),
            _ => None,
        };
        let untyped = ty.is_none();
        let way = value.way.through(value.addr, points.then_some(addr));
        Ok(Lvalue {
            addr: if points { addr } else { 0 },
            way,
            ty,
            size: 0,
            untyped,
            slice: None,
            bits: None,
            ..value
        })
    }

    pub(super) fn field(&self, value: Lvalue, field: &str) -> Result<Lvalue, Problem> {
        let Some(ty) = &value.ty else {
            return Err(self.no_type(&value));
        };
        match &ty.shape {
            Shape::Struct { .. } => {}
            Shape::Opaque => return Err(self.no_type(&value)),
            Shape::Incomplete => {
                return Err(self.problem(
                    format!(
                        "{} is declared, but defined in no debug information that was read",
                        ty.name
                    ),
                    BUILD_WITH_G,
                ));
            }
            _ => {
                return Err(self.problem(
                    format!("`{}` is a {}, which has no fields", value.name, ty.name),
                    "name the variable alone",
                ));
            }
        }
        let Some(member) = ty.member(field) else {
            let names = ty.member_names();
            if let Some(base) = ty.undescribed_base() {
                let why = format!(
                    "{} has no field `{field}`, and its {} is only declared in the debug information",
                    ty.name, base.name
                );
                return Err(self.problem(
                    why,
                    "build the program with -fstandalone-debug (clang leaves out what a file does not use)",
                ));
            }
            let hint = match closest(field, names.iter().copied()) {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!("it has {}", list(names.iter().map(|n| n.to_string()), 12)),
            };
            return Err(self.problem(format!("{} has no field `{field}`", ty.name), hint));
        };
        let size = member.bits.map_or(0, |b| b.bytes());
        Ok(Lvalue {
            addr: value.addr.wrapping_add(member.offset),
            ty: Some(member.ty),
            size,
            bits: member.bits,
            slice: None,
            ..value
        })
    }

    /// Elements `from..to` of an array, or of what a pointer points to.
    pub(super) fn elements(
        &self,
        value: Lvalue,
        from: i64,
        to: i64,
    ) -> Result<(Lvalue, Rc<Type>), Problem> {
        let Some(ty) = value.ty.clone() else {
            return Err(self.no_type(&value));
        };
        let (start, element) = match &ty.shape {
            Shape::Array { element, count } => {
                // Trailing arrays of one or no element are a C idiom for "as many as there are".
                if let (Some(count @ 2..), _) | (Some(count), true) = (*count, from < 0)
                    && (from < 0 || to as u64 > count)
                {
                    let last = if from < 0 { from } else { to - 1 };
                    return Err(self.problem(
                        format!(
                            "`{}` has {count} elements, {last} is none of them",
                            value.name
                        ),
                        format!("use 0 to {}", count.saturating_sub(1)),
                    ));
                }
                (value, element.clone())
            }
            Shape::Pointer { .. } => {
                let name = value.name.clone();
                let start = self.deref(value)?;
                match start.ty.clone() {
                    Some(element) => (Lvalue { name, ..start }, element),
                    None => {
                        return Err(self.problem(
                            format!("what `{name}` points to has no type"),
                            format!("write *{name}:LENGTH"),
                        ));
                    }
                }
            }
            Shape::Opaque => return Err(self.no_type(&value)),
            Shape::Struct { .. } => {
                let hint = format!(
                    "name the pointer or array inside it, as in {}.FIELD[{from}]; it has {}",
                    value.name,
                    list(ty.member_names(), 8)
                );
                return Err(
                    self.problem(format!("`{}` is a {}, no array", value.name, ty.name), hint)
                );
            }
            _ => {
                return Err(self.problem(
                    format!("`{}` is a {}, no array", value.name, ty.name),
                    "leave the index out",
                ));
            }
        };
        if element.size == 0 {
            return Err(self.problem(
                format!(
                    "the elements of `{}` are of unknown size ({})",
                    start.name, element.name
                ),
                BUILD_WITH_G,
            ));
        }
        let addr = start
            .addr
            .wrapping_add_signed(from.wrapping_mul(element.size as i64));
        Ok((Lvalue { addr, ..start }, element))
    }
}

/// A name with dots in it, if that is all there is.
fn dotted(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Name(name) => Some(name.clone()),
        Expr::Field(inner, field) => Some(format!("{}.{field}", dotted(inner)?)),
        _ => None,
    }
}
