//! From a [`Spec`] to the bytes to watch.

mod explain;
mod find;
mod walk;

use crate::condition::{self, Kind};
use crate::filter;
use crate::maps::{Module, Program};
use crate::problem::Problem;
use crate::spec::{Expr, Spec};
use crate::types::{Bits, Shape, Type};
use crate::value::{self, Part};
use std::rc::Rc;
use ulpf_lib::WatchKind;
use ulpf_lib::addr::USER_END;
use ulpf_lib::filter::Filter;

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
    pub bits: Option<Bits>,
    /// Something the user should know: which thread's copy, which bytes.
    pub note: Option<String>,
    /// Which hits matter, without names.
    pub filter: Filter,
}

impl Watched {
    /// Name and value form of an access to `len` bytes at `offset` of the watch.
    pub fn part(&self, offset: u64, len: u64) -> (String, Part) {
        if self.heap {
            return (format!("{}[{offset:#x}]", self.name), Part::untyped(offset));
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

/// An object in memory while an expression is walked.
struct Lvalue {
    addr: u64,
    ty: Option<Rc<Type>>,
    /// Whose types its type refers to.
    module: Option<Rc<Module>>,
    /// Where there is no type: size by the symbol table.
    size: u64,
    name: String,
    slice: Option<i64>,
    bits: Option<Bits>,
    note: Option<String>,
    /// Only bytes: a length is needed.
    untyped: bool,
    /// The main thread's copy.
    thread_local: bool,
}

impl Program {
    /// Finds the bytes that `spec` means, now.
    pub fn resolve(&self, spec: &Spec, memory: &dyn Memory) -> Result<Watched, Problem> {
        let resolver = Resolver {
            program: self,
            spec,
            memory,
        };
        let value = match &spec.expr {
            Expr::Heap => return resolver.heap(),
            Expr::Malformed(problem) => return Err(problem.clone()),
            // A variable of that name comes first.
            Expr::Name(name) if name == "heap" && spec.len.is_none() && spec.scope.is_none() => {
                match resolver.eval(&spec.expr) {
                    Err(_) => return resolver.heap(),
                    found => found,
                }
            }
            expr => resolver.eval(expr),
        };
        let mut value = value?;
        // A C++ reference stands for what it refers to.
        if matches!(
            value.ty.as_deref(),
            Some(Type {
                shape: Shape::Pointer {
                    reference: true,
                    ..
                },
                ..
            })
        ) {
            let name = value.name.clone();
            value = Lvalue {
                name,
                ..resolver.deref(value)?
            };
        }
        let size = match &value.ty {
            Some(ty) if value.bits.is_none() => {
                ty.size.max(if ty.size == 0 { value.size } else { 0 })
            }
            _ => value.size,
        };
        if spec.len.is_none() && (size == 0 || value.untyped) {
            return Err(resolver.no_size(&value));
        }
        let len = spec.len.unwrap_or(size);
        if value.addr >= USER_END || value.addr.checked_add(len).is_none_or(|end| end > USER_END) {
            return Err(Problem::new(
                format!("`{spec}` is {len} bytes at {:#x}", value.addr),
                "that is not in the program's half of the address space",
                "check the address",
            ));
        }
        let mut note = value.note;
        if let Some(bits) = value.bits {
            note.get_or_insert(format!(
                "{} is a bit-field of {} bits: its whole bytes are watched",
                value.name, bits.len
            ));
        }
        let module = value.module;
        let watched = Watched {
            filter: Filter::default(),
            spec: spec.text.clone(),
            name: if matches!(spec.expr, Expr::Address(_)) {
                format!("{:#x}", value.addr)
            } else {
                value.name
            },
            addr: value.addr,
            len,
            heap: false,
            kind: spec.kind,
            ty: value.ty,
            slice: value.slice,
            bits: value.bits,
            note,
        };
        resolver.filtered(watched, module)
    }
}

struct Resolver<'a> {
    program: &'a Program,
    spec: &'a Spec,
    memory: &'a dyn Memory,
}

impl Resolver<'_> {
    fn problem(&self, why: impl Into<String>, what_to_do: impl Into<String>) -> Problem {
        Problem::new(format!("cannot watch `{}`", self.spec), why, what_to_do)
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
            bits: None,
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
        (false, _) => bare(whole),
    }
}
