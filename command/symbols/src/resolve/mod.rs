//! Resolves a [`Spec`] to the bytes to watch.

mod any;
mod debugger;
mod directory;
mod elements;
mod explain;
mod find;
mod local;
mod nodes;
mod steps;
mod variants;
mod walk;

use crate::condition::{self, Kind};
use crate::descriptor::Unknown;
use crate::dwarf::Die;
use crate::filter;
use crate::head::Head;
use crate::maps::{Module, Program};
use crate::memory::Memory;
use crate::problem::Problem;
use crate::spec::{Expr, Spec};
use crate::types::{Bits, Shape, Type};
use crate::value::{self, Part};
use std::cell::Cell;
use std::rc::Rc;
use ulpf_lib::WatchKind;
use ulpf_lib::addr::USER_END;
use ulpf_lib::command::Path;
use ulpf_lib::filter::Filter;
use ulpf_lib::ring::Hit;

/// A watch that is ready to be armed.
#[derive(Clone, Debug)]
pub struct Watched {
    /// The text as typed.
    pub spec: String,
    /// The name shown for hits; parts (`[3]`, `.next`) are appended.
    pub name: String,
    pub addr: u64,
    pub len: u64,
    /// Watches all memory that the program allocates, now and later; `addr` and `len` are zero.
    pub heap: bool,
    pub kind: WatchKind,
    pub ty: Option<Rc<Type>>,
    /// Number of the first element, for a slice of an array.
    pub slice: Option<i64>,
    /// The watch may have many places, if the path leads to several.
    pub each: Option<Each>,
    pub bits: Option<Bits>,
    /// The watch follows pointers. `addr` is their present target, or 0 if they lead nowhere.
    pub path: Option<Path>,
    /// Stores that change its bytes are undone.
    pub freeze: bool,
    /// A remark for the user: which thread's copy, which bytes.
    pub note: Option<String>,
    /// The filter, without names.
    pub filter: Filter,
}

/// Names of the places of a following watch: `list->*next[*].refs`, with a number for the `*`.
#[derive(Clone, Debug)]
pub struct Each {
    /// Position of `[*]` in the name. `[#*]` is used for elements with keys; it shows an ordinal number.
    pub(crate) at: usize,
    /// Number of the first place.
    pub(crate) first: i64,
    /// The array type, if the places are adjacent elements of an array.
    pub(crate) array: Option<Rc<Type>>,
}

impl Watched {
    /// Name and value format of an access to `len` bytes at `offset` of the watch.
    pub fn part(&self, offset: u64, len: u64) -> (String, Part) {
        if self.heap {
            return (format!("{}[{offset:#x}]", self.name), Part::untyped(offset));
        }
        if let Some(each) = &self.each {
            return self.part_of(each, offset, len);
        }
        let mut path = String::new();
        let part = match (&self.ty, self.bits) {
            (Some(ty), Some(_)) => Part {
                ty: ty.clone(),
                repeat: None,
                inside: offset,
                bits: self.bits,
            },
            // (An address and a length come from the program's memory: any numbers.)
            (Some(ty), None) if offset.checked_add(len).is_some_and(|end| end <= ty.size) => {
                value::describe(ty, offset, len, self.slice, &mut path)
            }
            _ => {
                if offset > 0 || len < self.len {
                    path = format!("+{offset}");
                }
                Part::untyped(offset)
            }
        };
        (with_path(&self.name, &path), part)
    }

    /// As [`Watched::part`], for one of many places. Offsets count as if the places were adjacent.
    fn part_of(&self, each: &Each, offset: u64, len: u64) -> (String, Part) {
        let (before, behind) = self.name.split_at(each.at);
        if let Some(array) = &each.array {
            let mut path = String::new();
            let part = value::describe(array, offset, len, Some(each.first), &mut path);
            return (with_path(before, &path), part);
        }
        let size = self.len.max(1);
        let number = each.first.saturating_add_unsigned(offset / size);
        let one = Watched {
            name: match behind.strip_prefix("[#*]") {
                Some(behind) => format!("{before}[#{number}]{behind}"),
                None => format!("{before}[{number}]{}", behind.trim_start_matches("[*]")),
            },
            each: None,
            ..self.clone()
        };
        one.part(offset % size, len)
    }

