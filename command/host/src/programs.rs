//! Finds programs of this machine as a shell does, and starts helpers: this command again, for one task.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

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

/// Starts this command again, with `word` as its first argument, and a socket to its standard input. The child has nothing else
/// of this process, and a process group of its own, which the terminal does not signal.
///
/// # Errors
/// No socket, or no process, can be had.
pub fn start_helper(word: &str) -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ulpf").arg(word).env_clear().current_dir("/");
    command.stdin(OwnedFd::from(theirs));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.process_group(0).spawn()?;
    Ok((child, ours))
}

/// Names this process, a helper: executed by way of /proc, it would be called "exe".
pub fn name_helper(name: &str) {
    let _ = std::fs::write("/proc/self/comm", name);
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
