//! Files of an object, and the rights with which they are opened.

use std::path::{Component, Path, PathBuf};
use ulpf_host::foreign::files::{self, Opened};

/// Directory of installed debug information.
pub const DEBUG_ROOT: &str = "/usr/lib/debug";

/// Longest build ID in bytes; most have twenty.
pub const MOST_BUILD_ID: usize = 64;

/// The origin of file names, since an object contains names of debug files.
#[derive(Clone, Debug)]
pub enum Source {
    /// The user of `ulpf`.
    User,
    /// A program, which may be hostile.
    Process(files::Process),
}

impl Source {
    /// Opens a file with the rights of the object's origin.
    pub fn open(&self, path: &Path) -> std::io::Result<Opened> {
        match self {
            Source::User => files::ours(path),
            Source::Process(process) => process.named(path),
        }
    }

    /// Opens a file that is installed here; its build ID proves that it belongs to the object.
    pub fn open_installed(&self, path: &Path) -> std::io::Result<Opened> {
        match self {
            Source::User => files::ours(path),
            Source::Process(process) => match process.named(path) {
                Ok(file) => Ok(file),
                // The program may run in another root directory.
                Err(_) => process.installed(path),
            },
        }
    }

    /// The real path of the file, because debug information is beside it. The kernel reports mapped files in the same
    /// form.
    pub fn real(&self, path: &Path) -> PathBuf {
        match self {
            Source::User => std::fs::canonicalize(path).unwrap_or_else(|_| path.into()),
            Source::Process(process) => process.below_its_root(path),
        }
    }
}

/// The debug file for a build ID.
pub fn build_id_path(id: &[u8]) -> Option<PathBuf> {
    use std::fmt::Write;
    let (first, rest) = id.split_first().filter(|_| id.len() <= MOST_BUILD_ID)?;
    let mut path = format!("{DEBUG_ROOT}/.build-id/{first:02x}/");
    for byte in rest {
        let _ = write!(path, "{byte:02x}");
    }
    Some(PathBuf::from(path + ".debug"))
}

/// The path with `..` resolved as text, if it is below the directory of installed debug information.
pub fn installed_name(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain.starts_with(DEBUG_ROOT).then_some(plain)
}
