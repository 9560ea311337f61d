//! Where an object's files are, and with whose rights they are opened.

use std::path::{Component, Path, PathBuf};
use ulpf_host::foreign::files::{self, Opened};

/// Where separate debug information is installed.
pub const DEBUG_ROOT: &str = "/usr/lib/debug";

/// The longest build ID; they have twenty bytes as a rule.
pub const MOST_BUILD_ID: usize = 64;

/// Who names files: an object names where its debug information is.
#[derive(Clone, Debug)]
pub enum Source {
    /// The user of `ulpf`.
    User,
    /// A program: it may be hostile.
    Process(files::Process),
}

impl Source {
    /// A file by the name that the object's own path goes by.
    pub fn open(&self, path: &Path) -> std::io::Result<Opened> {
        match self {
            Source::User => files::ours(path),
            Source::Process(process) => process.named(path),
        }
    }

    /// A file that is installed here; its build ID proves that it belongs to the object.
    pub fn open_installed(&self, path: &Path) -> std::io::Result<Opened> {
        match self {
            Source::User => files::ours(path),
            Source::Process(process) => match process.named(path) {
                Ok(file) => Ok(file),
                // The program may live in another root.
                Err(_) => process.installed(path),
            },
        }
    }

    /// Where the file really is: debug information lies beside that. The kernel tells of mapped files so.
    pub fn real(&self, path: &Path) -> PathBuf {
        match self {
            Source::User => std::fs::canonicalize(path).unwrap_or_else(|_| path.into()),
            Source::Process(process) => process.below_its_root(path),
        }
    }
}

/// The file of debug information that belongs to a build ID.
pub fn build_id_path(id: &[u8]) -> Option<PathBuf> {
    use std::fmt::Write;
    let (first, rest) = id.split_first().filter(|_| id.len() <= MOST_BUILD_ID)?;
    let mut path = format!("{DEBUG_ROOT}/.build-id/{first:02x}/");
    for byte in rest {
        let _ = write!(path, "{byte:02x}");
    }
    Some(PathBuf::from(path + ".debug"))
}

/// A path without links such as `..`, if it leads to where debug information is installed.
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
