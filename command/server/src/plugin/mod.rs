//! GDB's plugin (`gdb-plugin/`), embedded in the command.
#![forbid(unsafe_code)]

pub mod folder;

use clap::Args;
use std::io;
use std::path::{Path, PathBuf};

/// (path, text), made by `build.rs`.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/plugin.rs"));
/// The file that GDB sources.
const FIRST: &str = "ulpf-gdb.py";

#[derive(Debug, Args)]
pub struct PluginArgs {
    /// The folder; it is made if need be
    dir: PathBuf,
}

/// Writes all files below `dir`; returns the path of the file that GDB must source.
pub fn write(dir: &Path) -> io::Result<PathBuf> {
    folder::write(dir, FILES, "GDB runs what lies there")?;
    std::path::absolute(dir.join(FIRST))
}

/// `ulpf gdb-plugin DIR`
pub fn main(args: &PluginArgs) -> i32 {
    match write(&args.dir) {
        Ok(first) => {
            ulpf_host::say::outln!(
                "For GDB, or as a line of ~/.gdbinit: source {}",
                first.display()
            );
            0
        }
        Err(e) => {
            ulpf_host::say::message!(
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
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

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

    #[test]
    fn nothing_is_written_where_others_write() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("plugin");
        write(&place).unwrap();
        write(&place).unwrap();
        let mode =
            |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        mode(&place, 0o1777);
        assert!(write(&place).unwrap_err().to_string().contains("everybody"));
        mode(&place, 0o755);
        mode(&place.join("ulpf/commands"), 0o777);
        assert!(write(&place).unwrap_err().to_string().contains("everybody"));
        mode(&place.join("ulpf/commands"), 0o755);
        // A link in a file's place is replaced; a link in a folder's place is not followed.
        let other = folder.path().join("other");
        fs::write(&other, "untouched").unwrap();
        fs::remove_file(place.join(FIRST)).unwrap();
        std::os::unix::fs::symlink(&other, place.join(FIRST)).unwrap();
        write(&place).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "untouched");
        fs::rename(place.join("ulpf"), folder.path().join("moved")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("moved"), place.join("ulpf")).unwrap();
        assert!(
            write(&place)
                .unwrap_err()
                .to_string()
                .contains("not a folder")
        );
    }
}
