//! Selects the watched programs among those that are started: `--only`, `--skip`.

use anyhow::{Context, Result};
use glob::{MatchOptions, Pattern};
use std::path::Path;
use ulpf_host::process;

/// Patterns of executables, as in strace and Valgrind.
#[derive(Clone, Debug, Default)]
pub struct Chosen {
    only: Vec<Pattern>,
    skip: Vec<Pattern>,
}

impl Chosen {
    pub fn new(only: &[String], skip: &[String]) -> Result<Chosen> {
        let pattern = |text: &String| {
            Pattern::new(text).with_context(|| format!("`{text}` is no pattern of file names"))
        };
        Ok(Chosen {
            only: only.iter().map(pattern).collect::<Result<_>>()?,
            skip: skip.iter().map(pattern).collect::<Result<_>>()?,
        })
    }

    /// Whether the user has chosen at all; if not, only one program matters.
    pub fn any(&self) -> bool {
        !self.only.is_empty() || !self.skip.is_empty()
    }

    /// Whether the present program of process `pid` is watched.
    pub fn wants(&self, pid: i32) -> bool {
        !self.any() || process::executable(pid).is_some_and(|path| self.wants_program(&path))
    }

    fn wants_program(&self, path: &Path) -> bool {
        let meant = |p: &Pattern| means(p, path);
        (self.only.is_empty() || self.only.iter().any(meant)) && !self.skip.iter().any(meant)
    }
}

/// Whether the pattern matches: with a slash, the whole path, else the name of the file.
fn means(pattern: &Pattern, path: &Path) -> bool {
    let options = MatchOptions::new();
    match pattern.as_str().contains('/') {
        true => pattern.matches_path_with(path, options),
        false => path
            .file_name()
            .is_some_and(|name| pattern.matches_path_with(name.as_ref(), options)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let wanted = |only: &[&str], skip: &[&str], path: &str| {
            let texts = |all: &[&str]| all.iter().map(|t| t.to_string()).collect::<Vec<_>>();
            let chosen = Chosen::new(&texts(only), &texts(skip)).unwrap();
            chosen.wants_program(Path::new(path))
        };
        assert!(wanted(&[], &[], "/bin/env"));
        assert!(wanted(&["prog"], &[], "/home/a/prog"));
        assert!(!wanted(&["prog"], &[], "/home/prog/sh"));
        assert!(wanted(&["test-*", "prog"], &[], "/src/test-heap"));
        assert!(wanted(&["/src/*"], &[], "/src/a"));
        assert!(!wanted(&["/src/*"], &[], "/usr/bin/a"));
        assert!(!wanted(&[], &["*sh", "make"], "/bin/bash"));
        assert!(wanted(&[], &["*sh", "make"], "/src/a"));
        assert!(!wanted(&["t*"], &["t1"], "/src/t1"));
        assert!(Chosen::new(&["[".into()], &[]).is_err());
    }
}
