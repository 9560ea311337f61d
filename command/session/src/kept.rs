//! A session that has ended, with what its program was made of (`ulpf_area::kept` has the file).

use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::time::SystemTime;
use ulpf_area::{SharedArea, kept};
use ulpf_symbols::{Loaded, Program};

/// What stands before the area.
#[derive(Serialize, Deserialize)]
struct Head {
    pid: i32,
    by: i32,
    program: String,
    ending: String,
    boot: String,
    objects: Vec<Object>,
}

#[derive(Serialize, Deserialize)]
struct Object {
    /// Its bytes: a path may be any.
    path: Vec<u8>,
    bias: u64,
    code: Vec<(u64, u64)>,
    is_executable: bool,
    /// When the file was changed last: another one has other names.
    changed: Option<u64>,
}

/// A session that has ended.
pub struct Kept {
    pub pid: i32,
    /// The ulpf that has watched it.
    pub by: i32,
    /// The program's name.
    pub program: String,
    /// `killed by SIGSEGV`
    pub ending: String,
    pub ended: SystemTime,
    pub shared: SharedArea,
    objects: Vec<Object>,
}

/// Times of another boot mean nothing.
fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_string()
}

fn changed(loaded: &Loaded) -> Option<u64> {
    let time = std::fs::metadata(&loaded.path).ok()?.modified().ok()?;
    let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_nanos()).ok()
}

/// Keeps the session of a program that has ended.
pub fn keep(shared: &SharedArea, pid: i32, program: &Program, ending: String) -> io::Result<bool> {
    let object = |l: Loaded| Object {
        changed: changed(&l),
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
        objects: program.loaded().into_iter().map(object).collect(),
    };
    kept::keep(shared, pid, &serde_json::to_vec(&head)?)
}

/// The newest that has ended, or the one of this process.
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
        objects: head.objects,
    }))
}

impl Kept {
    /// What the program was made of; files that have changed since are left out.
    pub fn program(&mut self) -> Program {
        let loaded = |o: Object| {
            let loaded = Loaded {
                path: std::ffi::OsString::from_vec(o.path).into(),
                bias: o.bias,
                code: o.code,
                is_executable: o.is_executable,
            };
            (changed(&loaded) == o.changed).then_some(loaded)
        };
        let objects = std::mem::take(&mut self.objects).into_iter();
        Program::of_loaded(objects.filter_map(loaded).collect())
    }
}
