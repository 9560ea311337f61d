//! A place in the source, and its form in a line of text.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::rc::Rc;
use ulpf_host::foreign::text::Text;

/// An instruction address in a programmer's terms.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Location {
    pub pc: u64,
    /// File name of the executable or library.
    pub object: Option<String>,
    /// The function. Its address as linked plus `offset` is the instruction's.
    pub function: Option<String>,
    pub offset: u64,
    /// The innermost function that was inlined here.
    pub inlined: Option<String>,
    /// The path in the debug information, usually absolute.
    pub file: Option<String>,
    pub line: Option<u32>,
}

/// The location of an instruction, and the call sites of the functions inlined around it.
#[derive(Clone)]
pub(crate) struct Chain {
    pub innermost: Rc<Location>,
    pub around: Rc<[Location]>,
}

impl Location {
    /// The function and the line of the call: `main at loop.c:23`.
    pub fn as_caller(&self) -> String {
        let named = self.inlined.as_ref().or(self.function.as_ref());
        match (named, self.short_file(), self.line) {
            (Some(function), Some(file), Some(line)) => {
                format!("{} at {}:{line}", Text(&short(function)), Text(file))
            }
            _ => self.to_string(),
        }
    }

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

/// A function's name for a line of text: without arguments and return type, and without long template arguments.
fn short(function: &str) -> String {
    // Nesting depth in <>, () and {}.
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
                && before != ':'
                // (Go: `main.(*T).Set`.)
                && before != '.' =>
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
        // The brackets of operators are not template brackets. In Rust's `<T as Trait>::f` the important part comes
        // first.
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
            ("main.(*Counter).Set", "main.(*Counter).Set"),
            ("main.(*Stack[...]).Push", "main.(*Stack[...]).Push"),
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
