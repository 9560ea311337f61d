//! Files that untrusted programs name, opened only if they can do no harm.
//!
//! A watched program names files: its mappings, its debug information and sources, and the program of its next exec.
//! `ulpf` may have more rights than that program, so it never simply opens such a name:
//!
//! ```text
//!     /proc/PID/map_files/A-B   the very file that is mapped, whatever its name leads to now
//!     /proc/PID/root + path     below the program's own root (openat2, RESOLVE_IN_ROOT): no link leads out of it
//!              │ O_PATH: named, not opened; no device or FIFO notices
//!              ▼
//!            fstat              a regular file, or refused
//!              │
//!              ▼
//!     /proc/self/fd/N           opened for reading with the rights of the program: user, groups, no capability
//!              │                that overrides a mode; O_NONBLOCK, so that a lease does not hold us up
//!              ▼
//!            pread              as far as the file goes; never mmap, which a truncated file turns into SIGBUS
//! ```
//!
//! All of this happens on a thread of its own. Rights belong to threads, and a file system may never answer: the
//! waiting thread gives up after a while, or when a signal asks `ulpf` to end.

use crate::rights;
use crate::signals;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// The largest text that is read whole: a source file, a configuration.
pub const MOST_TEXT: u64 = 64 << 20;

/// Time limit for the answer of a file system.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of the threads that wait for a file system; beyond it no file is opened any more.
const MOST_STUCK: usize = 16;

static STUCK: AtomicUsize = AtomicUsize::new(0);

/// Limit of the text of a maps file. It has a line for each mapping: 65,530 of them by default, with a path each.
const MOST_MAPS: u64 = 512 << 20;

/// A regular file, open for reading.
#[derive(Debug)]
pub struct Opened {
    file: File,
    /// Length when it was opened.
    pub len: u64,
    /// Stored bytes; fewer than `len` if the file has holes.
    pub stored: u64,
    /// Identity of the file, and its state when it was opened.
    pub state: State,
}

/// Changes when a file is replaced or written to. Only the kernel can set `changed`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    pub device: u64,
    pub inode: u64,
    pub len: u64,
    /// Seconds and nanoseconds since 1970.
    pub written: (i64, i64),
    pub changed: (i64, i64),
}

impl State {
    fn of(file: &Metadata) -> State {
        State {
            device: file.dev(),
            inode: file.ino(),
            len: file.len(),
            written: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }
}

impl Opened {
    /// Fills `to` from `offset`; fails if the file has become shorter.
    pub fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(to, offset)
    }

    /// Whether the file is unchanged since it was opened.
    pub fn is_unchanged(&self) -> bool {
        let now = self.file.metadata();
        now.is_ok_and(|now| State::of(&now) == self.state)
    }

    /// The whole file, if it has at most `most` bytes.
    pub fn read(&self, most: u64) -> io::Result<Vec<u8>> {
        if self.len > most {
            return Err(refused(format!(
                "it has {} bytes, and {most} is the most that is read",
                self.len
            )));
        }
        let mut data = Vec::new();
        (&self.file).take(self.len).read_to_end(&mut data)?;
        Ok(data)
    }
}

/// The rights with which a process opens files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rights {
    user: u32,
    group: u32,
    groups: Vec<u32>,
}

