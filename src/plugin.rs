//! GDB's plugin (`gdb-plugin/`), which the command carries with it.
#![forbid(unsafe_code)]

use clap::Args;
use std::io;
use std::path::{Path, PathBuf};

/// (path, text), made by `build.rs`.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/plugin.rs"));
/// The one that GDB sources.
const FIRST: &str = "ulpf-gdb.py";

#[derive(Debug, Args)]
pub struct PluginArgs {
    /// The folder; it is made if need be
    dir: PathBuf,
}

/// Writes all files below `dir`; which of them GDB has to source.
pub fn write(dir: &Path) -> io::Result<PathBuf> {
    for (name, text) in FILES {
        let path = dir.join(name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, text)?;
    }
    std::path::absolute(dir.join(FIRST))
}

/// `ulpf gdb-plugin DIR`
pub fn main(args: &PluginArgs) -> i32 {
    match write(&args.dir) {
        Ok(first) => {
            println!(
                "For GDB, or as a line of ~/.gdbinit: source {}",
                first.display()
            );
            0
        }
        Err(e) => {
            eprintln!(
                "ulpf gdb-plugin: {} cannot be written: {e}. Name another folder.",
                args.dir.display()
            );
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_are_there() {
        assert!(FILES.iter().any(|(name, _)| *name == FIRST));
        assert!(FILES.iter().any(|(name, _)| *name == "ulpf/__init__.py"));
        assert!(
            FILES
                .iter()
                .any(|(name, _)| *name == "ulpf/commands/watch.py")
        );
    }
}
