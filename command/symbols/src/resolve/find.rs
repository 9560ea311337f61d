//! Finds variables by name, in debug information and symbol tables.

use super::{AccessPath, Lvalue, Resolver};
use crate::closest::list;
use crate::condition::{Found, Kind, Names};
use crate::elf_symbols::{ElfSymbol, SymbolSort};
use crate::head::HEAD;
use crate::index::{Index, Variable};
use crate::maps::{Module, Program};
use crate::place::Place;
use crate::problem::Problem;
use crate::spec::{Scope, Spec};
use crate::types::{Shape, Type};
use std::cell::Cell;
use std::rc::Rc;
use ulpf_lib::command::Step;

/// A variable and its module.
pub(super) struct Match<'a> {
    pub(super) module: &'a Rc<Module>,
    pub(super) variable: &'a Variable,
    pub(super) index: &'a Index,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    Executable,
    /// Exported by libraries.
    Globals,
    /// Everything else in the libraries' debug information.
    Statics,
}

impl Program {
    /// Whether the executable has a variable of this name, or a library exports one. The debug information of libraries
    /// is not read, because that takes longer than a short program runs.
    pub(super) fn may_have(&self, name: &str) -> bool {
        let has = |module: &Rc<Module>| match module.is_executable {
            true => {
                let known = module.object.index().map(|index| index.find(name));
                known.is_some_and(|all| !all.is_empty()) || !data_symbols(module, name).is_empty()
            }
            false => module.object.exports(name),
        };
        self.modules.iter().any(has)
    }
}

impl Resolver<'_> {
    pub(super) fn variable(&self, name: &str) -> Result<Lvalue, Problem> {
        if let Some(head) = self.head.filter(|_| name == HEAD) {
            return self.head(head);
        }
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
                // Debug information of libraries is read only if their symbol tables do not have the name.
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
        // `pair.0`: a field of a Rust tuple, unless the compiler has a symbol of that name.
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

    /// The usable statics of this name in one module; only the best kind of match counts. The error tells why the
    /// existing ones cannot be used.
    pub(super) fn in_module<'m>(
        &self,
        module: &'m Rc<Module>,
        name: &str,
    ) -> Result<Vec<Match<'m>>, Problem> {
        let Some(index) = module.object.index() else {
            return Ok(Vec::new());
        };
        let mut all = index.find(name);
        if let Some(Scope::File(file)) = &self.spec.scope {
            all.retain(|v| index.declared_in(v, file));
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
        if good.iter().any(|v| index.path(v) == name) {
            good.retain(|v| index.path(v) == name);
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

    pub(super) fn at_variable(&self, found: &Match, name: &str) -> Result<Lvalue, Problem> {
        let ty = found.module.types.of_variable(found.variable.die);
        let thread_local = matches!(found.variable.place, Place::ThreadLocal(_));
        let mut access_path = AccessPath::default();
        let (addr, note, size) = match found.variable.place {
            Place::Address(addr) => {
                let mut size = 0;
                if !found.module.is_executable {
                    let mut symbols = data_symbols(found.module, name).into_iter();
                    if let Some(symbol) = symbols.find(|s| s.addr == addr) {
                        return self.at_symbol(found.module, symbol, name);
                    }
                }
                // The symbol table is large if there is debug information.
                if ty.as_deref().is_none_or(|ty| !has_size(ty)) {
                    let symbol = found.module.object.symbols().data_at(addr);
                    size = symbol.filter(|s| s.addr == addr).map_or(0, |s| s.len);
                }
                (addr.wrapping_add(found.module.bias), None, size)
            }
            Place::ThreadLocal(offset) => {
                let (addr, note, threads) = self.thread_local(found.module, offset, name)?;
                access_path = threads;
                (addr, Some(note), 0)
            }
            _ => {
                let symbol = data_symbols(found.module, name)[0];
                let place = self.at_symbol(found.module, symbol, name)?;
                access_path = place.access_path;
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
            walked: false,
            first: 0,
            access_path,
        })
    }

    pub(super) fn at_symbol(
        &self,
        module: &Rc<Module>,
        symbol: ElfSymbol,
        name: &str,
    ) -> Result<Lvalue, Problem> {
        let (addr, note, access_path) = match symbol.sort {
            SymbolSort::ThreadLocal => {
                let (addr, note, access_path) = self.thread_local(module, symbol.addr, name)?;
                (addr, Some(note), access_path)
            }
            _ => (
                symbol.addr.wrapping_add(module.bias),
                None,
                AccessPath::default(),
            ),
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
            walked: false,
            first: 0,
            access_path,
            untyped,
            thread_local: symbol.sort == SymbolSort::ThreadLocal,
        })
    }

    /// The copy of a library's variable in an executable that is not position independent (R_X86_64_COPY). All modules
    /// use the copy.
    pub(super) fn copied(
        &self,
        module: &Module,
        symbol: &ElfSymbol,
        name: &str,
    ) -> Option<(u64, String)> {
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

    /// A thread-local variable in every thread; for a watch that stays where it is now, the main thread's.
    pub(super) fn thread_local(
        &self,
        module: &Module,
        offset: u64,
        name: &str,
    ) -> Result<(u64, String, AccessPath), Problem> {
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
            (Some(below), _) if self.follows() => Ok((
                below as u64,
                format!(
                    "`{name}` is thread-local: each thread's copy is watched (`snapshot`: the main thread's)"
                ),
                AccessPath::default().by(Step::Threads, 0, None),
            )),
            (Some(below), Some(pointer)) if pointer != 0 => Ok((
                pointer.wrapping_add_signed(below),
                format!("`{name}` is thread-local: the main thread's copy is watched, no other"),
                AccessPath::default(),
            )),
            _ => Err(self.problem(
                format!(
                    "`{name}` is thread-local, and the main thread has no thread-local storage yet"
                ),
                "set the watches later with --at main",
            )),
        }
    }
}

/// Resolves the names of conditions.
impl Names for Resolver<'_> {
    fn variable(&self, object: Option<&str>, name: &str) -> Result<Found, String> {
        let spec = Spec {
            scope: object.map(|o| Scope::Object(o.into())),
            ..self.spec.clone()
        };
        // For a thread-local variable the offset is needed, which the main thread's copy yields.
        let stays = Cell::new(true);
        let resolver = Resolver {
            spec: &spec,
            stays: &stays,
            ..*self
        };
        let found = resolver
            .variable(name)
            .map_err(|p| match p.what_to_do.as_str() {
                hint if hint.starts_with("did you mean") => format!("{}; {hint}", p.why),
                _ => p.refusal.why,
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

/// Whether the type determines the size of its objects.
fn has_size(ty: &Type) -> bool {
    let open = matches!(
        ty.shape,
        Shape::Array {
            count: None | Some(0),
            ..
        }
    );
    ty.size > 0 && !open
}

/// Gives `extern int table[];` a bound from the symbol's size.
fn sized(ty: Rc<Type>, size: u64) -> Rc<Type> {
    match &ty.shape {
        Shape::Array {
            element,
            count: None | Some(0),
            bounds,
        } if element.size > 0 && size >= element.size => {
            let count = size / element.size;
            let shape = Shape::Array {
                element: element.clone(),
                count: Some(count),
                bounds: *bounds,
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
