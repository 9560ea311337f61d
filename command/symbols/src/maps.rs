//! The objects of a process: `/proc/PID/maps` turned into modules.

use crate::dwarf_types::Types;
use crate::location::Chain;
use crate::object::ObjectFile;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use ulpf_host::foreign::files;
use ulpf_lib::guard::PROT_EXEC;
use ulpf_lib::mapping::{self, Mapping, mappings};

/// The objects of a running program: the executable first, then its libraries.
#[derive(Default)]
pub struct Program {
    pub modules: Vec<Rc<Module>>,
    /// Mapped files that could not be read, and their addresses.
    unread: Vec<(PathBuf, Ranges)>,
    /// The process that maps the files and names sources.
    by: Option<files::Process>,
    /// Cache of looked-up addresses: a program hits from few places, often.
    pub(crate) places: RefCell<HashMap<u64, Chain>>,
}

/// One object file, loaded.
pub struct Module {
    pub object: Rc<ObjectFile>,
    pub types: Types,
    /// Run-time address = address in the file + bias.
    pub bias: u64,
    /// Ranges of its executable mappings.
    pub code: Ranges,
    pub is_executable: bool,
}

type Ranges = Vec<(u64, u64)>;

/// An object file and its load address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    pub path: PathBuf,
    /// As [`Module::bias`].
    pub bias: u64,
    /// As [`Module::code`].
    pub code: Ranges,
    pub is_executable: bool,
}

/// Limit of objects; the largest programs have some hundred. A program may map each page of its memory from another
/// file.
const MOST_MODULES: usize = 4096;

/// The mapped file's path in the maps file.
pub(crate) fn path<'a>(mapping: &Mapping<'a>) -> &'a Path {
    Path::new(OsStr::from_bytes(mapping.path()))
}

impl Program {
    /// Reads the objects that process `pid` has loaded.
    pub fn of_process(pid: i32) -> std::io::Result<Program> {
        let mut program = Program::default();
        program.refresh_from_process(pid)?;
        Ok(program)
    }

    /// A program on another machine, of which only the file is here; all code belongs to that file. Process `by`,
    /// perhaps another user's `ulpf`, names the file.
    pub fn of_file(path: &Path, bias: u64, by: i32) -> Program {
        let read = || {
            let by = files::Process::of(by).ok()?;
            let object = ObjectFile::mapped(path, by.named(path).ok()?, &by).ok()?;
            Some((Rc::new(object), by))
        };
        let Some((object, by)) = read() else {
            return Program::default();
        };
        let module = Module {
            types: Types::new(object.clone()),
            object,
            bias,
            code: vec![(0, u64::MAX)],
            is_executable: true,
        };
        Program {
            modules: vec![Rc::new(module)],
            by: Some(by),
            ..Program::default()
        }
    }

    /// The process whose rights are used to open files.
    pub fn by(&self) -> Option<&files::Process> {
        self.by.as_ref()
    }

    /// The loaded objects, for use after the program's end.
    pub fn loaded(&self) -> Vec<Loaded> {
        let of = |m: &Rc<Module>| Loaded {
            path: m.object.path.clone(),
            bias: m.bias,
            code: m.code.clone(),
            is_executable: m.is_executable,
        };
        self.modules.iter().map(of).collect()
    }

    /// A program that has ended, with its earlier objects. `by` describes its process. Objects that can no longer be
    /// read with the process's rights have no names.
    pub fn of_loaded(loaded: Vec<Loaded>, by: files::Process) -> Program {
        let module = |of: Loaded| {
            let file = by.named(&of.path).ok()?;
            let object = Rc::new(ObjectFile::mapped(&of.path, file, &by).ok()?);
            Some(Rc::new(Module {
                types: Types::new(object.clone()),
                object,
                bias: of.bias,
                code: of.code,
                is_executable: of.is_executable,
            }))
        };
        let loaded = loaded.into_iter().take(MOST_MODULES);
        Program {
            modules: loaded.filter_map(module).collect(),
            by: Some(by),
            ..Program::default()
        }
    }

    /// The same objects, for a forked process.
    pub fn forked(&self) -> Program {
        Program {
            modules: self.modules.clone(),
            by: self.by.clone(),
            ..Program::default()
        }
    }

    /// Adds objects loaded since the last call, and drops unloaded ones. Returns `true` if something has changed.
    pub fn refresh_from_process(&mut self, pid: i32) -> std::io::Result<bool> {
        let by = files::Process::of(pid)?;
        let maps = files::maps(pid)?;
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let exe = exe.as_os_str().as_bytes();
        let exe = Path::new(OsStr::from_bytes(mapping::path_of(exe)));
        let open = |mapping: &Mapping| {
            let path = path(mapping);
            // The executable file may have been replaced on disk.
            let own = match mapping.is_of(exe.as_os_str().as_bytes()) {
                true => by.executable().ok(),
                false => None,
            };
            let file = match own {
                Some(file) => Ok(file),
                None => by.mapped(mapping.start, mapping.end, path),
            };
            let file = file.map_err(|e| format!("{}: {e}", path.display()))?;
            ObjectFile::mapped(path, file, &by)
        };
        let changed = self.refresh(&maps, exe, open);
        self.by = Some(by);
        Ok(changed)
    }

