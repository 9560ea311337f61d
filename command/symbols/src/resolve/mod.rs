//! From a [`Spec`] to the bytes to watch.

mod any;
mod directory;
mod elements;
mod explain;
mod find;
mod local;
mod nodes;
mod variants;
mod walk;
mod way;

use crate::condition::{self, Kind};
use crate::filter;
use crate::maps::{Module, Program};
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

/// The program's memory, as far as resolving needs it.
pub trait Memory {
    /// Fills `buf` from `addr`, or returns `false`.
    fn read(&self, addr: u64, buf: &mut [u8]) -> bool;
    /// The main thread's thread pointer (fs base); `None` while it has none.
    fn thread_pointer(&self) -> Option<u64>;
}

/// A watch that is ready to be armed.
#[derive(Clone, Debug)]
pub struct Watched {
    /// As typed.
    pub spec: String,
    /// What hits are called by; parts (`[3]`, `.next`) are added to it.
    pub name: String,
    pub addr: u64,
    pub len: u64,
    /// All that the program allocates, now and later; `addr` and `len` are zero.
    pub heap: bool,
    pub kind: WatchKind,
    pub ty: Option<Rc<Type>>,
    /// Number of the first element, for a slice of an array.
    pub slice: Option<i64>,
    /// There may be many such places, as long as the path leads to them.
    pub each: Option<Each>,
    pub bits: Option<Bits>,
    /// Pointers are on the way, and the watch follows them: `addr` is where they lead now, 0 if that is nowhere.
    pub path: Option<Path>,
    /// What changes its bytes is undone.
    pub freeze: bool,
    /// Something the user should know: which thread's copy, which bytes.
    pub note: Option<String>,
    /// Which hits matter, without names.
    pub filter: Filter,
}

/// How the places of a watch that follows are called: `list->*next[*].refs`, with their numbers for the `*`.
#[derive(Clone, Debug)]
pub struct Each {
    /// Where in the name the `[*]` stands, or `[#*]` of elements that are known by keys: then it is the how manyth.
    pub(crate) at: usize,
    /// The number of the first one.
    pub(crate) first: i64,
    /// They are the elements of such an array, side by side.
    pub(crate) array: Option<Rc<Type>>,
}

impl Watched {
    /// Name and value form of an access to `len` bytes at `offset` of the watch.
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

    /// The same of one of many places, which are counted as if they stood side by side.
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

    /// How many of its bytes are before those of a hit.
    pub fn offset(&self, hit: &Hit) -> u64 {
        match self.path {
            Some(_) => hit.inside,
            None => hit.addr.wrapping_sub(self.addr),
        }
    }

    /// The type, as a programmer writes it.
    pub fn type_name(&self) -> Option<&str> {
        self.ty.as_ref().map(|t| t.name.as_str())
    }
}

/// `*p` and `.x` make `p->x`; `*p` and `[1]` make `(*p)[1]`.
fn with_path(name: &str, path: &str) -> String {
    match (name.strip_prefix('*'), path.strip_prefix('.')) {
        (Some(pointer), Some(field)) => format!("{pointer}->{field}"),
        (Some(_), None) if path.starts_with('[') => format!("({name}){path}"),
        _ => format!("{name}{path}"),
    }
}

use way::Way;

/// An object in memory while an expression is walked.
#[derive(Clone)]
struct Lvalue {
    addr: u64,
    ty: Option<Rc<Type>>,
    /// Whose types its type refers to.
    module: Option<Rc<Module>>,
    /// Where there is no type: size by the symbol table.
    size: u64,
    name: String,
    slice: Option<i64>,
    /// The slice is what the last step of `way` comes to, and the path leads to each of its elements.
    walked: bool,
    /// The number of the first place, of many.
    first: i64,
    bits: Option<Bits>,
    note: Option<String>,
    /// The pointers before it.
    way: Way,
    /// Only bytes: a length is needed.
    untyped: bool,
    /// The main thread's copy.
    thread_local: bool,
}

impl Program {
    /// Finds the bytes that `spec` means, now: one place, or one in each element of a range that stands before
    /// the end of the expression. There is at least one.
    ///
    /// # Errors
    /// Why there are none.
    pub fn resolve(&self, spec: &Spec, memory: &dyn Memory) -> Result<Vec<Watched>, Problem> {
        let stays = Cell::new(true);
        self.resolved(spec, memory, &stays)
    }