impl Rights {
    fn of(status: &str) -> io::Result<Rights> {
        // Real, effective, saved, and the one for files.
        let last = |name: &str| numbers(status, name)?.get(3).copied();
        let rights = || {
            Some(Rights {
                user: last("Uid:")?,
                group: last("Gid:")?,
                groups: numbers(status, "Groups:")?,
            })
        };
        rights().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn of_process(pid: i32) -> io::Result<Rights> {
        let status = std::fs::read(format!("/proc/{pid}/status"))?;
        Rights::of(&String::from_utf8_lossy(&status))
    }

    fn ours() -> io::Result<Rights> {
        let status = std::fs::read("/proc/thread-self/status")?;
        Rights::of(&String::from_utf8_lossy(&status))
    }

    /// Gives the calling thread these rights; `false` if it may not assume them.
    fn assume(&self) -> io::Result<bool> {
        let same = *self == Rights::ours()?;
        let assumed = same || rights::assume(self.user, self.group, &self.groups).is_ok();
        if self.user != 0 {
            rights::drop_file_capabilities()?;
        }
        Ok(assumed)
    }

    /// Whether the file's mode permits reading; the first class that fits decides.
    fn may_read(&self, file: &Metadata) -> bool {
        let bit = match file {
            f if f.uid() == self.user => 0o400,
            f if f.gid() == self.group || self.groups.contains(&f.gid()) => 0o040,
            _ => 0o004,
        };
        self.user == 0 || file.mode() & bit != 0
    }
}

fn numbers(status: &str, name: &str) -> Option<Vec<u32>> {
    let line = status.lines().find_map(|l| l.strip_prefix(name))?;
    line.split_whitespace().map(|n| n.parse().ok()).collect()
}

fn refused(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why.into())
}

/// A process that names files.
///
/// Names are also looked up after its end, when its last hits are printed. The lookup then uses the rights and the root
/// that it had.
#[derive(Clone, Debug)]
pub struct Process {
    pid: i32,
    rights: Rights,
    root: Option<Arc<OwnedFd>>,
}

impl Process {
    /// A process that names files, with its present rights.
    ///
    /// # Errors
    /// /proc cannot be read, usually because the process has ended.
    pub fn of(pid: i32) -> io::Result<Process> {
        let rights = Rights::of_process(pid)?;
        let root = named(Path::new(&format!("/proc/{pid}/root"))).ok();
        let root = root.map(Arc::new);
        Ok(Process { pid, rights, root })
    }

    /// The properties that a later lookup of its names needs ([`Process::ended`]).
    pub fn keep(&self) -> Ended {
        let root = self.root.as_ref().and_then(|root| id(root).ok());
        let Rights {
            user,
            group,
            groups,
        } = self.rights.clone();
        Ended {
            user,
            group,
            groups,
            root,
        }
    }

    /// A process that ended long ago; names are looked up with the rights that it had.
    ///
    /// # Errors
    /// Its root folder was a different one, so its names mean something else here.
    pub fn ended(kept: Ended) -> io::Result<Process> {
        let root: OwnedFd = named(Path::new("/"))?;
        if kept.root != Some(id(&root)?) {
            return Err(refused("the program had another root folder"));
        }
        Ok(Process {
            // No process has this number.
            pid: 0,
            rights: Rights {
                user: kept.user,
                group: kept.group,
                groups: kept.groups,
            },
            root: Some(Arc::new(root)),
        })
    }

    /// The program that the process runs.
    pub fn executable(&self) -> io::Result<Opened> {
        let link = format!("/proc/{}/exe", self.pid);
        self.open(move || named(Path::new(&link)))
    }

    /// The file that is mapped from `start` to `end`; `path` is its name in the maps file.
    pub fn mapped(&self, start: u64, end: u64, path: &Path) -> io::Result<Opened> {
        let link = format!("/proc/{}/map_files/{start:x}-{end:x}", self.pid);
        // Following that link needs CAP_CHECKPOINT_RESTORE; and the mapping may have changed.
        match named(Path::new(&link)) {
            Ok(file) => self.open(|| Ok(file)),
            Err(_) => self.named(&self.below_its_root(path)),
        }
    }

    /// A file by the process's own name for it.
    pub fn named(&self, path: &Path) -> io::Result<Opened> {
        let root = self.root()?;
        let path = path.to_path_buf();
        self.open(move || rights::name_below(root.as_fd(), &path))
    }

    /// A file that the administrator of this machine has installed.
    pub fn installed(&self, path: &Path) -> io::Result<Opened> {
        let path = path.to_path_buf();
        self.open(move || named(&path))
    }

