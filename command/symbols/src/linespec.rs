//! Code named by the user: a function or a source line.

use crate::debug::DebugInfo;
use crate::dwarf::Dwarf;
use crate::index::file_ends_with;
use crate::maps::{Module, Program};
use crate::meter::Work;
use crate::slice::Slice;
use std::collections::BTreeSet;
use std::ops::Range;

/// Addresses of the statements of one line in one object.
#[derive(Default)]
struct Line {
    /// Addresses as linked.
    begins: BTreeSet<u64>,
    /// The object has this source file.
    file: bool,
    /// The first later line with code.
    next: Option<u64>,
}

impl Program {
    /// Run-time addresses of the code named `FUNCTION` or `FILE:LINE`. A line has several if the compiler has copied
    /// it: in template instances, and in functions into which another one is inlined. The result is never empty.
    ///
    /// # Errors
    ///
    /// Why no code was found.
    pub fn code(&self, name: &str) -> Result<Vec<u64>, String> {
        if let Some((file, number)) = line(name) {
            return self.line(file, number);
        }
        let found = self.executable_first().find_map(|module| {
            let all = module.functions_called(name);
            let run_time = |range: &Range<u64>| range.start.wrapping_add(module.bias);
            (!all.is_empty()).then(|| all.iter().map(run_time).collect())
        });
        found
            .ok_or_else(|| format!("there is no function `{name}` in the program or its libraries"))
    }

    /// Searches the executable, then the libraries; the first that has the line counts.
    fn line(&self, file: &str, number: u64) -> Result<Vec<u64>, String> {
        let (mut known, mut next) = (false, None::<u64>);
        for module in self.executable_first() {
            let line = line_in(module, file, number);
            if !line.begins.is_empty() {
                let run_time = |addr: &u64| addr.wrapping_add(module.bias);
                return Ok(line.begins.iter().map(run_time).collect());
            }
            known |= line.file;
            next = next.into_iter().chain(line.next).min();
        }
        Err(match (known, next) {
            (false, _) => format!(
                "the debug information of the program and its libraries has no source file `{file}`"
            ),
            (true, None) => format!("there is no code at line {number} of {file}, or behind it"),
            (true, Some(next)) => {
                format!(
                    "there is no code at line {number} of {file}; the next line with code is {next}"
                )
            }
        })
    }
}

/// `FILE:LINE`. (Text after `::` is a name.)
fn line(name: &str) -> Option<(&str, u64)> {
    let (file, number) = name.rsplit_once(':')?;
    let digits = number.bytes().all(|b| b.is_ascii_digit());
    match digits && !file.is_empty() && !file.ends_with(':') {
        true => Some((file, number.parse().ok()?)),
        false => None,
    }
}

fn line_in(module: &Module, file: &str, number: u64) -> Line {
    let mut line = Line::default();
    let Some(DebugInfo { dwarf, size, .. }) = &module.object.debug().info else {
        return line;
    };
    let _work = Work::through(*size);
    let is_code = |addr| {
        let mut segments = module.object.segments.iter();
        segments.any(|segment| segment.executable && segment.contains(addr))
    };
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        if let Ok(unit) = dwarf.unit(header) {
            // A broken table ends there; the others still count.
            let _ = line.add(dwarf, &unit, file, number, is_code);
        }
    }
    line
}

impl Line {
    /// Adds the rows of one unit's line table.
    fn add(
        &mut self,
        dwarf: &Dwarf,
        unit: &gimli::Unit<Slice>,
        file: &str,
        number: u64,
        is_code: impl Fn(u64) -> bool,
    ) -> gimli::Result<()> {
        let Some(program) = unit.line_program.clone() else {
            return Ok(());
        };
        let files = files(dwarf, unit, file);
        if files.is_empty() {
            return Ok(());
        }
        self.file = true;
        // The line of the previous row in the same sequence.
        let mut before = None;
        let mut rows = program.rows();
        while let Some((_, row)) = rows.next_row()? {
            let here = row.line().map(std::num::NonZeroU64::get);
            let here = here.filter(|_| files.contains(&row.file_index()) && !row.end_sequence());
            let is_new = here != before;
            // (Code that the linker has removed begins at 0 or at an address without code.)
            if row.is_stmt() && is_new && is_code(row.address()) {
                match here {
                    Some(here) if here == number => drop(self.begins.insert(row.address())),
                    Some(here) if here > number => {
                        self.next = self.next.into_iter().chain([here]).min();
                    }
                    _ => {}
                }
            }
            if row.is_stmt() || here.is_none() {
                before = here;
            }
        }
        Ok(())
    }
}

/// The numbers of a source file in a unit's table. Names are compared from the end of the path.
fn files(dwarf: &Dwarf, unit: &gimli::Unit<Slice>, name: &str) -> Vec<u64> {
    let Some(program) = &unit.line_program else {
        return Vec::new();
    };
    let header = program.header();
    let text = |value| {
        let slice = dwarf.attr_string(unit, value).ok()?;
        std::str::from_utf8(slice.bytes()).ok()
    };
    let is_called = |number: &u64| {
        let path = header.file(*number).and_then(|file| {
            let mut path = text(file.path_name())?.to_string();
            let folder = file.directory(header).and_then(text);
            let home = unit.comp_dir.as_ref();
            let home = home.and_then(|dir| std::str::from_utf8(dir.bytes()).ok());
            for folder in [folder, home].into_iter().flatten() {
                if !path.starts_with('/') {
                    path = format!("{folder}/{path}");
                }
            }
            Some(path)
        });
        path.is_some_and(|path| file_ends_with(&path, name))
    };
    let last = header.file_names().len() as u64;
    (0..=last).filter(is_called).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_lines() {
        assert_eq!(line("a.c:12"), Some(("a.c", 12)));
        assert_eq!(line("/src/x:y.rs:3"), Some(("/src/x:y.rs", 3)));
        for name in [
            "main",
            "ns::f",
            "a::1",
            "a.c:",
            ":3",
            "a.c:1x",
            "a.c:-1",
            "a.c:99999999999999999999",
        ] {
            assert_eq!(line(name), None, "{name}");
        }
    }
}
