//! Functions that the stub cannot find by itself: those of static programs (by their symbol table), and allocators with
//! other names (`--allocator`).

use std::ops::Range;
use std::rc::Rc;
use ulpf_lib::command::{Does, HeapFunction};
use ulpf_session::hit::place::written;
use ulpf_symbols::{Module, Program};

/// The C library's names of allocator functions.
const ALLOCATORS: [(&str, Does); 12] = [
    ("malloc", Does::Malloc),
    ("calloc", Does::Calloc),
    ("realloc", Does::Realloc),
    ("reallocarray", Does::Reallocarray),
    ("free", Does::Free),
    ("cfree", Does::Free),
    ("memalign", Does::Memalign),
    ("aligned_alloc", Does::Memalign),
    ("posix_memalign", Does::PosixMemalign),
    ("valloc", Does::Valloc),
    ("pvalloc", Does::Pvalloc),
    ("malloc_usable_size", Does::UsableSize),
];

/// `operator delete`, then `operator new`: the latter is of use only with the former.
const CXX: [(&str, Does); 4] = [
    ("_Zdl", Does::Delete),
    ("_Zda", Does::DeleteArray),
    ("_Znw", Does::New),
    ("_Zna", Does::NewArray),
];

const COPIERS: [&str; 4] = ["memcpy", "memmove", "mempcpy", "wmemcpy"];
const READERS: [&str; 55] = [
    "strlen",
    "strnlen",
    "strchr",
    "strrchr",
    "strchrnul",
    "index",
    "rindex",
    "strcmp",
    "strncmp",
    "strcasecmp",
    "strncasecmp",
    "strcasecmp_l",
    "strncasecmp_l",
    "strcpy",
    "strncpy",
    "stpcpy",
    "stpncpy",
    "strcat",
    "strncat",
    "strlcpy",
    "strlcat",
    "strspn",
    "strcspn",
    "strpbrk",
    "strstr",
    "strcasestr",
    "strtok_r",
    "strsep",
    "memchr",
    "memrchr",
    "rawmemchr",
    "memcmp",
    "memcmpeq",
    "bcmp",
    "memmem",
    "memccpy",
    "strverscmp",
    "wcscpy",
    "wcsncpy",
    "wcpcpy",
    "wcpncpy",
    "wcscat",
    "wcsncat",
    "wcsspn",
    "wcscspn",
    "wcspbrk",
    "wcsstr",
    "wcslen",
    "wcsnlen",
    "wcschr",
    "wcsrchr",
    "wcscmp",
    "wcsncmp",
    "wmemchr",
    "wmemcmp",
];

/// Limit of the functions in one command to the stub.
pub const AT_ONCE: usize = 100;

/// A function of the program that replaces one of the C library's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    does: Does,
    pub function: String,
}

/// The functions of one `--allocator`.
pub type Names = Vec<Named>;

impl Named {
    /// `NAME=FUNCTION[,NAME=FUNCTION…]`
    pub fn list(text: &str) -> Result<Names, String> {
        text.split(',').map(Named::of).collect()
    }

    fn of(text: &str) -> Result<Named, String> {
        let known = text.split_once('=').and_then(|(name, function)| {
            let (_, does) = ALLOCATORS.into_iter().find(|(n, _)| *n == name)?;
            (!function.is_empty()).then(|| Named {
                does,
                function: function.into(),
            })
        });
        known.ok_or_else(|| {
            let names: Vec<&str> = ALLOCATORS.iter().map(|(name, _)| *name).collect();
            format!(
                "`{text}`: it takes NAME=FUNCTION, as malloc=my_malloc or free=server+0x41c910; NAME is one of {}",
                names.join(", ")
            )
        })
    }

    /// Its address, if it is loaded by now.
    fn find(&self, program: &Program) -> Option<HeapFunction> {
        let place = self.function.rsplit_once("+0x").and_then(|(file, hex)| {
            let linked = u64::from_str_radix(hex, 16).ok()?;
            let module = program.modules_named(file).next()?;
            // (Functions start at multiples of 16, so they are at least this long.)
            let unknown = || {
                let start = linked.wrapping_add(module.bias);
                linked.is_multiple_of(16).then(|| start..start + 16)
            };
            let code = |r: &Range<u64>| program.module_at(r.start).is_some();
            module.function_from(linked).or_else(unknown).filter(code)
        });
        let range = place.or_else(|| {
            let start = program.function(&self.function)?;
            let module = program.module_at(start)?;
            module.function_from(start.wrapping_sub(module.bias))
        })?;
        Some(function(self.does, range))
    }
}

fn function(does: Does, at: Range<u64>) -> HeapFunction {
    HeapFunction {
        does,
        start: at.start,
        len: at.end.saturating_sub(at.start),
    }
}

