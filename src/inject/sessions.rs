//! The sessions of other ulpf processes: their shared areas, found among their descriptors. The kernel
//! lets only the same user and root open them (and needs no right to trace: Yama may forbid that).

use super::process;
use super::shared::{NAME, SharedArea};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

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

/// What there is to look into.
#[derive(Default)]
pub struct Sessions {
    pub list: Vec<Watched>,
    /// Those of another version of ulpf.
    pub foreign: Vec<i32>,
    /// Those of other users, or of nobody that we may ask.
    pub others: Vec<i32>,
    /// The process with the number that was asked for is somebody else's.
    pub forbidden: bool,
}

/// All sessions that we may look into, each program's present one; or those that `of` watches, or is
/// watched by.
pub fn find(of: Option<i32>) -> io::Result<Sessions> {
    let mut found = Sessions::default();
    let ours = std::process::id() as i32;
    for by in process::all()?.into_iter().filter(|pid| *pid != ours) {
        let descriptors = match fs::read_dir(format!("/proc/{by}/fd")) {
            Ok(list) => list,
            Err(e) => {
                let asked = of == Some(by) && e.kind() == io::ErrorKind::PermissionDenied;
                found.forbidden |= asked;
                if process::Status::of(by).is_ok_and(|s| s.name() == "ulpf") {
                    found.others.push(by);
                }
                continue;
            }
        };
        for (shared, elsewhere) in areas(descriptors) {
            let Some(shared) = shared else {
                found.foreign.push(by);
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

type Area = (Option<SharedArea>, Option<Elsewhere>);

/// The areas among a process's descriptors, `None` for one of another version of ulpf, and what their names
/// say of programs elsewhere.
fn areas(descriptors: fs::ReadDir) -> Vec<Area> {
    let memfd = format!("/memfd:{}", NAME.to_string_lossy());
    let of = |fd: &Path| {
        let link = fs::read_link(fd).unwrap_or_default();
        let name = link.to_string_lossy();
        let name = name.strip_prefix(&memfd)?;
        let elsewhere = Elsewhere::parse(name.trim_end_matches(" (deleted)"));
        let area = SharedArea::look(File::open(fd).ok()?).ok()?;
        Some((area, elsewhere))
    };
    descriptors
        .flatten()
        .filter_map(|d| of(&d.path()))
        .collect()
}

/// The area of a program that we watch ourselves, or else another ulpf.
pub fn area_of(program: i32) -> Option<SharedArea> {
    let ours = fs::read_dir("/proc/self/fd").ok()?;
    let ours = areas(ours).into_iter().filter_map(|a| a.0);
    let pid = |area: &SharedArea| area.header().pid.load(Ordering::Acquire) as i32;
    let ours = ours
        .filter(|area| pid(area) == program)
        .max_by_key(|area| area.header().base_ns);
    ours.or_else(|| Some(find(Some(program)).ok()?.list.pop()?.shared))
}

impl Sessions {
    /// One that has executed itself anew has had an area before.
    fn add(&mut self, new: Watched) {
        let same = |w: &Watched| (w.pid, w.by) == (new.pid, new.by);
        match self.list.iter_mut().find(|w| same(w)) {
            Some(old) if old.shared.header().base_ns >= new.shared.header().base_ns => {}
            Some(old) => *old = new,
            None => self.list.push(new),
        }
    }
}
