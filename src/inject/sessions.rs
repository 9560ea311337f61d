//! The sessions of other ulpf processes: their shared areas, found among their descriptors. The kernel
//! lets only the same user and root open them (and needs no right to trace: Yama may forbid that).

use super::process;
use super::shared::{NAME, SharedArea};
use std::fs::{self, File};
use std::io;
use std::sync::atomic::Ordering;

/// A watched program.
pub struct Watched {
    pub pid: i32,
    /// The ulpf that watches it.
    pub by: i32,
    pub shared: SharedArea,
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
    let memfd = format!("/memfd:{}", NAME.to_string_lossy());
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
        for fd in descriptors.flatten().map(|d| d.path()) {
            let link = fs::read_link(&fd).unwrap_or_default();
            if !link.to_string_lossy().starts_with(&memfd) {
                continue;
            }
            let Ok(file) = File::open(&fd) else { continue };
            match SharedArea::look(file) {
                Ok(Some(shared)) => {
                    let pid = shared.header().pid.load(Ordering::Acquire) as i32;
                    if process::is_alive(pid) && of.is_none_or(|n| n == pid || n == by) {
                        found.add(Watched { pid, by, shared });
                    }
                }
                Ok(None) => found.foreign.push(by),
                Err(_) => {}
            }
        }
    }
    Ok(found)
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
