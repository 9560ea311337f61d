//! The user's folder for what `ulpf` keeps between its runs: `$XDG_CACHE_HOME/ulpf`, or `~/.cache/ulpf`.
//!
//! Nothing is written to or read from a folder that anybody else may write to (under sudo the home may be another user's),
//! and no link in it is followed. Files are the user's alone.

use crate::sys;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// Where it is; `None`: this user has no place for it.
pub fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v: &OsString| !v.is_empty());
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(set("HOME")?).join(".cache")))?;
    cache.is_absolute().then(|| cache.join("ulpf"))
}

/// Does the user want what this variable switches off?
pub fn is_on(switch: &str) -> bool {
    !matches!(std::env::var(switch).as_deref(), Ok("off" | "0" | "no"))
}

/// What the stubs in programs write there, each for the files that its program consists of.
const HOT: &str = ".hot";
const MOST_HOT: usize = 256;

/// Where it is kept which accesses were hot, if the user does not mind, and nobody else has a say in it. There are not more and
/// more files in it.
pub fn hot_folder() -> Option<PathBuf> {
    let path = folder().filter(|_| is_on("ULPF_HOT_CACHE"))?;
    Folder::make(&path).ok()?.clear(HOT, MOST_HOT);
    Some(path)
}

/// The folder, open: whoever exchanges it by its name exchanges nothing for us.
pub struct Folder(File);

impl Folder {
    /// # Errors
    /// There is none, or others have a say in it.
    pub fn open(path: &Path) -> io::Result<Folder> {
        let folder = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
            .open(path)?;
        let found = folder.metadata()?;
        if found.uid() != sys::user() || found.mode() & 0o022 != 0 {
            let why = format!(
                "{} belongs to another user, or others may write to it",
                path.display()
            );
            return Err(io::Error::new(ErrorKind::PermissionDenied, why));
        }
        Ok(Folder(folder))
    }

    /// Of one's own, made if there is none.
    ///
    /// # Errors
    /// It cannot be made, or others have a say in it.
    pub fn make(path: &Path) -> io::Result<Folder> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Folder::open(path)
    }

    /// Puts a file into it that `write` writes. Whoever reads one of that name at this moment sees all of it or nothing,
    /// and of several who write one, one wins.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put(&self, name: &str, write: impl FnOnce(File) -> io::Result<()>) -> io::Result<()> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = self.path();
        let new = folder.join(format!(".{name}.{}.{number}.new", std::process::id()));
        // What an earlier process of that number has left.
        let _ = fs::remove_file(&new);
        let to = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)?;
        let done = write(to).and_then(|()| fs::rename(&new, folder.join(name)));
        if done.is_err() {
            let _ = fs::remove_file(&new);
        }
        done
    }

    /// A file of the user's own, of at most so many bytes.
    ///
    /// # Errors
    /// There is none, or it is another thing, somebody else's, or too large.
    pub fn get(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(self.path().join(name))?;
        let found = file.metadata()?;
        let ours = found.uid() == sys::user() && found.mode() & 0o022 == 0;
        if !found.is_file() || found.len() > most || !ours {
            return Err(io::Error::from(ErrorKind::InvalidData));
        }
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Of the files whose names end so, leaves those that were written last, and none of writers that have been stopped.
    pub fn clear(&self, suffix: &str, most: usize) {
        let all = fs::read_dir(self.path()).into_iter().flatten().flatten();
        let written = |entry: &fs::DirEntry| entry.metadata().and_then(|m| m.modified());
        let mut kept = Vec::new();
        for entry in all {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(suffix) {
                kept.push(entry);
            } else if name.contains(suffix) && name.ends_with(".new") {
                let age = written(&entry).map(|at| SystemTime::now().duration_since(at));
                if age.is_ok_and(|age| age.is_ok_and(|age| age > Duration::from_secs(3600))) {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
        // (As a rule there are fewer, and nobody asks when.)
        if kept.len() > most {
            kept.sort_by_cached_key(|entry| written(entry).ok());
            for old in kept.iter().rev().skip(most) {
                let _ = fs::remove_file(old.path());
            }
        }
    }

    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}