/// The functions for the stub, at their present addresses, and those of `named` that are not loaded.
pub fn find<'a>(program: &Program, named: &'a [Named]) -> (Vec<HeapFunction>, Vec<&'a Named>) {
    let (mut all, mut missing) = (Vec::new(), Vec::new());
    for one in named {
        match one.find(program) {
            Some(function) => all.push(function),
            None => missing.push(one),
        }
    }
    if let Some(own) = program.static_executable() {
        add_static(own, &mut all);
    }
    (all, missing)
}

/// Adds all functions of a static program.
fn add_static(own: &Rc<Module>, all: &mut Vec<HeapFunction>) {
    let symbols: Vec<_> = own.functions().collect();
    // (A function that the user has named takes precedence.)
    let unnamed = |does: Does, all: &[HeapFunction]| all.iter().all(|f| f.does != does);
    let by_name = ALLOCATORS
        .into_iter()
        .filter(|(_, does)| unnamed(*does, all));
    let by_name: Vec<_> = by_name.collect();
    for (name, range) in &symbols {
        if let Some((_, does)) = by_name.iter().find(|(n, _)| n == name) {
            all.push(function(*does, range.clone()));
        }
    }
    if !all.iter().any(|f| f.does.is_allocators()) {
        return;
    }
    let errno = |name: &str| matches!(name, "__errno_location" | "___errno_location");
    if let Some((_, range)) = symbols.iter().find(|(name, _)| errno(name)) {
        all.push(function(Does::ErrnoLocation, range.clone()));
    }
    for (prefix, does) in CXX {
        let some = symbols.iter().filter(|(name, _)| name.starts_with(prefix));
        all.extend(some.map(|(_, range)| function(does, range.clone())));
    }
    let of = |is: fn(&str) -> bool| symbols.iter().filter(move |s| is(s.0)).map(|s| &s.1);
    let readers = joined(of(reads));
    all.extend(joined(of(copies)).map(|r| function(Does::Copies, r)));
    let mut readers = readers.peekable();
    if readers.peek().is_none() {
        // (The program is stripped.)
        let code = own.code.iter().map(|(from, to)| *from..*to);
        all.extend(code.map(|r| function(Does::MayReadStrings, r)));
    }
    all.extend(readers.map(|r| function(Does::ReadsStrings, r)));
    if let (false, Some((table, at))) = (own.object.has_unwind_header, own.object.unwind_table()) {
        let at = at.wrapping_add(own.bias);
        let table = at..at.saturating_add(table.len() as u64);
        all.push(function(Does::UnwindTable, table));
    }
}

/// Joins ranges that touch.
fn joined<'a>(ranges: impl Iterator<Item = &'a Range<u64>>) -> impl Iterator<Item = Range<u64>> {
    let mut all: Vec<Range<u64>> = ranges.cloned().collect();
    all.sort_by_key(|r| (r.start, r.end));
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in all {
        match joined.last_mut() {
            // (Up to the next multiple of 64: nothing else is in between.)
            Some(last) if range.start <= last.end.next_multiple_of(64) => {
                last.end = last.end.max(range.end);
            }
            _ => joined.push(range),
        }
    }
    joined.into_iter()
}

/// Whether the symbol is one of the `known` functions of glibc, in any of its variants.
fn is_one(symbol: &str, known: &[&str]) -> bool {
    let name = written(symbol);
    let name = name.strip_suffix("_chk").unwrap_or(name);
    known.contains(&name)
}

fn copies(symbol: &str) -> bool {
    is_one(symbol, &COPIERS)
}

fn reads(symbol: &str) -> bool {
    is_one(symbol, &READERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_by_their_variants() {
        for name in [
            "memcpy",
            "__memcpy_avx_unaligned_erms",
            "__memmove_chk_erms",
            "__memcpy_sse2_unaligned",
        ] {
            assert!(copies(name) && !reads(name), "{name}");
        }
        for name in [
            "strlen",
            "__strlen_evex",
            "__strcasecmp_l_avx2",
            "__memchr_sse2",
            "__memcmpeq_evex",
            "__strcmp_sse42",
        ] {
            assert!(reads(name) && !copies(name), "{name}");
        }
        for name in ["my_strlen", "strings", "mem", "__memset_evex_unaligned"] {
            assert!(!reads(name) && !copies(name), "{name}");
        }
    }

    #[test]
    fn ranges_are_joined() {
        let ranges = [0x100..0x130, 0x90..0xf0, 0x400..0x410, 0x410..0x420];
        let joined: Vec<_> = joined(ranges.iter()).collect();
        assert_eq!(joined, [0x90..0x130, 0x400..0x420]);
    }

    #[test]
    fn named_ones() {
        let list = Named::list("malloc=my_malloc,free=server+0x41c910").unwrap();
        assert_eq!(list[1].function, "server+0x41c910");
        assert_eq!((list[0].does, list[1].does), (Does::Malloc, Does::Free));
        for wrong in ["malloc", "malloc=", "alloc=x", "malloc=x,"] {
            assert!(Named::list(wrong).is_err(), "{wrong}");
        }
    }
}
