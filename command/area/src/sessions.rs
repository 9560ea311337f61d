//! The sessions of other ulpf processes: their shared areas, found among their descriptors. The kernel
//! lets only the same user and root open them (and needs no right to trace: Yama may forbid that).
//!
//! Anybody can call a memory file `ulpf-shared`, and root could open everybody's. So by default only sessions
//! of one's own are looked into: those of a `ulpf` that runs as the caller and as nobody else. Whoever asks for
//! all users' sessions ([`Whose::All`]) gets what those users have written there. Either way an area is mapped
//! only if it is sealed, and believed in nothing (`SharedArea`, `ulpf_lib::ring`): the program that is watched
//! can write to it, whoever it belongs to.
//!
//! In particular the number of the watched process is what the area says. The session counts only where the kernel confirms
//! it ([`confirmed`]): that process has mapped this very memory.

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
    /// The ulpf that watches it.
    pub by: i32,
    /// When the program began: another process with its number is not watched.
    pub started: u64,
    pub shared: SharedArea,
    /// The program is on another machine (simulated, in a guest).
    pub elsewhere: Option<Elsewhere>,
}

/// As the area's name has it: its file, and how far it lies from where that says.
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

/// Whose sessions are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Whose {
    /// Those of ulpf processes that run as we do.
    #[default]
    Own,
    /// All that the kernel lets us open.
    All,
}

impl Whose {
    /// What `--all-users` asks for.
    pub fn of(all_users: bool) -> Whose {
        if all_users { Whose::All } else { Whose::Own }
    }
}

/// What there is to look into.
#[derive(Default)]
pub struct Sessions {
    pub list: Vec<Watched>,
    /// Those of another version of ulpf.
    pub foreign: Vec<i32>,
    /// Those of other users, which were not wanted or are not ours to open.
    pub others: Vec<i32>,
    /// The process with the number that was asked for is somebody else's.
    pub forbidden: bool,
    /// Sessions whose process is not theirs, by the kernel's word.
    pub false_claims: Vec<Claim>,
    /// There are more than anybody looks at ([`MOST`]).
    pub too_many: bool,
}

/// What an area says: that the process `by` watches process `pid`.
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

/// So many sessions are looked at, and so many areas of one process (a program that has executed itself, and
/// each child with `--follow`, has one of its own). Who wants to keep root busy could open any number of them.
const MOST: usize = 256;
const MOST_OF_ONE: usize = 1024;

/// All sessions that we may look into, each program's present one; or those that `of` watches, or is
/// watched by.
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
                // Which program it watches is not known.
                let parent = |n| process::Status::of(n).is_ok_and(|s| s.parent() == Some(by));
                let asked = of.is_none_or(|n| n == by || parent(n));
                if asked && found.foreign.last() != Some(&by) {
                    found.foreign.push(by);
                }
                continue;
            };
            let pid = shared.header().pid.load(Ordering::Acquire) as i32;
            if process::is_alive(pid) && of.is_none_or(|n| n == pid || n == by) {
                // Before it is looked at: if that is another process by then, its memory tells.
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

/// The process runs a `ulpf`. A process of ours that is none may hold a stranger's memory file, which was sent
/// to it.
fn is_ulpf(pid: i32) -> bool {
    let name = |path: Option<PathBuf>| Some(path?.file_name()?.to_string_lossy().into_owned());
    let theirs = name(process::executable(pid)).unwrap_or_default();
    // Installed under another name, it starts others as what it is itself.
    let same = |ours: String| theirs.trim_end_matches(" (deleted)") == ours;
    theirs.starts_with("ulpf") || name(std::env::current_exe().ok()).is_some_and(same)
}

/// Does the kernel confirm that process `by` watches process `pid` by this memory?
///
/// - The program has mapped the memory: its stub writes there. A process of more rights may have mapped what a stranger has
///   sent it (a display server, say), so a stranger's session counts only for processes of the same user.
/// - A program on another machine has no memory here: what stands for it is `by`, or a child of `by`.
/// - Where we may not read what the program has mapped (one that is not dumpable), it counts as a child of `by`.
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

/// The areas among a process's descriptors, `None` for one of another version of ulpf, what their names
/// say of programs elsewhere, and which memory files they are.
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

/// Opens another process's memory file, and nothing else: behind a descriptor of that name there may be a FIFO
/// in a mount namespace of its owner's, where opening would wait for ever.
fn open(fd: &Path) -> io::Result<File> {
    let named = sys::open_path(fd)?;
    if !sys::is_memory(&named)? {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    File::open(format!("/proc/self/fd/{}", named.as_raw_fd()))
}

/// The area of a program that we watch ourselves, or else another ulpf.
pub fn area_of(program: i32) -> Option<SharedArea> {
    let ours = fs::read_dir("/proc/self/fd").ok()?;
    let (by, status) = (std::process::id() as i32, process::Status::of_self().ok()?);
    let pid = |area: &SharedArea| area.header().pid.load(Ordering::Acquire) as i32;
    let ours = areas(ours)
        .filter_map(|(area, elsewhere, memory)| Some((area?, elsewhere.is_some(), memory)))
        .filter(|(area, ..)| pid(area) == program)
        // One program may have written another one's number into its area.
        .filter(|(_, elsewhere, memory)| confirmed((by, &status), program, *elsewhere, *memory))
        .map(|(area, ..)| area)
        .max_by_key(|area| area.clock().base_ns);
    ours.or_else(|| Some(find(Some(program), Whose::Own).ok()?.list.pop()?.shared))
}

impl Sessions {
    /// There are sessions that `--all-users` would show: root alone can open them.
    pub fn hides_some(&self) -> bool {
        !self.others.is_empty() && sys::is_root()
    }

    /// (A program that executes itself anew has left the memory that it had before: that is no claim.)
    fn claim(&mut self, claim: Claim) {
        if !self.false_claims.contains(&claim) && self.false_claims.len() < MOST {
            self.false_claims.push(claim);
        }
    }

    /// Claims that concern this program, or this ulpf, and that no session confirms.
    pub fn false_claim_of(&self, of: i32) -> Option<&Claim> {
        let is_known = |c: &Claim| self.list.iter().any(|w| (w.pid, w.by) == (c.pid, c.by));
        let mut all = self.false_claims.iter();
        all.find(|c| (c.pid == of || c.by == of) && !is_known(c))
    }

    /// One that has executed itself anew has had an area before.
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
