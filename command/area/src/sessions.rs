//! The sessions of other ulpf processes: their shared areas, found among their descriptors. The kernel lets only the
//! same user and root open them. This needs no right to trace, which Yama may forbid.
//!
//! Any process can name a memory file `ulpf-shared`, and root can open all of them. So by default we look only into
//! sessions of a `ulpf` that runs as the caller and as no other user. With [`Whose::All`] we look into the sessions of
//! all users, with whatever those users have written there. Either way an area is mapped only if it is sealed. Its
//! contents are never trusted (`SharedArea`, `ulpf_lib::ring`): the watched program can write to it, whichever user
//! owns it.
//!
//! In particular, the area itself names the watched process. The session counts only if the kernel confirms
//! ([`confirmed`]) that this process maps this very memory.

use crate::shared::{NAME, SharedArea};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use ulpf_host::{process, sys};

/// A watched program.
pub struct Watched {
    pub pid: i32,
    /// The `ulpf` process that watches it.
    pub by: i32,
    /// Start time of the program, which tells it from a later process with the same number.
    pub started: u64,
    pub shared: SharedArea,
    /// Set if the program runs on another machine (simulated, in a guest).
    pub elsewhere: Option<Elsewhere>,
}

/// Program on another machine, from the area's name: its file, and its load bias.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    pub file: PathBuf,
    pub bias: u64,
}

impl Elsewhere {
    fn parse(name: &str) -> Option<Elsewhere> {
        let (bias, file) = name.strip_prefix(':')?.split_once(':')?;
        Some(Elsewhere {
            bias: u64::from_str_radix(bias, 16).ok()?,
            file: file.into(),
        })
    }
}

/// Selects sessions by user.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Whose {
    /// Sessions of ulpf processes that run as we do.
    #[default]
    Own,
    /// All sessions that the kernel lets us open.
    All,
}

impl Whose {
    /// The selection for the option `--all-users`.
    pub fn of(all_users: bool) -> Whose {
        if all_users { Whose::All } else { Whose::Own }
    }
}

/// Result of a search for sessions.
#[derive(Default)]
pub struct Sessions {
    pub list: Vec<Watched>,
    /// `ulpf` processes of another version, whose sessions cannot be read.
    pub foreign: Vec<i32>,
    /// `ulpf` processes of other users: not selected, or the kernel does not let us open them.
    pub others: Vec<i32>,
    /// The process that the caller named belongs to another user.
    pub forbidden: bool,
    /// Sessions that name a process without the kernel's confirmation.
    pub false_claims: Vec<Claim>,
    /// There are more sessions than the limit ([`MOST`]).
    pub too_many: bool,
}

/// Unconfirmed contents of an area: that process `by` watches process `pid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub pid: i32,
    pub by: i32,
}

impl std::fmt::Display for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Claim { pid, by } = self;
        write!(
            f,
            "process {by} has a session that claims to watch process {pid}, but the kernel does not confirm that; it is not looked into"
        )
    }
}

/// Limit of the sessions that are read. `MOST_OF_ONE` limits the areas of one process: a program has a new area after
/// each exec, and so has each child with `--follow`. Without a limit a hostile user could keep root busy with areas.
const MOST: usize = 256;
const MOST_OF_ONE: usize = 1024;

/// All sessions that we may read, one for each program: the present one. With `of`, only the sessions that this process
/// watches or that watch it.
pub fn find(of: Option<i32>, whose: Whose) -> io::Result<Sessions> {
    let mut found = Sessions::default();
    let ours = std::process::id() as i32;
    for by in process::all()?.into_iter().filter(|pid| *pid != ours) {
        let Ok(status) = process::Status::of(by) else {
            continue;
        };
        let wanted = whose == Whose::All || status.is_of(sys::user());
        let descriptors = match fs::read_dir(format!("/proc/{by}/fd")) {
            Ok(list) if wanted => list,
            Err(e) if e.kind() != io::ErrorKind::PermissionDenied => continue,
            _ => {
                found.forbidden |= of == Some(by);
                if status.name() == "ulpf" {
                    found.others.push(by);
                }
                continue;
            }
        };
        if !is_ulpf(by) {
            continue;
        }
        for (shared, elsewhere, memory) in areas(descriptors) {
            let Some(shared) = shared else {
                // The program that it watches is unknown.
                let parent = |n| process::Status::of(n).is_ok_and(|s| s.parent() == Some(by));
                let asked = of.is_none_or(|n| n == by || parent(n));
                if asked && found.foreign.last() != Some(&by) {
                    found.foreign.push(by);
                }
                continue;
            };
            let pid = shared.header().pid.load(Ordering::Acquire) as i32;
            if process::is_alive(pid) && of.is_none_or(|n| n == pid || n == by) {
                // Read before the check: if the number belongs to another process by then, the memory differs.
                let started = process::started(pid).unwrap_or_default();
                if !confirmed((by, &status), pid, elsewhere.is_some(), memory) {
                    found.claim(Claim { pid, by });
                    continue;
                }
                found.add(Watched {
                    pid,
                    by,
                    started,
                    shared,
                    elsewhere,
                });
            }
        }
    }
    Ok(found)
}

