//! GDB's plugin (`gdb-plugin/`), which the command carries with it.
#![forbid(unsafe_code)]

use clap::Args;
use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use ulpf_host::sys;

/// (path, text), made by `build.rs`.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/plugin.rs"));
/// The one that GDB sources.
const FIRST: &str = "ulpf-gdb.py";

#[derive(Debug, Args)]
pub struct PluginArgs {
    /// The folder; it is made if need be
    dir: PathBuf,
}

/// Writes all files below `dir`; which of them GDB has to source. GDB runs what lies there, so nobody else may
/// be able to write there, and nothing is written through a link.
pub fn write(dir: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(dir)?;
    // The user may have named a link; what lies below is ours.
    check(dir, &fs::metadata(dir)?)?;
    for (name, text) in FILES {
        let path = dir.join(name);
        let folder = path.parent().unwrap_or(dir);
        for above in folders(dir, folder) {
            match DirBuilder::new().mode(0o755).create(&above) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => check(&above, &fs::symlink_metadata(&above)?)?,
            }
        }
        let mut file = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(folder)?;
        file.write_all(text.as_bytes())?;
        // In the place of what was there, and not through it.
        file.persist(&path)?;
    }
    std::path::absolute(dir.join(FIRST))
}

/// Those from below `dir` to `folder`.
fn folders(dir: &Path, folder: &Path) -> Vec<PathBuf> {
    let below = folder.ancestors().take_while(|above| *above != dir);
    let mut all: Vec<_> = below.map(Path::to_owned).collect();
    all.reverse();
    all
}

fn check(folder: &Path, meta: &Metadata) -> io::Result<()> {
    let wrong = if !meta.is_dir() {
        "is not a folder"
    } else if meta.uid() != 0 && meta.uid() != sys::user() {
        "belongs to another user"
    } else if meta.mode() & 0o002 != 0 {
        "can be written to by everybody"
    } else {
        return Ok(());
    };
    let why = format!("{} {wrong}, and GDB runs what lies there", folder.display());
    Err(io::Error::other(why))
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
        // A link in a file's place is replaced, one in a folder's is not followed.
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
