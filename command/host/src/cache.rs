//! The user's folder for files that `ulpf` keeps between runs: `$XDG_CACHE_HOME/ulpf`, or `~/.cache/ulpf`.
//!
//! Under sudo the home may belong to another user, whose links could lead us anywhere. So the path to the folder may
//! only lead through folders and links of the user and of root ([`FolderWalk`]). A home of another user is replaced by the
//! user's own. `ulpf` neither writes to nor reads from a folder that another user may write to, and follows no link in
//! it. Files are readable by the user alone.

use crate::sys;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// Path of the folder, or `None` if no home is known.
pub fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v: &OsString| !v.is_empty());
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || own_home(set("HOME")?.into());
    let cache = cache.or_else(|| Some(home()?.join(".cache")))?;
    cache.is_absolute().then(|| cache.join("ulpf"))
}

/// `named`, or the user's home from passwd(5) if `named` belongs to another user.
fn own_home(named: PathBuf) -> Option<PathBuf> {
    let user = sys::user();
    if fs::metadata(&named).map_or(true, |found| found.uid() == user) {
        return Some(named);
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    Some(home_of(user, &users).unwrap_or(named))
}

/// The user's home according to the text of passwd(5).
fn home_of(user: u32, users: &str) -> Option<PathBuf> {
    let home = users.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        let is_it = fields.next()?.parse() == Ok(user);
        fields.nth(2).filter(|_| is_it)
    });
    home.map(PathBuf::from).filter(|home| home.is_absolute())
}

/// Whether the user has left this switch on.
pub fn is_on(switch: &str) -> bool {
    !matches!(std::env::var(switch).as_deref(), Ok("off" | "0" | "no"))
}

/// Suffix of the files of hot accesses that the stubs write, one file for each set of the program's files.
const HOT: &str = ".hot";
const MOST_HOT: usize = 256;

/// The folder for hot accesses, or `None` if the user has switched them off, or other users may write to it. Removes
/// the oldest files beyond the limit.
pub fn hot_folder() -> Option<PathBuf> {
    let path = folder().filter(|_| is_on("ULPF_HOT_CACHE"))?;
    Folder::make(&path).ok()?.clear(HOT, MOST_HOT);
    Some(path)
}

/// A walk from the root folder to another one, folder by folder, through nothing that another user could replace
/// meanwhile.
struct FolderWalk {
    /// The present folder (O_PATH).
    at: File,
    /// Number of links followed.
    links: usize,
    /// Permitted owners of all folders and links on the path: this user and root.
    owners: Vec<u32>,
}

impl FolderWalk {
    /// The kernel's limit of links.
    const MOST_LINKS: usize = 40;

    /// Opens the folder at an absolute path for reading. Creates missing folders if `make` is set.
    fn to(path: &Path, make: bool) -> io::Result<File> {
        let mut owners = vec![sys::user(), 0];
        // In a user namespace without root, root's folders belong to the overflow user (user_namespaces(7)).
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        if !map
            .lines()
            .any(|line| line.split_whitespace().next() == Some("0"))
        {
            owners.push(65534);
        }
        let at = FolderWalk::open(Path::new("/"))?;
        let mut walk = FolderWalk {
            at,
            links: 0,
            owners,
        };
        let (name, before) = path
            .file_name()
            .zip(path.parent())
            .ok_or(ErrorKind::InvalidInput)?;
        walk.follow(before, make)?;
        // The folder itself must not be a link.
        if fs::symlink_metadata(walk.path().join(name)).is_ok_and(|found| found.is_symlink()) {
            let why = format!("{} is a link", path.display());
            return Err(io::Error::new(ErrorKind::PermissionDenied, why));
        }
        walk.step(Path::new(name), path, make)?;
        OpenOptions::new().read(true).open(walk.path())
    }

