//! From a [`Spec`] to the bytes to watch.

use super::condition::{self, Found, Kind, Names};
use super::filter;
use super::index::{Index, Place, Variable};
use super::maps::{Module, Program};
use super::object::{ElfSymbol, SymbolSort};
use super::spec::{Expr, Scope, Spec};
use super::types::{Bits, Shape, Type};
use super::value::{self, Part};
use super::{Memory, Problem};
use std::rc::Rc;
use ulpf_lib::WatchKind;
use ulpf_lib::addr::USER_END;

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
    /// The stub's words for which hits matter, each with a blank before it.
    pub filter: String,
}

impl Watched {
    /// Name and value form of an access to `len` bytes at `offset` of the watch.
    pub fn part(&self, offset: u64, len: u64) -> (String, Part) {
        if self.heap {
            return (
                format!("{}[{offset:#x}]", self.name),
                Part {
                    ty: Type::opaque(0),
                    repeat: None,
                    inside: offset,
                    bits: None,
                },
            );
        }
        let mut path = String::new();
        let part = match (&self.ty, self.bits) {
            (Some(ty), Some(_)) => Part {
                ty: ty.clone(),
                repeat: None,
                inside: offset,
                bits: self.bits,
            },
            (Some(ty), None) if offset + len <= ty.size => {
                value::describe(ty, offset, len, self.slice, &mut path)
            }
            _ => {
                if offset > 0 || len < self.len {
                    path = format!("+{offset}");
                }
                Part {
                    ty: Type::opaque(0),
                    repeat: None,
                    inside: offset,
                    bits: None,
                }
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
            filter: String::new(),
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

/// A variable that was found, and where.
struct Match<'a> {
    module: &'a Rc<Module>,
    variable: &'a Variable,
    index: &'a Index,
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
            filter: String::new(),
        };
        self.filtered(heap, None)
    }

    /// Which hits matter, in the stub's words.
    fn filtered(&self, watched: Watched, module: Option<Rc<Module>>) -> Result<Watched, Problem> {
        let (value, unit) = watched_value(&watched, module);
        let filter = &self.spec.filter;
        let words = filter
            .words(self.program)
            .and_then(|words| Ok(words + &filter::condition_words(filter, &value, unit, self)?));
        match words {
            Ok(filter) => Ok(Watched { filter, ..watched }),
            Err(wrong) => Err(filter::problem(&self.spec.text, &wrong)),
        }
    }

    fn eval(&self, expr: &Expr) -> Result<Lvalue, Problem> {
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
                untyped: true,
                thread_local: false,
            }),
            Expr::Name(name) => self.variable(name),
            Expr::Malformed(problem) => Err(problem.clone()),
            Expr::Heap => Err(self.problem("the heap has no parts", "watch `[heap]` alone")),
            Expr::Deref(inner) => {
                let value = self.eval(inner)?;
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
                let value = self.eval(inner)?;
                let name = format!("{}->{field}", value.name);
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
                let value = self.eval(inner)?;
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
                let value = self.eval(inner)?;
                let name = format!("{}[{index}]", value.name);
                let (start, element) = self.elements(value, *index, *index + 1)?;
                Ok(Lvalue {
                    ty: Some(element),
                    name,
                    slice: None,
                    ..start
                })
            }
            Expr::Slice(inner, range) => {
                let value = self.eval(inner)?;
                let (from, to) = match (range, value.ty.as_ref().map(|t| &t.shape)) {
                    (Some(range), _) => *range,
                    (
                        None,
                        Some(Shape::Array {
                            count: Some(count), ..
                        }),
                    ) => (0, *count as i64),
                    (None, _) => {
                        return Err(self.problem(
                            format!("how many elements `{}` has is not known", value.name),
                            "write [FROM..TO]",
                        ));
                    }
                };
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

    /// Follows a pointer: the object it points to now.
    fn deref(&self, value: Lvalue) -> Result<Lvalue, Problem> {
        let target = match value.ty.as_ref().map(|t| &t.shape) {
            Some(Shape::Pointer { to, .. }) => *to,
            None => None,
            Some(Shape::Opaque) if value.untyped => None,
            _ => return Err(self.not_a_pointer(&value)),
        };
        let mut bytes = [0; 8];
        if !self.memory.read(value.addr, &mut bytes) {
            return Err(self.problem(
                format!("`{}` at {:#x} cannot be read", value.name, value.addr),
                "check that it exists when the watches are set; --at FUNCTION sets them later",
            ));
        }
        let addr = u64::from_le_bytes(bytes);
        if addr < 0x1000 {
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
        Ok(Lvalue {
            addr,
            ty,
            size: 0,
            untyped,
            slice: None,
            bits: None,
            ..value
        })
    }

    fn field(&self, value: Lvalue, field: &str) -> Result<Lvalue, Problem> {
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
        let size = member.bits.map_or(0, |b| (b.first + b.len).div_ceil(8));
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
    fn elements(&self, value: Lvalue, from: i64, to: i64) -> Result<(Lvalue, Rc<Type>), Problem> {
        let Some(ty) = value.ty.clone() else {
            return Err(self.no_type(&value));
        };
        let (start, element) = match &ty.shape {
            Shape::Array { element, count } => {
                // Trailing arrays of one or no element are a C idiom for "as many as there are".
                if let (Some(count @ 2..), _) | (Some(count), true) = (*count, from < 0) {
                    if from < 0 || to as u64 > count {
                        let last = if from < 0 { from } else { to - 1 };
                        return Err(self.problem(
                            format!(
                                "`{}` has {count} elements, {last} is none of them",
                                value.name
                            ),
                            format!("use 0 to {}", count.saturating_sub(1)),
                        ));
                    }
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

    fn variable(&self, name: &str) -> Result<Lvalue, Problem> {
        let mut unusable: Option<Problem> = None;
        for round in [Round::Executable, Round::Globals, Round::Statics] {
            let modules: Vec<&Rc<Module>> = match &self.spec.scope {
                Some(Scope::Object(object)) => {
                    let named: Vec<_> = self.program.modules_named(object).collect();
                    if named.is_empty() {
                        let loaded = list(
                            self.program
                                .modules
                                .iter()
                                .map(|m| m.object.name().to_string()),
                            20,
                        );
                        return Err(Problem {
                            not_yet: true,
                            ..self.problem(
                                format!("`{object}` is not loaded"),
                                format!("name one of the loaded objects: {loaded}"),
                            )
                        });
                    }
                    named
                }
                _ => self
                    .program
                    .modules
                    .iter()
                    .filter(|m| m.is_executable == (round == Round::Executable))
                    .collect(),
            };
            let mut found = Vec::new();
            for module in modules {
                // Debug information of libraries is read only when their symbol tables do not help.
                if round == Round::Globals && self.spec.scope.is_none() {
                    let symbol = data_symbols(module, name).into_iter().find(|s| s.global);
                    if let Some(symbol) = symbol {
                        return self.at_symbol(module, symbol, name);
                    }
                    continue;
                }
                match self.in_module(module, name) {
                    Ok(list) => found.extend(list),
                    Err(problem) => unusable = unusable.or(Some(problem)),
                }
            }
            match found.len() {
                0 => {}
                1 => return self.at_variable(&found[0], name),
                _ => return Err(self.ambiguous(name, &found)),
            }
            if round == Round::Executable || self.spec.scope.is_some() {
                let searched: Vec<_> = match &self.spec.scope {
                    Some(Scope::Object(object)) => self.program.modules_named(object).collect(),
                    Some(Scope::File(_)) => continue,
                    None => self.program.executable().into_iter().collect(),
                };
                for module in searched {
                    if let Some(symbol) = data_symbols(module, name).first() {
                        return self.at_symbol(module, *symbol, name);
                    }
                }
            }
        }
        if let Some(problem) = unusable {
            return Err(problem);
        }
        // `pair.0`: a Rust tuple's field, unless the compiler has a symbol of that name.
        if let Some((base, field)) = name
            .rsplit_once('.')
            .filter(|(_, f)| f.bytes().all(|b| b.is_ascii_digit()))
        {
            let base = self.variable(base)?;
            let name = format!("{}.{field}", base.name);
            return Ok(Lvalue {
                name,
                ..self.field(base, &format!("__{field}"))?
            });
        }
        Err(self.unknown(name))
    }

    /// Usable statics of that name in one module, the best kind of match only; or why those that
    /// exist cannot be used.
    fn in_module<'m>(&self, module: &'m Rc<Module>, name: &str) -> Result<Vec<Match<'m>>, Problem> {
        let (Some(index), Some(info)) =
            (module.object.index(), module.object.debug().info.as_ref())
        else {
            return Ok(Vec::new());
        };
        let mut all = index.find(name);
        if let Some(Scope::File(file)) = &self.spec.scope {
            all.retain(|v| index.declared_in(&info.dwarf, v, file));
        }
        let usable = |v: &&Variable| match v.place {
            Place::Address(_) | Place::ThreadLocal(_) => true,
            Place::Declared => !data_symbols(module, name).is_empty(),
            _ => false,
        };
        let mut good: Vec<&Variable> = all.iter().copied().filter(usable).collect();
        if good.iter().any(|v| v.place != Place::Declared) {
            good.retain(|v| v.place != Place::Declared);
        } else {
            good.truncate(1);
        }
        if good.iter().any(|v| &*v.path == name) {
            good.retain(|v| &*v.path == name);
            if good.iter().any(|v| v.external) {
                good.retain(|v| v.external);
            }
        }
        let mut seen = Vec::new();
        good.retain(|v| !seen.contains(&v.place) && (seen.push(v.place), true).1);
        if good.is_empty() {
            let in_symbols = !data_symbols(module, name).is_empty();
            let why = all.iter().filter(|_| !in_symbols).find_map(|v| match v.place {
                Place::Constant => Some("the compiler replaced it by its value; there is nothing in memory to watch"),
                Place::OptimisedOut => Some("it was optimised out"),
                Place::Pieces => Some("the compiler split it into several places"),
                _ => None,
            });
            if let Some(why) = why {
                return Err(
                    self.problem(why, "build with -O0 or -Og, or make the variable volatile")
                );
            }
        }
        Ok(good
            .into_iter()
            .map(|variable| Match {
                module,
                variable,
                index,
            })
            .collect())
    }

    fn at_variable(&self, found: &Match, name: &str) -> Result<Lvalue, Problem> {
        let ty = found.module.types.of_variable(found.variable.die);
        let thread_local = matches!(found.variable.place, Place::ThreadLocal(_));
        let (addr, note, size) = match found.variable.place {
            Place::Address(addr) => {
                let symbol = data_symbols(found.module, name)
                    .into_iter()
                    .find(|s| s.addr == addr);
                if let Some(symbol) = symbol.filter(|_| !found.module.is_executable) {
                    return self.at_symbol(found.module, symbol, name);
                }
                let size = found
                    .module
                    .object
                    .symbols()
                    .data_at(addr)
                    .filter(|s| s.addr == addr)
                    .map_or(0, |s| s.len);
                (addr.wrapping_add(found.module.bias), None, size)
            }
            Place::ThreadLocal(offset) => {
                let (addr, note) = self.thread_local(found.module, offset, name)?;
                (addr, Some(note), 0)
            }
            _ => {
                let symbol = data_symbols(found.module, name)[0];
                let place = self.at_symbol(found.module, symbol, name)?;
                (place.addr, place.note, symbol.len)
            }
        };
        Ok(Lvalue {
            addr,
            thread_local,
            untyped: false,
            ty: ty.map(|ty| sized(ty, size)),
            module: Some(found.module.clone()),
            size,
            name: name.to_string(),
            slice: None,
            bits: None,
            note,
        })
    }

    fn at_symbol(
        &self,
        module: &Rc<Module>,
        symbol: ElfSymbol,
        name: &str,
    ) -> Result<Lvalue, Problem> {
        let (addr, note) = match symbol.sort {
            SymbolSort::ThreadLocal => {
                let (addr, note) = self.thread_local(module, symbol.addr, name)?;
                (addr, Some(note))
            }
            _ => (symbol.addr.wrapping_add(module.bias), None),
        };
        let ty = module
            .object
            .index()
            .and_then(|i| i.at(symbol.addr))
            .and_then(|v| module.types.of_variable(v.die));
        let untyped = ty.is_none() && symbol.len == 0;
        let (addr, note) = match self.copied(module, &symbol, name) {
            Some((copy, text)) => (copy, Some(text)),
            None => (addr, note),
        };
        Ok(Lvalue {
            addr,
            ty: ty.map(|ty| sized(ty, symbol.len)),
            module: Some(module.clone()),
            size: symbol.len,
            name: name.to_string(),
            slice: None,
            bits: None,
            note,
            untyped,
            thread_local: symbol.sort == SymbolSort::ThreadLocal,
        })
    }

    /// Executables that are not position independent have copies of the variables of libraries that
    /// they use (R_X86_64_COPY), and everybody uses the copy.
    fn copied(&self, module: &Module, symbol: &ElfSymbol, name: &str) -> Option<(u64, String)> {
        let executable = self
            .program
            .executable()
            .filter(|_| !module.is_executable && symbol.global)?;
        let same = |s: &ElfSymbol| s.global && s.len == symbol.len && s.sort == SymbolSort::Data;
        let copy = data_symbols(executable, name).into_iter().find(same)?;
        let text = format!(
            "`{name}` of {} lives in {}, as the linker arranged",
            module.object.name(),
            executable.object.name()
        );
        Some((copy.addr.wrapping_add(executable.bias), text))
    }

    fn thread_local(
        &self,
        module: &Module,
        offset: u64,
        name: &str,
    ) -> Result<(u64, String), Problem> {
        if !module.is_executable {
            return Err(self.problem(
                format!(
                    "`{name}` is thread-local in {}; each thread has its own copy, placed at run time",
                    module.object.name()
                ),
                "watch it by address (ADDR:LEN), or from GDB on the thread that matters",
            ));
        }
        let below = module.object.tls_offset_of_executable(offset);
        match (below, self.memory.thread_pointer()) {
            (Some(below), Some(pointer)) if pointer != 0 => Ok((
                pointer.wrapping_add_signed(below),
                format!("`{name}` is thread-local: the main thread's copy is watched, no other"),
            )),
            _ => Err(self.problem(
                format!(
                    "`{name}` is thread-local, and the main thread has no thread-local storage yet"
                ),
                "set the watches later with --at main",
            )),
        }
    }

    fn ambiguous(&self, name: &str, found: &[Match]) -> Problem {
        let each = found.iter().map(|m| {
            let file = m.module.object.debug().info.as_ref().and_then(|i| {
                m.index
                    .source_files(&i.dwarf, m.variable)
                    .into_iter()
                    .next()
            });
            let file = file.map_or(String::new(), |f| {
                format!("{}:", f.rsplit('/').next().unwrap_or(&f))
            });
            if m.module.is_executable {
                format!("{file}{}", m.variable.path)
            } else {
                format!("{}`{}", m.module.object.name(), m.variable.path)
            }
        });
        self.problem(
            format!("`{name}` names {} variables", found.len()),
            format!("say which: {}", list(each, 12)),
        )
    }

    fn unknown(&self, name: &str) -> Problem {
        let scope = &self.spec.scope;
        for module in self.program.modules.iter().filter(|m| m.is_executable) {
            if let Some(local) = module
                .object
                .index()
                .and_then(|i| i.local(name))
                .filter(|_| scope.is_none())
            {
                let place = if local.register {
                    "in a register or on the stack"
                } else {
                    "on the stack"
                };
                return self.problem(
                    format!(
                        "`{name}` is a local variable of {}(): it lives {place}, and only while the function runs",
                        local.function
                    ),
                    "watch it from a debugger: `ulpf gdb`, break in the function, `watch`",
                );
            }
        }
        let is_function = |m: &Rc<Module>| {
            m.object
                .symbols()
                .find(name)
                .iter()
                .any(|s| s.sort == SymbolSort::Function)
        };
        if self.program.modules.iter().any(is_function) {
            return self.problem(
                format!("`{name}` is a function"),
                "name a variable, or set a breakpoint in a debugger",
            );
        }
        let mut names: Vec<&str> = Vec::new();
        for module in &self.program.modules {
            if module.is_executable {
                names.extend(
                    module
                        .object
                        .index()
                        .into_iter()
                        .flat_map(|i| i.variables())
                        .map(|v| v.path.rsplit("::").next().unwrap_or(&v.path)),
                );
            }
            let is_data =
                |s: &&ElfSymbol| s.sort == SymbolSort::Data && (module.is_executable || s.global);
            names.extend(
                module
                    .object
                    .symbols()
                    .iter()
                    .filter(is_data)
                    .map(|s| s.name),
            );
        }
        let last = name.rsplit("::").next().unwrap_or(name);
        let mut hint = match closest(last, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "check the spelling, or name the library that it is in (LIB`NAME)".to_string(),
        };
        let executable = self.program.executable().map(|m| &m.object);
        if let Some(object) = executable.filter(|o| o.debug().info.is_none()) {
            let stripped = if object
                .symbols()
                .iter()
                .all(|s| s.global || s.name.ends_with("@plt"))
            {
                "no debug information and no symbol table"
            } else {
                "no debug information"
            };
            hint = format!(
                "{hint} ({} has {stripped}: build it with -g, or install its -dbgsym package)",
                object.name()
            );
        } else if let Some(split) = executable
            .and_then(|o| o.index())
            .map(|i| i.split_units)
            .filter(|n| *n > 0)
        {
            hint = format!(
                "{hint} ({split} of its units keep their variables in .dwo files, which are not read: build without -gsplit-dwarf)"
            );
        }
        let file = match scope {
            Some(Scope::File(file)) => format!(" in {file}"),
            Some(Scope::Object(object)) => format!(" in {object}"),
            None => String::new(),
        };
        Problem {
            not_yet: scope.is_none(),
            ..self.problem(format!("there is no variable `{name}`{file}"), hint)
        }
    }

    fn no_type(&self, value: &Lvalue) -> Problem {
        self.problem(
            format!(
                "the type of `{}` is not known without debug information",
                value.name
            ),
            format!(
                "{BUILD_WITH_G}, or name bytes: {}+OFFSET:LENGTH",
                value.name
            ),
        )
    }

    fn not_a_pointer(&self, value: &Lvalue) -> Problem {
        let ty = value
            .ty
            .as_ref()
            .map_or("of unknown type".to_string(), |t| format!("a {}", t.name));
        self.problem(
            format!("`{}` is {ty}, no pointer", value.name),
            "leave the `*` or `->` out",
        )
    }

    fn no_size(&self, value: &Lvalue) -> Problem {
        let why = match value.ty.as_deref() {
            Some(Type {
                shape: Shape::Function,
                ..
            }) => format!("`{}` is a function", value.name),
            Some(Type {
                shape: Shape::Incomplete,
                name,
                ..
            }) => format!("how large a {name} is is not known"),
            Some(Type {
                shape: Shape::Array { count: None, .. },
                ..
            }) => {
                format!("how many elements `{}` has is not known", value.name)
            }
            Some(_) if !value.untyped => format!("`{}` has a size of zero", value.name),
            _ => format!("how large `{}` is is not known", value.name),
        };
        self.problem(
            why,
            format!("say how many bytes: {}:LENGTH", self.spec.text),
        )
    }
}

/// What a condition's names mean.
impl Names for Resolver<'_> {
    fn variable(&self, object: Option<&str>, name: &str) -> Result<Found, String> {
        let spec = Spec {
            scope: object.map(|o| Scope::Object(o.into())),
            ..self.spec.clone()
        };
        let resolver = Resolver {
            spec: &spec,
            ..*self
        };
        let found = resolver
            .variable(name)
            .map_err(|p| match p.what_to_do.as_str() {
                hint if hint.starts_with("did you mean") => format!("{}; {hint}", p.why),
                _ => p.why,
            })?;
        let pointer = self.memory.thread_pointer().filter(|_| found.thread_local);
        Ok(Found {
            addr: found.addr.wrapping_sub(pointer.unwrap_or(0)),
            thread_local: pointer.is_some(),
            ty: match found.ty {
                Some(ty) => Kind::Described(ty, found.module),
                None => Kind::Bytes(found.size),
            },
        })
    }

    fn structure(&self, name: &str) -> Option<(Rc<Type>, Option<Rc<Module>>)> {
        self.program.modules.iter().find_map(|module| {
            let die = module.object.index()?.complete_type(name)?;
            Some((module.types.get(die)?, Some(module.clone())))
        })
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

const BUILD_WITH_G: &str = "build the program with -g, or install its debug symbols";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    Executable,
    /// Exported by libraries.
    Globals,
    /// Everything else that libraries' debug information knows.
    Statics,
}

/// `extern int table[];` takes its bound from the symbol's size.
fn sized(ty: Rc<Type>, size: u64) -> Rc<Type> {
    match &ty.shape {
        Shape::Array {
            element,
            count: None | Some(0),
        } if element.size > 0 && size >= element.size => {
            let count = size / element.size;
            let shape = Shape::Array {
                element: element.clone(),
                count: Some(count),
            };
            Rc::new(Type {
                name: format!("{} [{count}]", element.name),
                size: count * element.size,
                shape,
            })
        }
        _ => ty,
    }
}

fn data_symbols(module: &Module, name: &str) -> Vec<ElfSymbol> {
    let mut found = module.object.symbols().find(name);
    let in_data = |s: &ElfSymbol| {
        let segments = &module.object.segments;
        s.sort == SymbolSort::ThreadLocal
            || segments.iter().any(|g| !g.executable && g.contains(s.addr))
    };
    found.retain(|s| s.sort != SymbolSort::Function && in_data(s));
    found.sort_by_key(|s| (!s.global, s.sort == SymbolSort::Untyped));
    found
}

/// Joins names for a message, at most `most` of them.
fn list(names: impl IntoIterator<Item = impl AsRef<str>>, most: usize) -> String {
    let all: Vec<_> = names.into_iter().collect();
    let mut text = all
        .iter()
        .take(most)
        .map(|n| n.as_ref())
        .collect::<Vec<_>>()
        .join(", ");
    if all.len() > most {
        text += &format!(" and {} more", all.len() - most);
    }
    text
}

/// The name that differs least, if any is near enough to be a slip.
pub(super) fn closest<'n>(name: &str, among: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let most = (name.len() / 3).clamp(1, 3);
    let near = |n: &&str| n.len().abs_diff(name.len()) <= most;
    let best = among.filter(near).map(|n| (distance(name, n), n)).min()?;
    (best.0 <= most).then_some(best.1)
}

/// Levenshtein distance; a change of case costs nothing.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<u8> = b.bytes().map(|c| c.to_ascii_lowercase()).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.bytes().map(|c| c.to_ascii_lowercase()).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, cb) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