    /// The text of a source file that the debug information names.
    pub fn source(&self, file: &str) -> std::io::Result<String> {
        let path = Path::new(file);
        let opened = match &self.by {
            Some(by) => by.named(path),
            None => files::ours(path),
        };
        let text = opened?.read(files::MOST_TEXT)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// As [`Program::refresh_from_process`], from the text of a maps file.
    pub fn refresh(
        &mut self,
        maps: &[u8],
        exe: &Path,
        open: impl Fn(&Mapping) -> Result<ObjectFile, String>,
    ) -> bool {
        let mut modules: Vec<Rc<Module>> = Vec::new();
        let mut unread = Vec::new();
        let mut changed = false;
        // Only code mappings: they are never moved, while guarded data pages are mapped from other files.
        let code: Vec<Mapping> = mappings(maps)
            .filter(|m| m.prot & PROT_EXEC != 0 && m.name.starts_with(b"/"))
            .collect();
        let mut i = 0;
        while i < code.len() && modules.len() + unread.len() < MOST_MODULES {
            let path = path(&code[i]);
            let mut group: Vec<&Mapping> = vec![&code[i]];
            while let Some(next) = code.get(i + group.len()).filter(|m| self::path(m) == path) {
                group.push(next);
            }
            i += group.len();
            let ranges: Ranges = group.iter().map(|m| (m.start, m.end)).collect();
            let before = self
                .modules
                .iter()
                .find(|m| m.object.path == path && m.code == ranges);
            if let Some(module) = before {
                modules.push(module.clone());
                continue;
            }
            let failed = self.unread.iter().find(|u| u.0 == path && u.1 == ranges);
            if let Some(failed) = failed {
                unread.push(failed.clone());
                continue;
            }
            changed = true;
            let known = self
                .modules
                .iter()
                .find(|m| m.object.path == path)
                .map(|m| m.object.clone());
            let object = match known {
                Some(object) => Some(object),
                None => open(group[0]).ok().map(Rc::new),
            };
            let placed = object.and_then(|o| Some((bias(&o, group[0])?, o)));
            let Some((bias, object)) = placed else {
                unread.push((path.into(), ranges));
                continue;
            };
            modules.push(Rc::new(Module {
                types: Types::new(object.clone()),
                object,
                bias,
                code: ranges,
                is_executable: group[0].is_of(exe.as_os_str().as_bytes()),
            }));
        }
        changed |= modules.len() != self.modules.len();
        modules.sort_by_key(|m| !m.is_executable);
        (self.modules, self.unread) = (modules, unread);
        if changed {
            self.places.get_mut().clear();
        }
        changed
    }

    /// The module whose code contains `addr`.
    pub fn module_at(&self, addr: u64) -> Option<&Rc<Module>> {
        self.modules.iter().find(|m| {
            m.code
                .iter()
                .any(|(start, end)| (*start..*end).contains(&addr))
        })
    }

    /// The module that a data address was linked into.
    pub fn module_of_data(&self, addr: u64) -> Option<&Rc<Module>> {
        self.modules.iter().find(|m| {
            let linked = addr.wrapping_sub(m.bias);
            m.object.segments.iter().any(|s| s.contains(linked))
        })
    }

    /// The variable of an executable or library that contains this byte: `table+16`.
    pub fn variable_at(&self, addr: u64) -> Option<String> {
        let module = self.module_of_data(addr)?;
        let linked = addr.wrapping_sub(module.bias);
        let symbol = module.object.symbols().data_at(linked)?;
        let name = crate::demangle(symbol.name);
        Some(match linked - symbol.addr {
            0 => name,
            more => format!("{name}+{more}"),
        })
    }

    /// The program's own file, if it could be read.
    pub fn executable(&self) -> Option<&Rc<Module>> {
        self.modules.first().filter(|m| m.is_executable)
    }

    /// Modules that match `name`: a file name or path, or a file name without its version (`libc`, `libc.so`).
    pub fn modules_named<'p>(&'p self, name: &'p str) -> impl Iterator<Item = &'p Rc<Module>> {
        self.modules.iter().filter(move |m| {
            let file = m.object.name();
            let shorter = file
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['.', '-']));
            file == name
                || shorter
                || name.contains('/') && m.object.path.ends_with(name.trim_start_matches('/'))
        })
    }
}

fn bias(object: &ObjectFile, mapping: &Mapping) -> Option<u64> {
    let segment = object.segments.iter().find(|s| {
        let page = s.offset & !0xfff;
        s.executable && (page..s.offset.saturating_add(s.file_len.max(1))).contains(&mapping.offset)
    })?;
    Some(
        mapping.start.wrapping_sub(
            segment
                .vaddr
                .wrapping_sub(segment.offset)
                .wrapping_add(mapping.offset),
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn of_a_process_that_has_ended_the_last_is_known() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        let mut program = Program::default();
        while program.executable().is_none() {
            program.refresh_from_process(pid).unwrap();
        }
        let before = program.loaded().len();
        child.kill().unwrap();
        // A zombie, which has no memory.
        let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        while !stat().contains(") Z ") {
            std::thread::yield_now();
        }
        assert!(program.refresh_from_process(pid).is_err());
        assert_eq!(program.loaded().len(), before);
        child.wait().unwrap();
    }
}