    /// Offset of a hit in the watch, in bytes.
    pub fn offset(&self, hit: &Hit) -> u64 {
        match self.path {
            Some(_) => hit.inside,
            None => hit.addr.wrapping_sub(self.addr),
        }
    }

    /// The type's name in source form.
    pub fn type_name(&self) -> Option<&str> {
        self.ty.as_ref().map(|t| t.name.as_str())
    }
}

/// Joins a name and a path: `*p` and `.x` make `p->x`; `*p` and `[1]` make `(*p)[1]`.
fn with_path(name: &str, path: &str) -> String {
    match (name.strip_prefix('*'), path.strip_prefix('.')) {
        (Some(pointer), Some(field)) => format!("{pointer}->{field}"),
        (Some(_), None) if path.starts_with('[') => format!("({name}){path}"),
        _ => format!("{name}{path}"),
    }
}

use steps::AccessPath;

/// An object in memory, while an expression is evaluated.
#[derive(Clone)]
struct Lvalue {
    addr: u64,
    ty: Option<Rc<Type>>,
    /// The module of its type.
    module: Option<Rc<Module>>,
    /// The size according to the symbol table, if there is no type.
    size: u64,
    name: String,
    slice: Option<i64>,
    /// The slice is the result of the last step of `access_path`, and the path leads to each of its elements.
    walked: bool,
    /// The number of the first of many places.
    first: i64,
    bits: Option<Bits>,
    note: Option<String>,
    /// The steps before it, such as pointers.
    access_path: AccessPath,
    /// Bytes without a type, for which the user must give a length.
    untyped: bool,
    /// The main thread's copy.
    thread_local: bool,
}

impl Program {
    /// Finds the bytes of `spec` at present: one place, or one in each element of a range inside the expression. The
    /// result is never empty.
    ///
    /// # Errors
    ///
    /// Why no bytes were found.
    pub fn resolve(&self, spec: &Spec, memory: &dyn Memory) -> Result<Vec<Watched>, Problem> {
        let stays = Cell::new(true);
        self.resolved(spec, memory, &stays)
    }

    /// As [`Program::resolve`], for a watch that follows its pointers, unless `spec` says `snapshot`. Pointers may be
    /// NULL, and lists and containers empty. The watch is fixed to the present places if the expression leads to many
    /// places in two ways, and for some containers.
    ///
    /// # Errors
    ///
    /// Why it cannot be watched.
    pub fn resolve_path(&self, spec: &Spec, memory: &dyn Memory) -> Result<Vec<Watched>, Problem> {
        let stays = Cell::new(spec.filter.snapshot || spec.filter.freeze);
        let follows = !stays.get();
        let found = self.resolved(spec, memory, &stays);
        match follows && stays.get() {
            true => self.resolved(spec, memory, &stays),
            false => found,
        }
    }

    fn resolved(
        &self,
        spec: &Spec,
        memory: &dyn Memory,
        stays: &Cell<bool>,
    ) -> Result<Vec<Watched>, Problem> {
        let resolver = Resolver {
            program: self,
            spec,
            memory,
            stays,
            head: None,
            decided: &Cell::new(false),
        };
        let found = resolver.resolve()?.into_iter();
        Ok(found.map(|(watched, _)| watched).collect())
    }
}

struct Resolver<'a> {
    program: &'a Program,
    spec: &'a Spec,
    memory: &'a dyn Memory,
    /// The watch is fixed to the present places. While this is false, pointers may be NULL and may change.
    stays: &'a Cell<bool>,
    /// The value of [`crate::HEAD`].
    head: Option<&'a Head>,
    /// Set where the expression leaves the debugged language ([`Located::decided`]).
    decided: &'a Cell<bool>,
}

