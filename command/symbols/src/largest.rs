//! The largest variables of an object, listed when the user gives no `-w`.

use crate::index::{Index, Variable};
use crate::maps::Module;
use std::cmp::Reverse;
use std::path::Path;

/// A variable that its program can change.
#[derive(Debug, PartialEq, Eq)]
pub struct Global {
    /// The name to use in a watch.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// The type in source form; available only with debug information.
    pub ty: Option<String>,
}

impl Module {
    /// The module's largest variables, at most `most` of them, and the number of all. Thread-local variables are
    /// excluded. So are variables outside the symbol table, because only the symbol table has all sizes at hand.
    pub fn largest(&self, most: usize) -> (Vec<Global>, usize) {
        let object = &self.object;
        let index = object.index();
        let variable = |addr| index.and_then(|index| Some((index, index.at(addr)?)));
        // Variables of the compiler and of libraries are undescribed, have a reserved name, or were copied.
        let copied = object.copied();
        let is_own = |addr, name: &str| match index {
            Some(index) => index.at(addr).is_some(),
            None => !is_reserved(name) && !copied.contains(&addr),
        };
        let mut all: Vec<_> = object
            .symbols()
            .data()
            .filter(|s| s.len > 0 && object.may_change(s.addr) && is_own(s.addr, s.name))
            .collect();
        // The first name of an address is the best one.
        all.dedup_by_key(|s| s.addr);
        all.sort_by_key(|s| Reverse(s.len));
        let largest = all.iter().take(most).map(|symbol| {
            let described = variable(symbol.addr);
            Global {
                name: match described {
                    Some((index, variable)) => self.unique_path(index, variable),
                    None => crate::demangle(symbol.name),
                },
                size: symbol.len,
                ty: described
                    .and_then(|(_, variable)| self.types.of_variable(variable.die))
                    .map(|ty| ty.name.clone()),
            }
        });
        (largest.collect(), all.len())
    }

    /// The variable's path. Its file is added if other variables have the same path.
    fn unique_path(&self, index: &Index, variable: &Variable) -> String {
        let path = index.path(variable);
        if index.find(&path).len() < 2 {
            return path;
        }
        let files = index.source_files(variable);
        let file = files.first().and_then(|f| Path::new(f).file_name());
        match file.and_then(|f| f.to_str()) {
            Some(file) => format!("{file}:{path}"),
            None => path,
        }
    }
}

/// Whether a name is reserved for the implementation (C17 7.1.3) or has a library version. Mangled names of C++ and
/// Rust are not reserved.
fn is_reserved(name: &str) -> bool {
    let mangled = name.starts_with("_Z") || name.starts_with("_R");
    let rest = name.strip_prefix('_').unwrap_or("");
    name.contains('@') || !mangled && rest.starts_with(|c: char| c == '_' || c.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::is_reserved;

    #[test]
    fn names_of_the_implementation() {
        let reserved = [
            "__dso_handle",
            "_IO_stdin_used",
            "_DYNAMIC",
            "stdout@GLIBC_2.2.5",
        ];
        assert!(reserved.into_iter().all(is_reserved));
        let own = ["counter", "_private", "_ZL5total", "_RNvC1a1b", "tab.0"];
        assert!(!own.into_iter().any(is_reserved));
    }
}