    fn open(path: &Path) -> io::Result<File> {
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        OpenOptions::new().read(true).custom_flags(flags).open(path)
    }

    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}/.", self.at.as_raw_fd()).into()
    }

    fn follow(&mut self, path: &Path, make: bool) -> io::Result<()> {
        for part in path.components() {
            let name = match part {
                Component::RootDir => {
                    self.at = FolderWalk::open(Path::new("/"))?;
                    continue;
                }
                Component::ParentDir => Path::new(".."),
                Component::Normal(name) => Path::new(name),
                Component::CurDir | Component::Prefix(_) => continue,
            };
            self.step(name, path, make)?;
        }
        Ok(())
    }

    fn step(&mut self, name: &Path, path: &Path, make: bool) -> io::Result<()> {
        let of_others = || {
            let (path, name) = (path.display(), name.display());
            let why = format!(
                "{path} leads through `{name}`, which belongs to another user or which others may exchange"
            );
            io::Error::new(ErrorKind::PermissionDenied, why)
        };
        let here = self.at.metadata()?;
        // In a folder with the sticky bit, users can replace only their own files.
        let exchangeable = here.mode() & 0o002 != 0 && here.mode() & 0o1000 == 0;
        if exchangeable || !self.owners.contains(&here.uid()) {
            return Err(of_others());
        }
        let next = self.path().join(name);
        let found = match fs::symlink_metadata(&next) {
            Err(e) if e.kind() == ErrorKind::NotFound && make => {
                match DirBuilder::new().mode(0o700).create(&next) {
                    Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
                    _ => fs::symlink_metadata(&next)?,
                }
            }
            found => found?,
        };
        if !self.owners.contains(&found.uid()) {
            return Err(of_others());
        }
        if found.is_symlink() {
            self.links += 1;
            if self.links > FolderWalk::MOST_LINKS {
                return Err(io::Error::from_raw_os_error(libc::ELOOP));
            }
            // (No other user can have replaced the link that `next` names.)
            return self.follow(&fs::read_link(&next)?, make);
        }
        self.at = FolderWalk::open(&next)?;
        Ok(())
    }
}

/// The open folder: replacing its name does not affect it.
pub struct Folder(File);

impl Folder {
    /// # Errors
    /// The folder does not exist, or other users may change it.
    pub fn open(path: &Path) -> io::Result<Folder> {
        Folder::at(path, false)
    }

    fn at(path: &Path, make: bool) -> io::Result<Folder> {
        let folder = FolderWalk::to(path, make)?;
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

    /// The user's own folder, created if it does not exist.
    ///
    /// # Errors
    /// It cannot be created, or other users may change it.
    pub fn make(path: &Path) -> io::Result<Folder> {
        Folder::at(path, true)
    }

    /// Creates or replaces a file, which `write` fills. A concurrent reader sees the whole file or none, and of several
    /// concurrent writers one wins.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put(&self, name: &str, write: impl FnOnce(File) -> io::Result<()>) -> io::Result<()> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = self.path();
        let new = folder.join(format!(".{name}.{}.{number}.new", std::process::id()));
        // Left behind by an earlier process of that number.
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

    /// Reads a file of the user, of at most `most` bytes.
    ///
    /// # Errors
    /// The file does not exist, is not a regular file, belongs to another user, or is too large.
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

    /// Removes all but the `most` newest files with this suffix, and the files of writers that were killed.
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
        // (Usually there are fewer, and their times are not needed.)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn homes_in_passwd() {
        let users = "root:x:0:0:root:/root:/bin/bash\nbad\nalice:x:1000:1000::/home/alice:/bin/sh\nb:x:7:7:::\n";
        assert_eq!(home_of(0, users), Some("/root".into()));
        assert_eq!(home_of(1000, users), Some("/home/alice".into()));
        assert_eq!(home_of(7, users), None);
        assert_eq!(home_of(8, users), None);
    }

    #[test]
    fn the_way_leads_through_nothing_of_others() {
        let top = std::env::temp_dir().join(format!("ulpf-cache-{}", std::process::id()));
        let _ = fs::remove_dir_all(&top);
        fs::create_dir(&top).unwrap();
        let made = top.join("a/b/ulpf");
        assert!(Folder::open(&made).is_err());
        Folder::make(&made).unwrap().put("x", |_| Ok(())).unwrap();
        assert_eq!(fs::metadata(&made).unwrap().mode() & 0o777, 0o700);
        // Links of the user's own are followed.
        symlink(top.join("a"), top.join("link")).unwrap();
        assert!(
            Folder::open(&top.join("link/b/ulpf"))
                .unwrap()
                .get("x", 1)
                .is_ok()
        );
        symlink("loop", top.join("loop")).unwrap();
        assert!(Folder::make(&top.join("loop/ulpf")).is_err());
        // With write permission for a folder on the path, another user can replace the rest of it.
        fs::set_permissions(top.join("a"), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(Folder::open(&made).is_err());
        fs::set_permissions(top.join("a"), PermissionsExt::from_mode(0o1777)).unwrap();
        assert!(Folder::open(&made).is_ok());
        if sys::is_root() {
            std::os::unix::fs::lchown(top.join("link"), Some(54321), None).unwrap();
            assert!(Folder::open(&top.join("link/b/ulpf")).is_err());
            chown(top.join("a"), Some(54321), None).unwrap();
            assert!(Folder::make(&made).is_err() && Folder::make(&top.join("a/new/ulpf")).is_err());
            assert!(!top.join("a/new").exists());
        }
        fs::remove_dir_all(&top).unwrap();
    }
}
