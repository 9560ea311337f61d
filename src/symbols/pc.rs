//! Where in the source an instruction lies.

use super::demangle::demangle;
use super::maps::{Module, Program};
use super::meter::Work;
use crate::foreign::text::Text;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

/// An instruction address in a programmer's terms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    pub pc: u64,
    /// File name of the executable or library.
    pub object: Option<String>,
    /// The function's address as linked plus this is the instruction.
    pub function: Option<String>,
    pub offset: u64,
    /// Function that was inlined here, innermost.
    pub inlined: Option<String>,
    /// As the debug information has it, usually absolute.
    pub file: Option<String>,
    pub line: Option<u32>,
}

/// Addresses that were looked up before: a program hits from few places, often.
#[derive(Default)]
pub(super) struct Cache(RefCell<HashMap<u64, Rc<Location>>>);

impl Cache {
    pub fn clear(&mut self) {
        self.0.get_mut().clear();
    }
}

impl Program {
    pub fn locate(&self, pc: u64) -> Rc<Location> {
        if let Some(known) = self.places.0.borrow().get(&pc) {
            return known.clone();
        }
        let location = Rc::new(match self.module_at(pc) {
            Some(module) => locate_in(module, pc),
            None => Location {
                pc,
                ..Location::default()
            },
        });
        self.places.0.borrow_mut().insert(pc, location.clone());
        location
    }

    /// A return address: the place is that of the call before it.
    pub fn locate_caller(&self, return_address: u64) -> Location {
        let call = self.locate(return_address.wrapping_sub(1));
        let offset = if call.function.is_some() {
            call.offset + 1
        } else {
            0
        };
        Location {
            pc: return_address,
            offset,
            ..Location::clone(&call)
        }
    }

    /// Run-time address of a function, for breakpoints by name.
    pub fn function(&self, name: &str) -> Option<u64> {
        use super::object::SymbolSort::Function;
        self.modules.iter().find_map(|module| {
            let symbols = module.object.symbols();
            let _work = Work::through(symbols.iter().count() as u64);
            let by_name = symbols.find(name).into_iter().find(|s| s.sort == Function);
            let symbol = by_name.or_else(|| {
                // C++ and Rust: without arguments, or the end of the path.
                let fits = |full: &str| {
                    full.split('(')
                        .next()
                        .is_some_and(|path| path == name || path.ends_with(&format!("::{name}")))
                };
                symbols
                    .iter()
                    .find(|s| {
                        s.sort == Function && s.name.starts_with("_") && fits(&demangle(s.name))
                    })
                    .copied()
            })?;
            Some(symbol.addr.wrapping_add(module.bias))
        })
    }
}

fn locate_in(module: &Module, pc: u64) -> Location {
    let linked = pc.wrapping_sub(module.bias);
    let mut location = Location {
        pc,
        object: Some(module.object.name().to_string()),
        ..Location::default()
    };
    if let Some(symbol) = module.object.symbols().function_at(linked) {
        location.function = Some(demangle(symbol.name));
        location.offset = linked - symbol.addr;
    }
    let info = module.object.debug().info.as_ref();
    let Some((info, lines)) = info.and_then(|info| Some((info, info.lines.as_ref()?))) else {
        return location;
    };
    let _work = Work::look_up(info.size);
    let Ok(mut frames) = lines.find_frames(linked).skip_all_loads() else {
        return location;
    };
    let (mut innermost, mut outermost) = (None, None);
    while let Ok(Some(frame)) = frames.next() {
        let name = frame
            .function
            .as_ref()
            .and_then(|f| f.raw_name().ok().map(|n| demangle(&n)));
        if innermost.is_none() {
            if let Some(place) = frame.location {
                location.file = place.file.map(str::to_string);
                location.line = place.line.filter(|l| *l > 0);
            }
            innermost = Some(name.clone());
        }
        outermost = name;
    }
    location.inlined = innermost
        .flatten()
        .filter(|name| Some(name) != outermost.as_ref());
    if location.function.is_none() {
        location.function = outermost;
        location.offset = 0;
    }
    location
}

impl Location {
    /// The file's name without folders.
    pub fn short_file(&self) -> Option<&str> {
        self.file
            .as_deref()
            .map(|f| f.rsplit('/').next().unwrap_or(f))
    }
}