    /// Metadata of a file by the process's own name for it; the file is not read.
    pub fn look(&self, path: &Path) -> io::Result<Metadata> {
        let root = self.root()?;
        let path = path.to_path_buf();
        self.apart(move |_| File::from(rights::name_below(root.as_fd(), &path)?).metadata())
    }

    fn root(&self) -> io::Result<Arc<OwnedFd>> {
        match named(&self.link("root")) {
            Ok(root) => Ok(Arc::new(root)),
            Err(error) => self.root.clone().ok_or(error),
        }
    }

    fn link(&self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", self.pid).into()
    }

    /// Converts a path of the maps file: for a process with a changed root in our mount namespace, that file has our
    /// names.
    pub fn below_its_root(&self, path: &Path) -> PathBuf {
        let root = std::fs::read_link(self.link("root")).unwrap_or_default();
        match path.strip_prefix(&root) {
            Ok(below) => Path::new("/").join(below),
            Err(_) => path.to_path_buf(),
        }
    }

    fn open(
        &self,
        name: impl FnOnce() -> io::Result<OwnedFd> + Send + 'static,
    ) -> io::Result<Opened> {
        let rights = self.rights.clone();
        self.apart(move |assumed| {
            let file = File::from(name()?);
            if !assumed && !rights.may_read(&file.metadata()?) {
                return Err(refused("the program itself may not read it"));
            }
            reopen(file)
        })
    }

    /// Runs `work` with the rights of the process, and tells it whether they could be assumed.
    fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce(bool) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        // The process may have run a set-user-ID program since it named the file.
        match Rights::of_process(self.pid) {
            Ok(now) if now != self.rights => {
                return Err(refused("the program has other rights now"));
            }
            Err(e) if !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
                return Err(e);
            }
            _ => {}
        }
        let rights = self.rights.clone();
        apart(move || work(rights.assume()?))
    }
}

/// Rights and root folder of a process that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub user: u32,
    pub group: u32,
    pub groups: Vec<u32>,
    /// Device and inode of its root folder, if known.
    pub root: Option<(u64, u64)>,
}

fn id(file: &OwnedFd) -> io::Result<(u64, u64)> {
    let found = File::from(file.try_clone()?).metadata()?;
    Ok((found.dev(), found.ino()))
}

/// The mappings of a process: the text of its maps file, for [`ulpf_lib::mapping`]. The process chooses the names in
/// it.
///
/// # Errors
/// /proc cannot be read, or the memory is gone, usually because the process has ended.
pub fn maps(pid: i32) -> io::Result<Vec<u8>> {
    let mut file = File::open(format!("/proc/{pid}/maps"))?;
    let mut text = Vec::new();
    (&file).take(MOST_MAPS).read_to_end(&mut text)?;
    // If the process ends meanwhile, the text stops at any line; the text of a zombie is empty. Either would be
    // incomplete, so a process that still has memory must still have a first line.
    file.rewind()?;
    match file.read(&mut [0])? {
        0 => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        _ => Ok(text),
    }
}

/// A file that the user of `ulpf` named, or a file of the system: opened with our own rights.
pub fn ours(path: &Path) -> io::Result<Opened> {
    let path = path.to_path_buf();
    apart(move || reopen(File::from(named(&path)?)))
}

/// A text file that the user of `ulpf` named.
pub fn text_of_ours(path: &Path) -> io::Result<String> {
    String::from_utf8(ours(path)?.read(MOST_TEXT)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no UTF-8 text"))
}

/// Whether the name is a single component: a file in a known folder.
pub fn is_plain_name(name: &Path) -> bool {
    let mut parts = name.components();
    let one = matches!(parts.next(), Some(std::path::Component::Normal(part)) if part == name.as_os_str());
    one && parts.next().is_none()
}

fn named(path: &Path) -> io::Result<OwnedFd> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_PATH);
    Ok(options.open(path)?.into())
}

