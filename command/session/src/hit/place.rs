//! The instruction of a hit, and its callers.

use serde::Serialize;
use std::rc::Rc;
use ulpf_host::foreign::text::Text;
use ulpf_host::say::json::Address;
use ulpf_lib::ring::{self, hit_flags};
use ulpf_lib::runtime_library::is_runtime;
use ulpf_symbols::{Location, Program};

/// Location of an instruction.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Place {
    /// For a line of the log: `fill+0x1f at loop.c:23`.
    #[serde(skip)]
    pub text: String,
    /// The same for a caller, without an offset: `main at loop.c:23`.
    #[serde(skip)]
    pub caller: String,
    pub pc: Address,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inlined: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
}

/// Knows the locations of instructions: a program, or a log that has recorded them.
pub trait Places {
    /// An instruction, or (`caller`) the call before a return address.
    fn location(&self, pc: u64, caller: bool) -> Location;
}

/// The location of an instruction, or (`caller`) of the call before a return address, in what is inlined there.
fn innermost(program: &Program, pc: u64, caller: bool) -> Location {
    match caller {
        true => program.locate_caller(pc),
        false => (*program.locate(pc)).clone(),
    }
}

impl Places for Program {
    fn location(&self, pc: u64, caller: bool) -> Location {
        let innermost = innermost(self, pc, caller);
        if !is_library_source(&innermost) {
            return innermost;
        }
        // Code of a header or of the standard library that is inlined: the line that uses it.
        let around = self.around(pc, caller).into_iter();
        let own = around
            .filter(|l| l.file.is_some())
            .find(|l| !is_library_source(l));
        own.unwrap_or(innermost)
    }
}

/// Whether the line is in a header of the system, or in the source of Rust's standard library.
fn is_library_source(location: &Location) -> bool {
    const FOLDERS: [&str; 4] = [
        "/rustc/",
        "/usr/include/",
        "/usr/local/include/",
        "/usr/lib/",
    ];
    let file = location.file.as_deref().unwrap_or_default();
    FOLDERS.iter().any(|folder| file.starts_with(folder)) || file.contains("/lib/rustlib/src/")
}

impl Place {
    pub fn of(location: &Location) -> Place {
        Place {
            text: location.to_string(),
            caller: location.as_caller(),
            pc: Address(location.pc),
            offset: location.function.is_some().then_some(location.offset),
            function: location.function.clone(),
            inlined: location.inlined.clone(),
            file: location.file.clone(),
            object: location.object.clone(),
            line: location.line,
        }
    }

    /// The place of an instruction, or (`caller`) of the call before a return address.
    pub fn at(places: &impl Places, pc: u64, caller: bool) -> Place {
        Place::of(&places.location(pc, caller))
    }

    /// The same in what is inlined there, also from a header of the system.
    pub fn innermost(program: &Program, pc: u64, caller: bool) -> Place {
        Place::of(&innermost(program, pc, caller))
    }

    /// Its function as a programmer sees it, with arguments and types.
    pub fn name(&self) -> Option<&str> {
        self.inlined.as_deref().or(self.function.as_deref())
    }

    /// Whether it is in a runtime library, which every program of a language has.
    pub fn is_runtime(&self) -> bool {
        let object = self.object.as_ref();
        object.is_some_and(|name| is_runtime(name.as_bytes()))
    }

    /// Name of the function in source text: `memcpy`.
    fn called_as(&self) -> Option<&str> {
        self.function.as_deref().map(written)
    }
}

/// The first function outside the C library, say, that caused an access inside it.
#[derive(Clone, Debug)]
pub struct Caller {
    pub place: Rc<Place>,
    /// `main at mpi2.c:5 (memcpy)`
    pub text: String,
}

/// The program's own caller, if the hit was in a runtime library and the callers are known so far.
pub fn own_caller(place: &Rc<Place>, callers: &[Rc<Place>]) -> Option<Caller> {
    if !place.is_runtime() {
        return None;
    }
    let at = callers.iter().position(|c| !c.is_runtime())?;
    // The program's text names the function that it called, not the inner ones.
    let called = match at.checked_sub(1) {
        Some(before) => callers.get(before)?,
        None => place,
    };
    let own = callers.get(at)?;
    Some(Caller {
        place: own.clone(),
        text: match called.called_as() {
            Some(name) => format!("{} ({})", own.caller, Text(name)),
            None => own.caller.clone(),
        },
    })
}

/// The callers that the user asked for, without those that were recorded only to find the program's own caller.
pub fn asked_for<'a>(hit: &ring::Hit, callers: &'a [Rc<Place>]) -> &'a [Rc<Place>] {
    match hit.flags & hit_flags::CALLER {
        0 => callers,
        _ => &[],
    }
}

/// `__memcpy_avx_unaligned_erms` is the `memcpy` of some processors, `__GI___libc_write` is `write`.
pub fn written(symbol: &str) -> &str {
    const VARIANTS: [&str; 12] = [
        "_avx",
        "_sse",
        "_ssse3",
        "_evex",
        "_erms",
        "_unaligned",
        "_generic",
        "_fma",
        "_slow",
        "_fast",
        "_nocancel",
        "_internal",
    ];
    let symbol = symbol.split('@').next().unwrap_or(symbol);
    let mut name = symbol.trim_start_matches('_');
    // (Names that begin with underscores are internal to the library; others are left as they are.)
    if name.len() == symbol.len() {
        return symbol;
    }
    for prefix in ["GI_", "libc_", "IO_"] {
        name = name.strip_prefix(prefix).unwrap_or(name);
        name = name.trim_start_matches('_');
    }
    let end = VARIANTS.iter().filter_map(|v| name.find(v)).min();
    match name.get(..end.unwrap_or(name.len())) {
        Some(name) if !name.is_empty() => name,
        _ => symbol,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_they_are_written() {
        for (symbol, name) in [
            ("__memcpy_avx512_unaligned_erms", "memcpy"),
            ("__memset_evex_unaligned", "memset"),
            ("__strcpy_avx2", "strcpy"),
            ("__GI___libc_write", "write"),
            ("__libc_read", "read"),
            ("__read_nocancel", "read"),
            ("_IO_puts", "puts"),
            ("memcpy@plt", "memcpy"),
            ("my_fast_copy", "my_fast_copy"),
            ("std::string::append", "std::string::append"),
            ("__", "__"),
        ] {
            assert_eq!(written(symbol), name, "{symbol}");
        }
    }

    #[test]
    fn the_first_frame_outside_is_meant() {
        let place = |function: &str, object: &str, line| {
            let file = (line > 0).then(|| "a.c".to_string());
            Rc::new(Place::of(&Location {
                function: Some(function.into()),
                object: Some(object.into()),
                file,
                line: Some(line).filter(|l| *l > 0),
                offset: 5,
                ..Location::default()
            }))
        };
        let copy = place("__memcpy_avx_unaligned_erms", "libc.so.6", 0);
        let main = place("main", "prog", 5);
        let text = |of: &Rc<Place>, callers: &[Rc<Place>]| own_caller(of, callers).map(|c| c.text);
        assert_eq!(
            text(&copy, std::slice::from_ref(&main)).as_deref(),
            Some("main at a.c:5 (memcpy)")
        );
        let dup = place("strdup", "libc.so.6", 0);
        let f = place("f(int)", "libshop.so", 0);
        assert_eq!(
            text(&copy, &[dup.clone(), f, main.clone()]).as_deref(),
            Some("f+0x5 in libshop.so (strdup)")
        );
        assert_eq!(text(&copy, &[dup]), None);
        assert_eq!(text(&main, std::slice::from_ref(&main)), None);
    }
}
