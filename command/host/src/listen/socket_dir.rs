//! A folder for a session's sockets and the plugin's files.
#![forbid(unsafe_code)]

use crate::sys;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A directory that only this user may enter, with an unpredictable name, removed on drop.
pub struct SocketDir(TempDir);

impl SocketDir {
    /// The error is for the user.
    pub fn new() -> Result<SocketDir, String> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let base = match runtime.filter(|dir| is_ours_alone(dir)) {
            Some(dir) => dir,
            None => shared(std::env::temp_dir())?,
        };
        let made = |base: &Path| {
            tempfile::Builder::new()
                .prefix("ulpf-")
                .permissions(Permissions::from_mode(0o700))
                .tempdir_in(base)
        };
        let made = made(&base).or_else(|why| {
            // A read-only system usually still has this.
            let memory = shared("/dev/shm".into())
                .ok()
                .filter(|_| is_read_only(&why));
            memory.and_then(|dir| made(&dir).ok()).ok_or(why)
        });
        match made {
            Ok(dir) => Ok(SocketDir(dir)),
            Err(e) => Err(format!(
                "No directory for a socket can be made in {}: {e}. Set TMPDIR to a folder of yours.",
                base.display()
            )),
        }
    }

    /// Path of a file in the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn is_read_only(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::ReadOnlyFilesystem
}

/// Whether the directory fits the XDG specification of a runtime directory. Under `sudo`, root may have kept its user's
/// variable.
fn is_ours_alone(dir: &Path) -> bool {
    let meta = fs::symlink_metadata(dir);
    dir.is_absolute()
        && meta.is_ok_and(|m| m.is_dir() && m.uid() == sys::user() && m.mode() & 0o077 == 0)
}

/// A folder in which no other user can rename our files.
fn shared(dir: PathBuf) -> Result<PathBuf, String> {
    const STICKY: u32 = 0o1000;
    let meta = fs::metadata(&dir).map_err(|e| {
        format!(
            "{}: {e}. Set TMPDIR to a folder that is there.",
            dir.display()
        )
    })?;
    let owned = meta.uid() == 0 || meta.uid() == sys::user();
    let everybodys = meta.mode() & 0o002 != 0 && meta.mode() & STICKY == 0;
    match owned && !everybodys {
        true => Ok(dir),
        false => Err(format!(
            "{}: other users could replace what is made there. Set TMPDIR to a folder of yours.",
            dir.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(mode: u32) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
        folder
    }

    #[test]
    fn runtime_directories() {
        let good = folder(0o700);
        assert!(is_ours_alone(good.path()));
        assert!(!is_ours_alone(folder(0o750).path()));
        assert!(!is_ours_alone(&good.path().join("none")));
        assert!(!is_ours_alone(Path::new("relative")));
        let link = good.path().join("link");
        std::os::unix::fs::symlink(good.path(), &link).unwrap();
        assert!(!is_ours_alone(&link));
        assert!(!is_ours_alone(Path::new("/proc/1")) || sys::user() == 0);
    }

    #[test]
    fn shared_directories() {
        for (mode, good) in [(0o700, true), (0o755, true), (0o1777, true), (0o777, false)] {
            assert_eq!(shared(folder(mode).path().into()).is_ok(), good, "{mode:o}");
        }
    }

    #[test]
    fn a_new_one_is_ours_and_goes() {
        let dir = SocketDir::new().unwrap();
        let path = dir.0.path().to_owned();
        let meta = fs::symlink_metadata(&path).unwrap();
        assert_eq!((meta.mode() & 0o777, meta.uid()), (0o700, sys::user()));
        drop(dir);
        assert!(!path.exists());
    }
}
