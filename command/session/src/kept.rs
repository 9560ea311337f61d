//! An ended session, with the modules of its program (`ulpf_area::kept` describes the file).

use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::time::SystemTime;
use ulpf_area::{SharedArea, kept};
use ulpf_host::foreign::files;
use ulpf_symbols::{Loaded, Program};

/// Header of a kept session, before the area.
#[derive(Serialize, Deserialize)]
struct Head {
    pid: i32,
    by: i32,
    program: String,
    ending: String,
    boot: String,
    /// Without them, no file that the program names is opened.
    #[serde(default)]
    rights: Option<Rights>,
    objects: Vec<Object>,
}

/// [`files::Ended`] of the program's process.
#[derive(Serialize, Deserialize)]
struct Rights {
    user: u32,
    group: u32,
    groups: Vec<u32>,
    root: Option<(u64, u64)>,
}

impl From<files::Ended> for Rights {
    fn from(of: files::Ended) -> Rights {
        Rights {
            user: of.user,
            group: of.group,
            groups: of.groups,
            root: of.root,
        }
    }
}

impl From<Rights> for files::Ended {
    fn from(of: Rights) -> files::Ended {
        files::Ended {
            user: of.user,
            group: of.group,
            groups: of.groups,
            root: of.root,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Object {
    /// The bytes of the path, which need not be UTF-8.
    path: Vec<u8>,
    bias: u64,
    code: Vec<(u64, u64)>,
    is_executable: bool,
    /// Time of the file's last change: a changed file has other names.
    changed: Option<u64>,
}

/// A session that has ended.
pub struct Kept {
    pub pid: i32,
    /// The ulpf that watched it.
    pub by: i32,
    /// The program's name.
    pub program: String,
    /// `killed by SIGSEGV`
    pub ending: String,
    pub ended: SystemTime,
    pub shared: SharedArea,
    rights: Option<Rights>,
    objects: Vec<Object>,
}

/// Number of this boot: times of another boot mean nothing.
fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_string()
}

/// Time of the file's last change, as far as the program itself could read it.
fn changed(loaded: &Loaded, by: &files::Process) -> Option<u64> {
    let time = by.look(&loaded.path).ok()?.modified().ok()?;
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok()
}

/// Saves the session of a program that has ended.
pub fn keep(shared: &SharedArea, pid: i32, program: &Program, ending: String) -> io::Result<bool> {
    let object = |l: Loaded| Object {
        changed: program.by().and_then(|by| changed(&l, by)),
        path: l.path.into_os_string().into_vec(),
        bias: l.bias,
        code: l.code,
        is_executable: l.is_executable,
    };
    let head = Head {
        pid,
        by: std::process::id() as i32,
        program: program
            .executable()
            .map_or(String::new(), |m| m.object.name().to_string()),
        ending,
        boot: boot(),
        rights: program.by().map(|by| by.keep().into()),
        objects: program.loaded().into_iter().map(object).collect(),
    };
    kept::keep(shared, pid, &serde_json::to_vec(&head)?)
}

/// The newest ended session, or that of process `pid`.
pub fn find(pid: Option<i32>) -> io::Result<Option<Kept>> {
    let Some(found) = kept::find(pid)? else {
        return Ok(None);
    };
    let head: Head = serde_json::from_slice(&found.head)?;
    Ok((head.boot == boot()).then_some(Kept {
        pid: head.pid,
        by: head.by,
        program: head.program,
        ending: head.ending,
        ended: found.ended,
        shared: found.shared,
        rights: head.rights,
        objects: head.objects,
    }))
}

impl Kept {
    /// The program's modules. Files that have changed since, and files that the program could not open itself, are left
    /// out.
    pub fn program(&mut self) -> Program {
        let by = self.rights.take();
        let Some(by) = by.and_then(|by| files::Process::ended(by.into()).ok()) else {
            return Program::default();
        };
        let loaded = |o: Object| {
            let loaded = Loaded {
                path: std::ffi::OsString::from_vec(o.path).into(),
                bias: o.bias,
                code: o.code,
                is_executable: o.is_executable,
            };
            (changed(&loaded, &by) == o.changed).then_some(loaded)
        };
        let objects = std::mem::take(&mut self.objects).into_iter();
        let loaded = objects.filter_map(loaded).collect();
        Program::of_loaded(loaded, by)
    }
}