    /// The same for a watch that goes where its pointers lead, unless `spec` says `snapshot`. They may be NULL now, and
    /// lists and containers empty. Of what has many places in two ways, and in some containers, it stays where it is now.
    ///
    /// # Errors
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
        };
        let values = match &spec.expr {
            Expr::Heap => return Ok(vec![resolver.heap()?]),
            Expr::Malformed(problem) => return Err(problem.clone()),
            // A variable of that name comes first.
            Expr::Name(name) if name == "heap" && spec.len.is_none() && spec.scope.is_none() => {
                match self.may_have(name).then(|| resolver.eval(&spec.expr)) {
                    None | Some(Err(_)) => return Ok(vec![resolver.heap()?]),
                    Some(Ok(found)) => found,
                }
            }
            expr => resolver.eval(expr)?,
        };
        let mut found: Vec<Watched> = Vec::with_capacity(values.len());
        for value in values {
            let (watched, module) = resolver.watched(value)?;
            // The elements of a range are alike, and so are their filters.
            let alike = |before: &&Watched| {
                let same = match (&before.ty, &watched.ty) {
                    (Some(a), Some(b)) => Rc::ptr_eq(a, b),
                    (a, b) => a.is_none() && b.is_none(),
                };
                same && (before.len, before.bits) == (watched.len, watched.bits)
            };
            let watched = match found.last().filter(alike) {
                Some(before) => Watched {
                    filter: before.filter.clone(),
                    ..watched
                },
                None => resolver.filtered(watched, module)?,
            };
            found.push(watched);
        }
        Ok(found)
    }
}

struct Resolver<'a> {
    program: &'a Program,
    spec: &'a Spec,
    memory: &'a dyn Memory,
    /// The watch stays where its pointers lead now. While it is not known to, they may be NULL, and change.
    stays: &'a Cell<bool>,
}

impl Resolver<'_> {
    fn problem(&self, why: impl Into<String>, what_to_do: impl Into<String>) -> Problem {
        Problem::new(format!("cannot watch `{}`", self.spec), why, what_to_do)
    }

    /// Do pointers on the way make the watch go elsewhere?
    fn follows(&self) -> bool {
        !self.stays.get()
    }

    /// From here on the expression means what there is now: its places are many, or in a container, and none of
    /// them has a way of its own. What has been found as if it followed is looked for once more.
    fn stay(&self) -> Result<(), Problem> {
        match self.stays.replace(true) {
            true => Ok(()),
            false => Err(self.problem("it has many places", "say `snapshot` behind it")),
        }
    }

    /// What is watched of an object that the expression means, still without a filter.
    fn watched(&self, value: Lvalue) -> Result<(Watched, Option<Rc<Module>>), Problem> {
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
            true => value.way.path(value.addr).transpose(),
            false => Ok(None),
        };
        if path.as_ref().is_ok_and(Option::is_none) && value.way.is_many() {
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
        if path.is_some() && (outside || !value.way.whole) {
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

    /// Of all elements that a path leads to, one by one: the element, and the array that they make.
    fn one_of(&self, value: Lvalue) -> Result<(Lvalue, Option<Rc<Type>>), Problem> {
        if !value.walked {
            return Ok((value, None));
        }
        if self.spec.len.is_some() {
            // So many bytes from the first one on.
            self.stay()?;
        }
        let array = value.ty.clone();
        Ok((value.element_of_walk(), array))
    }

    /// A C++ reference stands for what it refers to.
    fn referred(&self, value: Lvalue) -> Result<Lvalue, Problem> {
        let reference = match value.ty.as_deref().map(|ty| &ty.shape) {
            Some(Shape::Pointer { reference, .. }) => *reference,
            _ => false,
        };
        if !reference {
            return Ok(value);
        }
        let name = value.name.clone();
        let value = self.deref(value)?;
        Ok(Lvalue { name, ..value })
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

    /// Which hits matter, without names.
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

/// What `$new` and `$old` are: the watched object, or one of its elements, and how large that is (0: what
/// was accessed, whatever it is).
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
        // A condition computes with 64 bits, and is refused if it asks for such a value.
        (false, _) if scalar => {
            let ty = Kind::Described(ty, module);
            (condition::Value { ty, bits: None }, whole)
        }
        (false, _) => bare(whole),
    }
}