/// Opens a named file for reading, if it is a regular file.
fn reopen(named: File) -> io::Result<Opened> {
    let found = named.metadata()?;
    let kind = found.file_type();
    if !kind.is_file() {
        let what = match kind {
            k if k.is_fifo() => "a FIFO",
            k if k.is_socket() => "a socket",
            k if k.is_dir() => "a folder",
            _ => "a device",
        };
        return Err(refused(format!("it is {what}, no regular file")));
    }
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(format!("/proc/thread-self/fd/{}", named.as_raw_fd()))?;
    Ok(Opened {
        file,
        len: found.len(),
        stored: found.blocks().saturating_mul(512),
        state: State::of(&found),
    })
}

/// Runs `work` on a thread of its own, and waits for it with a time limit.
fn apart<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if STUCK.load(Ordering::Relaxed) >= MOST_STUCK {
        return Err(refused("too many files before it did not answer"));
    }
    let (sender, result) = sync_channel(1);
    STUCK.fetch_add(1, Ordering::Relaxed);
    let thread = std::thread::Builder::new().name("files".into());
    let started = thread.spawn(move || {
        let done = work();
        STUCK.fetch_sub(1, Ordering::Relaxed);
        let _ = sender.send(done);
    });
    if let Err(error) = started {
        STUCK.fetch_sub(1, Ordering::Relaxed);
        return Err(error);
    }
    let until = Instant::now() + OPEN_TIMEOUT;
    loop {
        match result.recv_timeout(Duration::from_millis(50)) {
            Ok(done) => return done,
            Err(RecvTimeoutError::Disconnected) => return Err(io::ErrorKind::Other.into()),
            Err(RecvTimeoutError::Timeout) if signals::asked_to_end() => {
                return Err(io::ErrorKind::Interrupted.into());
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
            Err(RecvTimeoutError::Timeout) => {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("its file system has not answered for {OPEN_TIMEOUT:?}"),
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    /// A folder that is removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path =
                std::env::temp_dir().join(format!("ulpf-files-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            Folder(path)
        }
        fn file(&self, name: &str, mode: u32) -> PathBuf {
            let path = self.0.join(name);
            std::fs::write(&path, name).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            path
        }
        fn link(&self, name: &str, to: &str) -> PathBuf {
            let path = self.0.join(name);
            symlink(to, &path).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    struct Sleeper(Child);

    impl Sleeper {
        fn of(user: Option<u32>) -> Sleeper {
            let mut command = Command::new("sleep");
            command.arg("100").stdin(Stdio::null());
            if let Some(user) = user {
                // `uid` alone would keep our group, so `gid` is set as well.
                command.gid(user).uid(user);
            }
            Sleeper(command.spawn().unwrap())
        }
        fn process(&self) -> Process {
            Process::of(self.0.id() as i32).unwrap()
        }
    }

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn why(opened: io::Result<Opened>) -> String {
        opened.map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn only_regular_files() {
        let folder = Folder::new("kinds");
        let fifo = folder.0.join("fifo");
        assert!(
            Command::new("mkfifo")
                .arg(&fifo)
                .status()
                .unwrap()
                .success()
        );
        let zero = folder.link("zero", "/dev/zero");
        let sleeper = Sleeper::of(None);
        let process = sleeper.process();
        for (path, what) in [
            (&fifo, "a FIFO"),
            (&zero, "a device"),
            (&folder.0, "a folder"),
        ] {
            assert!(why(ours(path)).contains(what));
            assert!(why(process.named(path)).contains(what));
            assert!(why(process.installed(path)).contains(what));
        }
        let file = folder.file("file", 0o644);
        assert_eq!(ours(&file).unwrap().read(4).unwrap(), b"file");
        assert_eq!(process.named(&file).unwrap().read(4).unwrap(), b"file");
        assert!(ours(&file).unwrap().read(3).is_err());
        assert_eq!(text_of_ours(&file).unwrap(), "file");
        // Files of /proc are regular but have length 0, so nothing is read.
        let read = process
            .named(Path::new("/proc/version"))
            .and_then(|f| f.read(9));
        assert!(read.unwrap_or_default().is_empty());
    }

    #[test]
    fn shorter_than_it_was() {
        let folder = Folder::new("shorter");
        let file = folder.file("long enough", 0o644);
        let opened = ours(&file).unwrap();
        std::fs::write(&file, "short").unwrap();
        assert!(opened.read_at(0, &mut [0; 11]).is_err());
        assert_eq!(opened.read(11).unwrap(), b"short");
    }

    #[test]
    fn with_the_rights_of_the_program() {
        if crate::foreign::no_other_users() {
            return;
        }
        let folder = Folder::new("rights");
        let secret = folder.file("secret", 0o600);
        let open = folder.file("open", 0o644);
        let link = folder.link("link", secret.to_str().unwrap());
        let sleeper = Sleeper::of(Some(54321));
        let process = sleeper.process();
        for path in [&secret, &link] {
            assert_eq!(
                process.named(path).unwrap_err().kind(),
                io::ErrorKind::PermissionDenied
            );
            assert_eq!(
                process.installed(path).unwrap_err().kind(),
                io::ErrorKind::PermissionDenied
            );
        }
        assert_eq!(process.named(&open).unwrap().read(9).unwrap(), b"open");
        // Other threads keep their rights, and so does this one.
        assert_eq!(ours(&secret).unwrap().read(9).unwrap(), b"secret");
        assert!(process.executable().is_ok());
        // A set-user-ID program was executed after the file was named.
        let mut other = process.clone();
        other.rights.user = 0;
        assert!(why(other.named(&open)).contains("other rights"));
    }

    #[test]
    fn modes() {
        let folder = Folder::new("modes");
        let (_, meta) = (0, |mode| folder.file("file", mode).metadata().unwrap());
        let owner = meta(0o644);
        let theirs = |user, group| Rights {
            user,
            group,
            groups: vec![77],
        };
        let stranger = theirs(54321, 54321);
        assert!(stranger.may_read(&owner));
        assert!(!stranger.may_read(&meta(0o640)));
        assert!(theirs(54321, owner.gid()).may_read(&meta(0o640)));
        // The owner's class decides for the owner, even if others may read.
        assert!(owner.uid() == 0 || !theirs(owner.uid(), 54321).may_read(&meta(0o044)));
    }

    #[test]
    fn after_the_end_of_the_program() {
        let folder = Folder::new("ended");
        let (all, none) = (folder.file("all", 0o644), folder.file("none", 0o600));
        // Only root can start a program of another user.
        let root = !crate::foreign::no_other_users();
        let sleeper = Sleeper::of(root.then_some(54321));
        let process = sleeper.process();
        drop(sleeper);
        for path in [&all, &none] {
            let opened = [process.named(path), process.installed(path)];
            let may = !root || path == &all;
            assert!(opened.iter().all(|o| o.is_ok() == may), "{opened:?}");
        }
        // The same in another run of ulpf.
        let kept = process.keep();
        let later = Process::ended(kept.clone()).unwrap();
        assert!(later.named(&all).is_ok() && later.named(&none).is_ok() != root);
        for root in [None, Some((1, 1))] {
            let other = Ended {
                root,
                ..kept.clone()
            };
            assert!(Process::ended(other).is_err());
        }
    }

    #[test]
    fn names_without_a_way() {
        for (name, plain) in [
            ("x.debug", true),
            ("a b", true),
            ("", false),
            (".", false),
            ("..", false),
            ("/dev/zero", false),
            ("../x", false),
            ("a/b", false),
            ("x/", false),
            ("./x", false),
        ] {
            assert_eq!(is_plain_name(Path::new(name)), plain, "{name}");
        }
    }
}