/// A watch, and the module of its type.
type Found = (Watched, Option<Rc<Module>>);

impl Resolver<'_> {
    fn resolve(&self) -> Result<Vec<Found>, Problem> {
        let spec = self.spec;
        let values = match &spec.expr {
            Expr::Heap => return Ok(vec![(self.heap()?, None)]),
            Expr::Malformed(problem) => return Err(problem.clone()),
            // A variable of that name takes precedence.
            Expr::Name(name) if name == "heap" && spec.len.is_none() && spec.scope.is_none() => {
                match self.program.may_have(name).then(|| self.eval(&spec.expr)) {
                    None | Some(Err(_)) => return Ok(vec![(self.heap()?, None)]),
                    Some(Ok(found)) => found,
                }
            }
            expr => self.eval(expr)?,
        };
        let values = values.into_iter().map(|value| self.spread(value));
        let values = values.collect::<Result<Vec<_>, _>>()?.concat();
        if values.is_empty() {
            return Err(self.empty());
        }
        let mut found: Vec<Found> = Vec::with_capacity(values.len());
        for value in values {
            let (watched, module) = self.watched(value)?;
            // The elements of a range have the same type, and hence the same filter.
            let alike = |before: &&Found| {
                let before = &before.0;
                let same = match (&before.ty, &watched.ty) {
                    (Some(a), Some(b)) => Rc::ptr_eq(a, b),
                    (a, b) => a.is_none() && b.is_none(),
                };
                same && (before.len, before.bits) == (watched.len, watched.bits)
            };
            let watched = match found.last().filter(alike) {
                Some((before, _)) => Watched {
                    filter: before.filter.clone(),
                    ..watched
                },
                None => self.filtered(watched, module.clone())?,
            };
            found.push((watched, module));
        }
        Ok(found)
    }

    fn problem(&self, why: impl Into<String>, what_to_do: impl Into<String>) -> Problem {
        Problem::new(format!("cannot watch `{}`", self.spec), why, what_to_do)
    }

    /// Advice to set the watch when the program has come further.
    fn later(&self, when: &str) -> String {
        match self.head {
            Some(_) => format!("set the watch {when}"),
            None => format!("set the watch {when} (--at FUNCTION, ulpf attach, ulpf top)"),
        }
    }

    /// Whether pointers in the expression move the watch.
    fn follows(&self) -> bool {
        !self.stays.get()
    }

    /// Fixes the watch to the present places, because the expression has many places or is in a container and cannot be
    /// followed. Results found so far for a following watch are discarded and resolved again.
    fn stay(&self) -> Result<(), Problem> {
        match self.stays.replace(true) {
            true => Ok(()),
            false => Err(self.problem("it has many places", "say `snapshot` behind it")),
        }
    }

    /// The watch for an object of the expression, still without a filter.
    fn watched(&self, value: Lvalue) -> Result<Found, Problem> {
        let value = self.referred(value)?;
        let (mut value, array) = self.one_of(value)?;
        let size = match &value.ty {
            Some(ty) if value.bits.is_none() => {
                ty.size.max(if ty.size == 0 { value.size } else { 0 })
            }
            _ => value.size,
        };
        if self.spec.len.is_none() && (size == 0 || value.untyped) {
            return Err(self.no_size(&value));
        }
        let len = self.spec.len.unwrap_or(size);
        let path = match self.follows() {
            true => value.access_path.path(value.addr).transpose(),
            false => Ok(None),
        };
        if path.as_ref().is_ok_and(Option::is_none) && value.access_path.is_many() {
            self.stay()?;
        }
        let path = path.map(|path| match (path, self.spec.filter.most) {
            (Some(path), Some(most)) if path.is_many() => Some(path.with_most(most)),
            (path, _) => path,
        });
        let path = path.map_err(|why| {
            self.problem(
                why,
                "watch fewer, or where they lead now: say `snapshot` behind it",
            )
        })?;
        let end = value.addr.checked_add(len);
        let outside = end.is_none_or(|end| end > USER_END);
        if path.is_some() && (outside || !value.access_path.complete) {
            value.addr = 0;
        } else if outside {
            return Err(Problem::new(
                format!("`{}` is {len} bytes at {:#x}", self.spec, value.addr),
                "that is not in the program's half of the address space",
                "check the address",
            ));
        }
        let mut note = value.note;
        if let Some(bits) = value.bits {
            note.get_or_insert(format!(
                "{} is a bit-field of {} bits: its whole bytes are watched, and writes that change none of its bits are filtered out",
                value.name, bits.len
            ));
        }
        let module = value.module;
        let mark = value.name.find("[*]").or_else(|| value.name.find("[#*]"));
        let many = mark.filter(|_| path.is_some());
        let each = many.map(|at| Each {
            at,
            first: value.first,
            array,
        });
        let watched = Watched {
            filter: Filter::default(),
            spec: self.spec.text.clone(),
            name: if matches!(self.spec.expr, Expr::Address(_)) {
                format!("{:#x}", value.addr)
            } else {
                value.name
            },
            addr: value.addr,
            len,
            heap: false,
            kind: self.spec.kind,
            ty: value.ty,
            slice: value.slice,
            each,
            bits: value.bits,
            path,
            freeze: self.spec.filter.freeze,
            note,
        };
        Ok((watched, module))
    }

    /// Splits the elements that a path leads to: one element, and the array that they form.
    fn one_of(&self, value: Lvalue) -> Result<(Lvalue, Option<Rc<Type>>), Problem> {
        if !value.walked {
            return Ok((value, None));
        }
        if self.spec.len.is_some() {
            // That many bytes from the first element on.
            self.stay()?;
        }
        let array = value.ty.clone();
        Ok((value.element_of_walk(), array))
    }

    /// Replaces a C++ reference by its referent, and what describes an array by the array.
    fn referred(&self, value: Lvalue) -> Result<Lvalue, Problem> {
        if let Some(Shape::Descriptor(die)) = value.ty.as_deref().map(|ty| &ty.shape) {
            let die = *die;
            return self.described(value, die);
        }
        let reference = match value.ty.as_deref().map(|ty| &ty.shape) {
            Some(Shape::Pointer { reference, .. }) => *reference,
            _ => false,
        };
        if !reference {
            return Ok(value);
        }
        let name = value.name.clone();
        let value = self.deref(value)?;
        self.referred(Lvalue { name, ..value })
    }

    /// The array that is found through `value`, of the type `die`.
    fn described(&self, value: Lvalue, die: Die) -> Result<Lvalue, Problem> {
        let module = value.module.clone().ok_or_else(|| self.no_type(&value))?;
        if !value.access_path.complete {
            return Err(self.problem(
                format!(
                    "how large `{}` is, is known only while it is there",
                    value.name
                ),
                "stop there in a debugger (ulpf gdb), and watch it there",
            ));
        }
        let found = module.types.array_at(die, value.addr, self.memory);
        let (data, ty) = found.map_err(|why| match why {
            Unknown::NotThere => self.problem(
                format!("`{}` has no memory now", value.name),
                self.later("when it is allocated, or associated"),
            ),
            Unknown::Unreadable => self.problem(
                format!("`{}` at {:#x} cannot be read", value.name, value.addr),
                self.later("when it is there"),
            ),
            Unknown::Unsupported => self.problem(
                format!(
                    "where the elements of `{}` are is said in a way that ulpf does not know",
                    value.name
                ),
                "watch an address and a length: 0x7fffe000:64",
            ),
        })?;
        let mut access_path = value.access_path.clone();
        match data.pointer {
            Some(offset) => {
                let at = value.addr.wrapping_add(offset);
                let to = self.pointer(&Lvalue {
                    addr: at,
                    ..value.clone()
                })?;
                access_path = access_path.through(at, Some(to));
            }
            None if self.follows() && data.addr != value.addr => self.stay()?,
            None => {}
        }
        Ok(Lvalue {
            addr: data.addr,
            ty: Some(ty),
            access_path,
            ..value
        })
    }

    /// Each element of an array between whose elements other memory lies; any other value itself.
    fn spread(&self, value: Lvalue) -> Result<Vec<Lvalue>, Problem> {
        let value = self.referred(value)?;
        if self.spec.len.is_some() || !value.ty.as_deref().is_some_and(Type::is_strided) {
            return Ok(vec![value]);
        }
        let mut found = Vec::new();
        for one in self.apart(value, None, None)? {
            found.extend(self.spread(one)?);
            self.few(found.len() as u64)?;
        }
        Ok(found)
    }

    fn heap(&self) -> Result<Watched, Problem> {
        let heap = Watched {
            spec: self.spec.text.clone(),
            name: "heap".into(),
            addr: 0,
            len: 0,
            heap: true,
            kind: self.spec.kind,
            ty: None,
            slice: None,
            each: None,
            bits: None,
            path: None,
            freeze: self.spec.filter.freeze,
            note: None,
            filter: Filter::default(),
        };
        self.filtered(heap, None)
    }

    /// Resolves the filter to one without names.
    fn filtered(&self, watched: Watched, module: Option<Rc<Module>>) -> Result<Watched, Problem> {
        let (value, unit) = watched_value(&watched, module);
        let filter = &self.spec.filter;
        let resolved = filter.resolve(self.program).and_then(|mut resolved| {
            filter::add_conditions(&mut resolved, filter, &value, unit, self)?;
            if let (Some(bits), 1..) = (watched.bits, unit) {
                let code = condition::bits_changed(bits, watched.kind);
                let changed = ulpf_lib::filter::Condition::new(code);
                resolved
                    .conditions
                    .push(changed.map_err(|why| condition::Wrong::new(0, why))?);
                resolved.unit = unit;
            }
            Ok(resolved)
        });
        match resolved {
            Ok(filter) => Ok(Watched { filter, ..watched }),
            Err(wrong) => Err(filter::problem(&self.spec.text, &wrong)),
        }
    }
}

