//! Programs of this machine, found as a shell would find them.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// One in the search path.
pub fn find(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|dir| dir.join(name))
        .find(|p| is_executable(p))
}

/// Is it a file that may be executed?
pub fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// The program's absolute path, as a shell would find it.
pub fn locate(program: &OsStr) -> Result<PathBuf, String> {
    let path = Path::new(program);
    let here = path.exists().then(|| path.to_owned());
    let found = match program.as_bytes().contains(&b'/') {
        true => here,
        false => here.or_else(|| find(program.to_str()?)),
    };
    let found =
        found.ok_or_else(|| format!("There is no program {}. Give its path.", path.display()))?;
    std::path::absolute(&found).map_err(|e| format!("{}: {e}.", found.display()))
}
