//! Evaluates an expression: fields, pointers, elements.

use super::explain::BUILD_WITH_G;
use super::{AccessPath, Lvalue, Resolver};
use crate::closest::{closest, list};
use crate::problem::Problem;
use crate::spec::Expr;
use crate::types::{Bounds, Shape, Type};
use std::collections::HashSet;
use std::rc::Rc;

/// Default limit of places of one watch, as of the plugin's `max-elements`.
pub(super) const MOST_PLACES: u64 = 100_000;

impl Resolver<'_> {
    /// All objects of an expression, in order. An expression after a range has one in each element.
    pub(super) fn eval(&self, expr: &Expr) -> Result<Vec<Lvalue>, Problem> {
        match expr {
            Expr::Address(addr) => Ok(vec![Lvalue {
                addr: *addr,
                ty: None,
                module: None,
                size: 0,
                name: format!("{addr:#x}"),
                slice: None,
                bits: None,
                note: None,
                walked: false,
                first: 0,
                access_path: AccessPath::default(),
                untyped: true,
                thread_local: false,
            }]),
            Expr::Name(name) => self.named(name),
            Expr::Malformed(problem) => Err(problem.clone()),
            Expr::Heap => Err(self.problem("the heap has no parts", "watch `[heap]` alone")),
            Expr::Deref(inner) => self.of_each(inner, |value| self.pointee(value)),
            Expr::Arrow(inner, field) => self.of_each(inner, |value| self.arrow(value, field)),
            Expr::Field(inner, field) => match self.each(inner) {
                // `main.total`: a variable of a Go package.
                Err(problem) => {
                    let found = dotted(expr).map(|name| self.variable(&name));
                    let found = found.and_then(Result::ok).ok_or(problem)?;
                    Ok(vec![found])
                }
                Ok(values) => {
                    let dot = |value| self.dot(value, field);
                    values.into_iter().map(dot).collect()
                }
            },
            Expr::Call(inner, indices) => self.of_each(inner, |value| self.call(value, indices)),
            Expr::Index(inner, index) => self.of_each(inner, |value| self.index(value, *index)),
            Expr::Slice(inner, from, to) => self.elements_of(inner, *from, *to),
            Expr::All(inner) => self.elements_of(inner, None, None),
            Expr::Chain(inner, link) => {
                let mut nodes = Vec::new();
                for head in self.each(inner)? {
                    self.chain(head, link, &mut nodes)?;
                }
                match nodes.is_empty() {
                    false => Ok(nodes),
                    true => Err(self.empty()),
                }
            }
            Expr::Offset(inner, bytes) => {
                let sign = if *bytes < 0 { '-' } else { '+' };
                let beyond = |value: Lvalue| Lvalue {
                    addr: value.addr.wrapping_add_signed(*bytes),
                    ty: None,
                    size: 0,
                    untyped: true,
                    name: format!("({}{sign}{})", value.name, bytes.unsigned_abs()),
                    bits: None,
                    slice: None,
                    ..value
                };
                Ok(self.eval(inner)?.into_iter().map(beyond).collect())
            }
        }
    }

    fn of_each(
        &self,
        expr: &Expr,
        step: impl Fn(Lvalue) -> Result<Lvalue, Problem>,
    ) -> Result<Vec<Lvalue>, Problem> {
        self.each(expr)?.into_iter().map(step).collect()
    }

    /// Elements of an array, of a pointer's target, or of a container.
    fn elements_of(
        &self,
        expr: &Expr,
        from: Option<i64>,
        to: Option<i64>,
    ) -> Result<Vec<Lvalue>, Problem> {
        let mut found = Vec::new();
        for value in self.each(expr)? {
            let value = self.map_behind(value)?;
            match self.container(&value) {
                Some(_) => found.extend(self.contained(value, from, to)?),
                None if value.ty.as_deref().is_some_and(Type::is_strided) => {
                    found.extend(self.apart(value, from, to)?);
                }
                None => found.push(self.slice(value, from, to)?),
            }
            self.few(found.len() as u64)?;
        }
        match found.is_empty() {
            false => Ok(found),
            true => Err(self.empty()),
        }
    }

    /// Elements of an array between whose elements other memory lies.
    pub(super) fn apart(
        &self,
        value: Lvalue,
        from: Option<i64>,
        to: Option<i64>,
    ) -> Result<Vec<Lvalue>, Problem> {
        let (first, end) = match value.ty.as_deref().map(|ty| &ty.shape) {
            Some(Shape::Array { count, bounds, .. }) => {
                let count = count.unwrap_or(0);
                (bounds.first, bounds.first.saturating_add_unsigned(count))
            }
            _ => (0, 0),
        };
        let (from, to) = (from.unwrap_or(first), to.unwrap_or(end));
        self.decided.set(true);
        self.few(to.saturating_sub(from).max(0) as u64)?;
        (from..to).map(|i| self.index(value.clone(), i)).collect()
    }

    /// The objects for a further step; a range is split into its elements.
    fn each(&self, expr: &Expr) -> Result<Vec<Lvalue>, Problem> {
        let values = self.eval(expr)?.into_iter();
        let values = values.map(|value| self.referred(value));
        let values = values.collect::<Result<Vec<_>, _>>()?;
        if values.iter().all(|value| value.slice.is_none()) {
            return Ok(values);
        }
        if self.follows() {
            return values.into_iter().map(|value| self.any_of(value)).collect();
        }
        let mut found = Vec::new();
        for value in values {
            let array = value.ty.as_deref().map(|ty| &ty.shape);
            match (value.slice, array) {
                (
                    Some(first),
                    Some(Shape::Array {
                        element,
                        count: Some(count),
                        bounds,
                    }),
                ) => {
                    self.few(found.len() as u64 + count)?;
                    found.extend((0..*count).map(|i| Lvalue {
                        addr: value.addr.wrapping_add(i.wrapping_mul(element.size)),
                        ty: Some(element.clone()),
                        name: bounds.indexed(&value.name, first.wrapping_add(i as i64)),
                        slice: None,
                        ..value.clone()
                    }));
                }
                _ => found.push(value),
            }
        }
        Ok(found)
    }

    /// Refuses an excessive number of places.
    pub(super) fn few(&self, places: u64) -> Result<(), Problem> {
        let most = self.spec.filter.most.unwrap_or(MOST_PLACES);
        match places <= most {
            true => Ok(()),
            false => Err(self.problem(
                format!("it has more than {most} elements"),
                "that many watches are seldom meant: name fewer elements, all of an array as one ([..] at the end), or say `most N` behind it",
            )),
        }
    }

    pub(super) fn empty(&self) -> Problem {
        self.problem(
            "it has no elements now",
            format!("watch the container itself, or {}", self.later("later")),
        )
    }

    fn pointee(&self, value: Lvalue) -> Result<Lvalue, Problem> {
        if let Some(held) = self.held(&value)? {
            return Ok(held);
        }
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

    fn arrow(&self, value: Lvalue, field: &str) -> Result<Lvalue, Problem> {
        let name = match value.name.starts_with('*') {
            true => format!("({})->{field}", value.name),
            false => format!("{}->{field}", value.name),
        };
        if let Some(held) = self.held(&value)? {
            let found = self.field(held, field)?;
            return Ok(Lvalue { name, ..found });
        }
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

    /// `grid(2,3)`. The program's language determines whether the first or the last index is the innermost.
    fn call(&self, value: Lvalue, indices: &[i64]) -> Result<Lvalue, Problem> {
        let columns = match value.ty.as_deref().map(|ty| &ty.shape) {
            Some(Shape::Array { bounds, .. }) => bounds.columns,
            _ => false,
        };
        let mut indices = indices.to_vec();
        if columns {
            indices.reverse();
        }
        let index = |value, index: &i64| self.index(value, *index);
        indices.iter().try_fold(value, index)
    }

    fn index(&self, value: Lvalue, index: i64) -> Result<Lvalue, Problem> {
        let name = match value.ty.as_deref().map(|ty| &ty.shape) {
            Some(Shape::Array { bounds, .. }) => bounds.indexed(&value.name, index),
            _ => format!("{}[{index}]", value.name),
        };
        if self.container(&value).is_some() {
            let found = self.contained(value, Some(index), Some(index.saturating_add(1)))?;
            let found = found.into_iter().next().ok_or_else(|| self.empty())?;
            // (A node's value is the element itself; a run of adjacent elements contains only this one.)
            let ty = match found.ty.as_deref().map(|ty| &ty.shape) {
                Some(Shape::Array { element, .. }) if found.slice.is_some() => {
                    Some(element.clone())
                }
                _ => found.ty.clone(),
            };
            return Ok(Lvalue {
                ty,
                name,
                slice: None,
                walked: false,
                ..found
            });
        }
        let (start, element) = self.elements(value, index, index.saturating_add(1))?;
        Ok(Lvalue {
            ty: Some(element),
            name,
            slice: None,
            ..start
        })
    }

    pub(super) fn slice(
        &self,
        value: Lvalue,
        from: Option<i64>,
        to: Option<i64>,
    ) -> Result<Lvalue, Problem> {
        let array = value.ty.as_deref().map(|ty| &ty.shape);
        let bounds = match array {
            Some(Shape::Array { bounds, .. }) => *bounds,
            _ => Bounds::default(),
        };
        let from = from.unwrap_or(bounds.first);
        let to = match (to, array) {
            (Some(to), _) => to,
            (
                None,
                Some(Shape::Array {
                    count: Some(count), ..
                }),
            ) => bounds.first.saturating_add_unsigned(*count),
            (None, _) => {
                return Err(self.problem(
                    format!("the number of elements of `{}` is not known", value.name),
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
        Ok(start.some_of(element, count, from, bounds))
    }

    /// The nodes of a list, from `head` or its target up to null or a repeated node.
    fn chain(&self, head: Lvalue, link: &str, nodes: &mut Vec<Lvalue>) -> Result<(), Problem> {
        if self.follows() && !head.access_path.is_many() {
            nodes.push(self.any_node(head, link)?);
            return Ok(());
        }
        self.stay()?;
        let list = format!("{}->*{link}", head.name);
        let mut seen = HashSet::new();
        let mut next = match head.ty.as_deref().map(|ty| &ty.shape) {
            Some(Shape::Struct { .. }) => Some(head),
            _ => self.deref_unless_null(head)?,
        };
        while let Some(node) = next {
            if !seen.insert(node.addr) {
                break;
            }
            self.few(nodes.len() as u64 + 1)?;
            let node = Lvalue {
                name: format!("{list}[{}]", seen.len() - 1),
                ..node
            };
            let pointer = self.field(node.clone(), link)?;
            nodes.push(node);
            next = self.deref_unless_null(pointer)?;
        }
        Ok(())
    }

    /// A pointer's target; null is the end of a list.
    pub(super) fn deref_unless_null(&self, pointer: Lvalue) -> Result<Option<Lvalue>, Problem> {
        match self.pointer(&pointer)? {
            0 => Ok(None),
            _ => self.deref(pointer).map(Some),
        }
    }

    /// The present target of a pointer, as an object.
    pub(super) fn deref(&self, value: Lvalue) -> Result<Lvalue, Problem> {
        let target = match value.ty.as_ref().map(|t| &t.shape) {
            Some(Shape::Pointer { to, .. }) => *to,
            None => None,
            Some(Shape::Opaque) if value.untyped => None,
            _ => return Err(self.not_a_pointer(&value)),
        };
        let read = match value.access_path.complete {
            true => self.pointer(&value).map(Some),
            false => Ok(None),
        };
        let (addr, points) = match read {
            Ok(Some(addr)) => (addr, addr >= 0x1000),
            Err(problem) if !self.follows() => return Err(problem),
            Ok(None) | Err(_) => (0, false),
        };
        if !points && !self.follows() {
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
                format!("{}, or watch the pointer itself", self.later("later")),
            ));
        }
        let ty = match (&value.module, target) {
            (Some(module), Some(die)) => module.types.get(die),
            _ => None,
        };
        let untyped = ty.is_none();
        let access_path = value.access_path.clone();
        let access_path = access_path.through(value.addr, points.then_some(addr));
        Ok(Lvalue {
            addr: if points { addr } else { 0 },
            access_path,
            ty,
            size: 0,
            untyped,
            slice: None,
            bits: None,
            ..value
        })
    }

    /// The present address in a pointer.
    pub(super) fn pointer(&self, value: &Lvalue) -> Result<u64, Problem> {
        let mut bytes = [0; 8];
        if !self.memory.read(value.addr, &mut bytes) {
            return Err(self.problem(
                format!("`{}` at {:#x} cannot be read", value.name, value.addr),
                format!("check that it exists now, or {}", self.later("later")),
            ));
        }
        Ok(u64::from_le_bytes(bytes))
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
        if let [first, .., last] = *ty.ambiguous(field) {
            return Err(self.problem(
                format!("{} has `{field}` of {first} and of {last}", ty.name),
                format!(
                    "say which one: {0}.{first}.{field} or {0}.{last}.{field}",
                    value.name
                ),
            ));
        }
        let size = member.bits.map_or(0, |b| b.bytes());
        let value = match member.variant {
            Some(variant) => {
                let there = self.if_variant(value.clone(), variant)?;
                there.ok_or_else(|| self.not_active(&value, field))?
            }
            None => value,
        };
        Ok(Lvalue {
            addr: value.addr.wrapping_add(member.offset),
            ty: Some(member.ty),
            size,
            bits: member.bits,
            slice: None,
            ..value
        })
    }

    /// Elements `from..to` of an array or of a pointer's target.
    pub(super) fn elements(
        &self,
        value: Lvalue,
        from: i64,
        to: i64,
    ) -> Result<(Lvalue, Rc<Type>), Problem> {
        let Some(ty) = value.ty.clone() else {
            return Err(self.no_type(&value));
        };
        let (mut start_at, mut stride) = (from, 0);
        let (start, element) = match &ty.shape {
            Shape::Array {
                element,
                count,
                bounds,
            } => {
                let (from, to) =
                    match (from.checked_sub(bounds.first), to.checked_sub(bounds.first)) {
                        (Some(from), Some(to)) => (from, to),
                        _ => (-1, 0),
                    };
                // In C, a trailing array of one or no element means an array of unknown length.
                if let (Some(count @ 2..), _) | (Some(count), true) = (*count, from < 0)
                    && (from < 0 || to as u64 > count)
                {
                    self.decided.set(true);
                    let last = if from < 0 { from } else { to - 1 };
                    let (first, last) = (bounds.first, last.saturating_add(bounds.first));
                    return Err(self.problem(
                        format!(
                            "`{}` has {count} elements, and {last} is not among them",
                            value.name
                        ),
                        format!(
                            "use {first} to {}",
                            first.saturating_add_unsigned(count) - 1
                        ),
                    ));
                }
                (start_at, stride) = (from, bounds.stride);
                self.decided.set(self.decided.get() || stride != 0);
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
        let stride = if stride == 0 {
            element.size as i64
        } else {
            stride
        };
        let addr = start
            .addr
            .wrapping_add_signed(start_at.wrapping_mul(stride));
        Ok((Lvalue { addr, ..start }, element))
    }
}

impl Lvalue {
    pub(super) fn has(&self, field: &str) -> bool {
        self.ty
            .as_ref()
            .is_some_and(|ty| ty.member(field).is_some())
    }

    /// `count` elements from here on, the first of which has number `from`.
    pub(super) fn some(self, element: Rc<Type>, count: u64, from: i64) -> Lvalue {
        self.some_of(element, count, from, Bounds::default())
    }

    fn some_of(self, element: Rc<Type>, count: u64, from: i64, bounds: Bounds) -> Lvalue {
        let ty = Type {
            name: format!("{} [{count}]", element.name),
            size: element.size.saturating_mul(count),
            shape: Shape::Array {
                element,
                count: Some(count),
                bounds,
            },
        };
        Lvalue {
            ty: Some(Rc::new(ty)),
            slice: Some(from),
            bits: None,
            ..self
        }
    }
}

/// A name with dots, if the expression consists of nothing else.
fn dotted(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Name(name) => Some(name.clone()),
        Expr::Field(inner, field) => Some(format!("{}.{field}", dotted(inner)?)),
        _ => None,
    }
}