/// Whether the process runs a `ulpf`. Another process of ours may hold a memory file that a stranger has sent to it.
fn is_ulpf(pid: i32) -> bool {
    let name = |path: Option<PathBuf>| Some(path?.file_name()?.to_string_lossy().into_owned());
    let theirs = name(process::executable(pid)).unwrap_or_default();
    // Under another installed name, `ulpf` starts others as the program that it is itself.
    let same = |ours: String| theirs.trim_end_matches(" (deleted)") == ours;
    theirs.starts_with("ulpf") || name(std::env::current_exe().ok()).is_some_and(same)
}

/// Whether the kernel confirms that process `by` watches process `pid` by this memory:
///
/// - The program maps the memory, because its stub writes there. A privileged process (a display server, say) may map
///   memory from another user. So another user's session counts only for processes of that user.
/// - A program on another machine has no memory here; `by` or a child of `by` represents it.
/// - If we may not read the program's mappings (it is not dumpable), it counts as a child of `by`.
fn confirmed(
    (by, watcher): (i32, &process::Status),
    pid: i32,
    elsewhere: bool,
    memory: process::FileId,
) -> bool {
    let Ok(program) = process::Status::of(pid) else {
        return false;
    };
    let is_child = program.parent() == Some(by);
    if elsewhere {
        return pid == by || is_child;
    }
    let watcher_may = watcher.is_of(sys::user())
        || watcher.is_of(0)
        || watcher.user().is_some_and(|user| program.is_of(user));
    watcher_may
        && match process::maps_file(pid, memory) {
            Ok(maps) => maps,
            Err(e) => is_child && e.kind() == io::ErrorKind::PermissionDenied,
        }
}

type Area = (Option<SharedArea>, Option<Elsewhere>, process::FileId);

/// The areas among a process's descriptors, with the program elsewhere that the name gives, and the memory file. The
/// area is `None` if it is of another version of ulpf.
fn areas(descriptors: fs::ReadDir) -> impl Iterator<Item = Area> {
    let memfd = format!("/memfd:{}", NAME.to_string_lossy());
    let of = move |fd: &Path| {
        let link = fs::read_link(fd).ok()?;
        let name = link.to_string_lossy();
        let name = name.strip_prefix(&memfd)?;
        let elsewhere = Elsewhere::parse(name.trim_end_matches(" (deleted)"));
        let file = open(fd).ok()?;
        let area = SharedArea::look(&file).ok()?;
        let memory = file.metadata().ok()?;
        Some((area, elsewhere, (memory.dev(), memory.ino())))
    };
    let all = descriptors.flatten().filter_map(move |d| of(&d.path()));
    all.take(MOST_OF_ONE)
}

/// Opens another process's memory file, and nothing else. A descriptor of that name may lead to a FIFO in its owner's
/// mount namespace, and opening a FIFO can block for ever.
fn open(fd: &Path) -> io::Result<File> {
    let named = sys::open_path(fd)?;
    if !sys::is_memory(&named)? {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    File::open(format!("/proc/self/fd/{}", named.as_raw_fd()))
}

/// The area of a program that this process watches, or else another ulpf, and where the program runs.
pub fn area_of(program: i32) -> Option<(SharedArea, Option<Elsewhere>)> {
    let ours = fs::read_dir("/proc/self/fd").ok()?;
    let (by, status) = (std::process::id() as i32, process::Status::of_self().ok()?);
    let pid = |area: &SharedArea| area.header().pid.load(Ordering::Acquire) as i32;
    let ours = areas(ours)
        .filter_map(|(area, elsewhere, memory)| Some((area?, elsewhere, memory)))
        .filter(|(area, ..)| pid(area) == program)
        // A program may have written another program's number into its area.
        .filter(|(_, elsewhere, memory)| {
            confirmed((by, &status), program, elsewhere.is_some(), *memory)
        })
        .map(|(area, elsewhere, _)| (area, elsewhere))
        .max_by_key(|(area, _)| area.clock().base_ns);
    ours.or_else(|| {
        let found = find(Some(program), Whose::Own).ok()?.list.pop()?;
        Some((found.shared, found.elsewhere))
    })
}

impl Sessions {
    /// Whether `--all-users` would show more sessions: only root can open them.
    pub fn hides_some(&self) -> bool {
        !self.others.is_empty() && sys::is_root()
    }

    /// Records an unconfirmed claim. (After an exec a program no longer maps its old area; [`Sessions::false_claim_of`]
    /// ignores those.)
    fn claim(&mut self, claim: Claim) {
        if !self.false_claims.contains(&claim) && self.false_claims.len() < MOST {
            self.false_claims.push(claim);
        }
    }

    /// A claim that concerns this program or this ulpf, and that no session confirms.
    pub fn false_claim_of(&self, of: i32) -> Option<&Claim> {
        let is_known = |c: &Claim| self.list.iter().any(|w| (w.pid, w.by) == (c.pid, c.by));
        let mut all = self.false_claims.iter();
        all.find(|c| (c.pid == of || c.by == of) && !is_known(c))
    }

    /// Adds a session. A program that has called exec has an older area as well.
    fn add(&mut self, new: Watched) {
        let (same, room) = (
            |w: &Watched| (w.pid, w.by) == (new.pid, new.by),
            self.list.len() < MOST,
        );
        match self.list.iter_mut().find(|w| same(w)) {
            Some(old) if old.shared.clock().base_ns >= new.shared.clock().base_ns => {}
            Some(old) => *old = new,
            None if room => self.list.push(new),
            None => self.too_many = true,
        }
    }
}