/// The type of `$new` and `$old`: the watched object or one of its elements, and its size (0: the accessed bytes).
fn watched_value(watched: &Watched, module: Option<Rc<Module>>) -> (condition::Value, u64) {
    let unsigned = |size: u64| Kind::Int {
        size: if matches!(size, 1 | 2 | 4) {
            size as u8
        } else {
            8
        },
        signed: false,
    };
    let bare = |size: u64| {
        let ty = unsigned(size);
        (condition::Value { ty, bits: None }, size)
    };
    let whole = match watched.len {
        len @ 1..=8 => len,
        _ => 0,
    };
    let Some(mut ty) = watched.ty.clone() else {
        return bare(whole);
    };
    if watched.bits.is_some() && whole > 0 {
        let bits = watched.bits;
        let ty = Kind::Described(ty, module);
        return (condition::Value { ty, bits }, whole);
    }
    if watched.bits.is_some() || ty.size != watched.len {
        return bare(whole);
    }
    while let Shape::Array { element, .. } = &ty.shape {
        ty = element.clone();
    }
    let scalar = matches!(
        ty.shape,
        Shape::Int { .. }
            | Shape::Char { .. }
            | Shape::Bool
            | Shape::Enum { .. }
            | Shape::Float
            | Shape::Pointer { .. }
    );
    match (scalar && matches!(ty.size, 1 | 2 | 4 | 8), ty.size) {
        (true, size) => {
            let ty = Kind::Described(ty, module);
            (condition::Value { ty, bits: None }, size)
        }
        // Conditions compute with 64 bits, and are refused if they use a larger value.
        (false, _) if scalar => {
            let ty = Kind::Described(ty, module);
            (condition::Value { ty, bits: None }, whole)
        }
        (false, _) => bare(whole),
    }
}
