//! Finds programs of this machine as a shell does.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The simulated hardware's command.
pub const SIMULATOR: &str = "ulpf-sim";

/// Finds a program in the search path.
pub fn find(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|dir| dir.join(name))
        .find(|p| is_executable(p))
}

/// Finds `ulpf-sim`, the simulated hardware: beside this command (`make sim` puts it there) or in the search path.
pub fn simulator() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let folder = own.parent()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::iter::once(folder.to_owned())
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(SIMULATOR))
        .find(|file| is_executable(file))
}

/// Whether it is a file that may be executed.
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// The program's absolute path, found as a shell does.
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