/// `fill+0x1f at loop.c:23`, `sqlite3_step+0x5e0 in libsqlite3.so.0.8.6`, `0x7f0012340010`.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(inlined) = &self.inlined {
            write!(f, "{} inlined in ", Text(&short(inlined)))?;
        }
        match &self.function {
            Some(function) => write!(f, "{}+{:#x}", Text(&short(function)), self.offset)?,
            None => write!(f, "{:#x}", self.pc)?,
        }
        match (self.short_file(), self.line, &self.object) {
            (Some(file), Some(line), _) => write!(f, " at {}:{line}", Text(file)),
            (_, _, Some(object)) => write!(f, " in {}", Text(object)),
            _ => Ok(()),
        }
    }
}

/// A function's name fit for a line: without arguments and return type, long template arguments
/// left out.
fn short(function: &str) -> String {
    // Where each character stands: inside <>, (), {} or none of them.
    let (mut depth, mut from, mut to) = (0i32, 0, function.len());
    let mut before = ' ';
    for (i, c) in function.char_indices() {
        let operator = function[from..i]
            .trim_end_matches(['<', '>', '-', '=', ' '])
            .ends_with("operator");
        match c {
            '<' | '>' if operator => {}
            '(' if depth == 0
                && i > from
                && !function[from..i].ends_with("operator")
                && !function[i..].starts_with("(anonymous")
                && before != ':' =>
            {
                to = i;
                break;
            }
            '<' | '(' | '{' | '[' => depth += 1,
            '>' if before == '-' => {}
            '>' | ')' | '}' | ']' => depth -= 1,
            ' ' if depth == 0 && !operator => from = i + 1,
            _ => {}
        }
        before = c;
    }
    fold_templates(&function[from..to])
}

/// `vector<basic_string<char, …>>::f` becomes `vector<…>::f`; `vector<int>::f` stays.
fn fold_templates(name: &str) -> String {
    const KEEP: usize = 16;
    let mut out = String::new();
    let mut rest = name;
    while let Some(open) = rest.find('<') {
        let (head, tail) = rest.split_at(open);
        out.push_str(head);
        let mut depth = 0;
        let end = tail.char_indices().find_map(|(i, c)| {
            depth += match c {
                '<' => 1,
                '>' => -1,
                _ => 0,
            };
            (depth == 0).then_some(i + 1)
        });
        // Operators are no brackets; Rust's `<T as Trait>::f` begins with what matters.
        match end {
            Some(end) if end > KEEP && !head.is_empty() && !out.ends_with("operator") => {
                out.push_str("<…>");
                rest = &tail[end..];
            }
            _ => {
                out.push('<');
                rest = &tail[1..];
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_fit() {
        for (full, fit) in [
            ("main", "main"),
            ("ns::fill(int, char*) const", "ns::fill"),
            ("(anonymous namespace)::g(int)", "(anonymous namespace)::g"),
            (
                "std::vector<int>::push_back(int&&)",
                "std::vector<int>::push_back",
            ),
            (
                "std::map<std::string, std::vector<int> >::at(std::string const&)",
                "std::map<…>::at",
            ),
            (
                "void swap<std::pair<int, std::string> >(std::pair<int, std::string>&)",
                "swap<…>",
            ),
            ("operator<<(std::ostream&, T const&)", "operator<<"),
            ("Iter<int>::operator->() const", "Iter<int>::operator->"),
            ("operator new(unsigned long)", "operator new"),
            ("Flag::operator bool() const", "Flag::operator bool"),
            ("f(int)::{lambda(char)#1}::operator()(char) const", "f"),
            (
                "<alloc::vec::Vec<T> as core::ops::drop::Drop>::drop",
                "<alloc::vec::Vec<T> as core::ops::drop::Drop>::drop",
            ),
            (
                "core::ptr::drop_in_place<alloc::boxed::Box<dyn core::any::Any>>",
                "core::ptr::drop_in_place<…>",
            ),
            ("app::main::{{closure}}", "app::main::{{closure}}"),
        ] {
            assert_eq!(short(full), fit, "{full}");
        }
    }

    #[test]
    fn one_line() {
        let mut l = Location {
            pc: 0x10,
            ..Default::default()
        };
        assert_eq!(l.to_string(), "0x10");
        l.object = Some("libx.so".into());
        assert_eq!(l.to_string(), "0x10 in libx.so");
        l.function = Some("ns::fill(int, char*)".into());
        l.offset = 31;
        assert_eq!(l.to_string(), "ns::fill+0x1f in libx.so");
        (l.file, l.line) = (Some("/src/a.c".into()), Some(3));
        assert_eq!(l.to_string(), "ns::fill+0x1f at a.c:3");
        l.inlined = Some("(anonymous namespace)::g(int)".into());
        assert_eq!(
            l.to_string(),
            "(anonymous namespace)::g inlined in ns::fill+0x1f at a.c:3"
        );
    }
}
