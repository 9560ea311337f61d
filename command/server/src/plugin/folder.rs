//! Writes files that other programs will run to a folder in which no other user can write.
#![forbid(unsafe_code)]

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use ulpf_host::sys;

/// Writes `files` (path below `dir`, text), and creates `dir` and the folders in it if they do not exist.
///
/// A folder that another user can write to is refused with `why` (such as "GDB runs what lies there"). No file is
/// written through a link.
pub fn write<P: AsRef<Path>, T: AsRef<[u8]>>(
    dir: &Path,
    files: &[(P, T)],
    why: &str,
) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    // The user may have named a link; the folders below it are ours.
    check(dir, &fs::metadata(dir)?, why)?;
    for (name, text) in files {
        let path = dir.join(name);
        let folder = path.parent().unwrap_or(dir);
        for above in folders(dir, folder) {
            match DirBuilder::new().mode(0o755).create(&above) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => check(&above, &fs::symlink_metadata(&above)?, why)?,
            }
        }
        let mut file = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(folder)?;
        file.write_all(text.as_ref())?;
        // Replaces an existing file or link instead of writing through it.
        file.persist(&path)?;
    }
    Ok(())
}

/// The folders from below `dir` to `folder`.
fn folders(dir: &Path, folder: &Path) -> Vec<PathBuf> {
    let below = folder.ancestors().take_while(|above| *above != dir);
    let mut all: Vec<_> = below.map(Path::to_owned).collect();
    all.reverse();
    all
}

fn check(folder: &Path, meta: &Metadata, why: &str) -> io::Result<()> {
    let wrong = if !meta.is_dir() {
        "is not a folder"
    } else if meta.uid() != 0 && meta.uid() != sys::user() {
        "belongs to another user"
    } else if meta.mode() & 0o002 != 0 {
        "can be written to by everybody"
    } else {
        return Ok(());
    };
    let why = format!("{} {wrong}, and {why}", folder.display());
    Err(io::Error::other(why))
}
