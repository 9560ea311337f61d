//! Explanations for expressions that cannot be resolved.

use super::find::Match;
use super::{Lvalue, Resolver};
use crate::closest::{closest, list};
use crate::demangle::demangle;
use crate::elf_symbols::SymbolSort;
use crate::index::{Index, is_plain, last_component};
use crate::maps::Module;
use crate::object::ObjectFile;
use crate::problem::Problem;
use crate::spec::Scope;
use crate::types::{Shape, Type};
use std::borrow::Cow;
use std::rc::Rc;

pub(super) const BUILD_WITH_G: &str = "build the program with -g, or install its debug symbols";

/// Describes debug information of an object that is in other files and was not found.
fn missing_units(object: &ObjectFile) -> Option<String> {
    let missing = object.index()?.missing_units;
    if missing == 0 {
        return None;
    }
    let why = object.debug().info.as_ref()?.split.trouble();
    let why = why.map_or(String::new(), |why| format!(": {why}"));
    Some(format!(
        "{missing} of its units keep their variables in .dwo files that were not found{why}; bring them back, or make PROGRAM.dwp of them"
    ))
}

/// The last name of a mangled symbol, if it belongs to a variable.
fn plain_name(symbol: &str) -> Option<String> {
    if !symbol.starts_with('_') {
        return None;
    }
    let readable = demangle(symbol);
    let name = last_component(&readable);
    is_plain(name).then(|| name.to_string())
}

impl Resolver<'_> {
    pub(super) fn ambiguous(&self, name: &str, found: &[Match]) -> Problem {
        let each = found.iter().map(|m| {
            let file = m.index.source_files(m.variable).into_iter().next();
            let file = file.map_or(String::new(), |f| {
                format!("{}:", f.rsplit('/').next().unwrap_or(&f))
            });
            let path = m.index.path(m.variable);
            if m.module.is_executable {
                format!("{file}{path}")
            } else {
                format!("{}`{path}", m.module.object.name())
            }
        });
        self.problem(
            format!("`{name}` names {} variables", found.len()),
            format!("say which: {}", list(each, 12)),
        )
    }

    pub(super) fn unknown(&self, name: &str) -> Problem {
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
                    format!(
                        "say `{}::{name}`: it is watched in each call",
                        local.function
                    ),
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
        let names = self.known_names();
        let last = name.rsplit("::").next().unwrap_or(name);
        let mut hint = match closest(last, names.iter().map(|name| &**name)) {
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
        } else if let Some(missing) = executable.and_then(|object| missing_units(object)) {
            hint = format!("{hint} ({missing})");
        }
        let troubled = self.program.modules.iter().find_map(|m| {
            let why = m.object.trouble()?;
            Some((m.object.name(), why))
        });
        if let Some((object, why)) = troubled {
            hint = format!("{hint} ({object} was not read completely: {why})");
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

    /// Known names, to suggest one for a mistyped name.
    fn known_names(&self) -> Vec<Cow<'_, str>> {
        let mut names: Vec<Cow<str>> = Vec::new();
        for module in &self.program.modules {
            let object = &module.object;
            let index = object.index().filter(|_| module.is_executable);
            // Reading all of a large file for a hint costs too much if its symbol table has the variables.
            let is_large = index.is_some_and(Index::is_selective);
            let by_symbols = is_large && object.symbols().data().any(|s| !s.global);
            if let Some(index) = index.filter(|_| !by_symbols) {
                let variables = index.variables().map(|v| v.name);
                names.extend(variables.map(|name| name.rsplit("::").next().unwrap_or(name).into()));
            }
            let data = object.symbols().data();
            for symbol in data.filter(|s| module.is_executable || s.global) {
                if by_symbols && let Some(name) = plain_name(symbol.name) {
                    names.push(name.into());
                }
                names.push(symbol.name.into());
            }
        }
        names
    }

    pub(super) fn no_type(&self, value: &Lvalue) -> Problem {
        let object = value.module.as_ref().map(|module| &module.object);
        if let Some(missing) = object.and_then(|object| missing_units(object)) {
            return self.problem(
                format!("the type of `{}` is not known: {missing}", value.name),
                format!("or name bytes: {}+OFFSET:LENGTH", value.name),
            );
        }
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

    pub(super) fn not_a_pointer(&self, value: &Lvalue) -> Problem {
        let ty = value
            .ty
            .as_ref()
            .map_or("of unknown type".to_string(), |t| format!("a {}", t.name));
        self.problem(
            format!("`{}` is {ty}, no pointer", value.name),
            "leave the `*` or `->` out",
        )
    }

    pub(super) fn no_size(&self, value: &Lvalue) -> Problem {
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
                format!("the number of elements of `{}` is not known", value.name)
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
