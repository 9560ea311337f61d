//! What there is to watch in an object, for who has named nothing.

use crate::index::{Index, Variable};
use crate::maps::Module;
use std::cmp::Reverse;
use std::path::Path;

/// A variable that its program can change.
#[derive(Debug, PartialEq, Eq)]
pub struct Global {
    /// As a watch would name it.
    pub name: String,
    /// In bytes.
    pub size: u64,
    /// As a programmer would write it; only debug information tells.
    pub ty: Option<String>,
}

impl Module {
    /// Its largest variables, at most `most` of them, and how many there are. Those of all threads, not of one each;
    /// and only what the symbol table knows, for it has the sizes of all at hand.
    pub fn largest(&self, most: usize) -> (Vec<Global>, usize) {
        let object = &self.object;
        let index = object.index();
        let variable = |addr| index.and_then(|index| Some((index, index.at(addr)?)));
        // What the compiler and libraries bring along is described nowhere, or has a name that is reserved, or was copied.
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
                    Some((index, variable)) => self.told_apart(index, variable),
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

    /// Its path, with its file where there are others of that path.
    fn told_apart(&self, index: &Index, variable: &Variable) -> String {
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

/// Reserved for the implementation (C17 7.1.3), or of a version of a library; C++'s and Rust's own mangled names are
/// neither.
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
