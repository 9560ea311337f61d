//! Where in the source an instruction lies.

use super::maps::{Module, Program};
use super::object::demangle;
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
    let Some(lines) = module
        .object
        .debug()
        .info
        .as_ref()
        .and_then(|info| info.lines.as_ref())
    else {
        return location;
    };
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
            write!(f, "{} inlined in ", short(inlined))?;
        }
        match &self.function {
            Some(function) => write!(f, "{}+{:#x}", short(function), self.offset)?,
            None => write!(f, "{:#x}", self.pc)?,
        }
        match (self.short_file(), self.line, &self.object) {
            (Some(file), Some(line), _) => write!(f, " at {file}:{line}"),
            (_, _, Some(object)) => write!(f, " in {object}"),
            _ => Ok(()),
        }
    }
}

/// A C++ function without its arguments, which would fill the line.
fn short(function: &str) -> &str {
    if function.ends_with(')') || function.ends_with(") const") {
        let mut depth = 0;
        for (i, c) in function.char_indices() {
            match c {
                '<' => depth += 1,
                '>' => depth -= 1,
                '(' if depth == 0
                    && i > 0
                    && !function[i..].starts_with("(anonymous")
                    && !function[..i].ends_with("operator") =>
                {
                    return &function[..i];
                }
                _ => {}
            }
        }
    }
    function
}

#[cfg(test)]
mod tests {
    use super::*;

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
