//! The sessions of other ulpf processes: their shared areas, found among their descriptors. The kernel
//! lets only the same user and root open them (and needs no right to trace: Yama may forbid that).
//!
//! Anybody can call a memory file `ulpf-shared`, and root could open everybody's. So by default only sessions
//! of one's own are looked into: those of a `ulpf` that runs as the caller and as nobody else. Whoever asks for
//! all users' sessions ([`Whose::All`]) gets what those users have written there. Either way an area is mapped
//! only if it is sealed, and believed in nothing (`SharedArea`, `ulpf_lib::ring`): the program that is watched
//! can write to it, whoever it belongs to.

use crate::shared::{NAME, SharedArea};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use ulpf_host::{process, sys};

/// A watched program.
pub struct Watched {
    pub pid: i32,
    /// The ulpf that watches it.
    pub by: i32,
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
    /// There are more than anybody looks at ([`MOST`]).
    pub too_many: bool,
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
        for (shared, elsewhere) in areas(descriptors) {
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
                found.add(Watched {
                    pid,
                    by,
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

type Area = (Option<SharedArea>, Option<Elsewhere>);

/// The areas among a process's descriptors, `None` for one of another version of ulpf, and what their names
/// say of programs elsewhere.
fn areas(descriptors: fs::ReadDir) -> impl Iterator<Item = Area> {
    let memfd = format!("/memfd:{}", NAME.to_string_lossy());
    let of = move |fd: &Path| {
        let link = fs::read_link(fd).ok()?;
        let name = link.to_string_lossy();
        let name = name.strip_prefix(&memfd)?;
        let elsewhere = Elsewhere::parse(name.trim_end_matches(" (deleted)"));
        let area = SharedArea::look(&open(fd).ok()?).ok()?;
        Some((area, elsewhere))
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
    let ours = areas(ours).filter_map(|a| a.0);
    let pid = |area: &SharedArea| area.header().pid.load(Ordering::Acquire) as i32;
    let ours = ours
        .filter(|area| pid(area) == program)
        .max_by_key(|area| area.clock().base_ns);
    ours.or_else(|| Some(find(Some(program), Whose::Own).ok()?.list.pop()?.shared))
}

impl Sessions {
    /// There are sessions that `--all-users` would show: root alone can open them.
    pub fn hides_some(&self) -> bool {
        !self.others.is_empty() && sys::is_root()
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
