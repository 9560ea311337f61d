//! Finds and opens the debug information of an object.

use crate::dwarf::{Dwarf, Traits, shared, traits};
use crate::elf::{Elf, has_dwarf, parse_elf, section};
use crate::fetch;
use crate::image::Image;
use crate::index::Index;
use crate::meter::Work;
use crate::slice::Slice;
use crate::source::{DEBUG_ROOT, Source, build_id_path, installed_name};
use crate::split::Split;
use gimli::Reader;
use object::Object;
use std::cell::{Cell, OnceCell};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use ulpf_host::foreign::files;

/// Debug information of an object, from the object itself or a separate file.
pub struct Debug {
    /// The separate file, if one was needed and found.
    pub file: Option<PathBuf>,
    pub file_elf: Option<Elf>,
    pub info: Option<DebugInfo>,
}

pub struct DebugInfo {
    pub dwarf: Arc<Dwarf>,
    /// Size of all sections together, in bytes.
    pub size: u64,
    pub traits: Traits,
    lines: OnceCell<Option<addr2line::Context<Slice>>>,
    /// The lines are incomplete because a limit was reached.
    lines_cut: Cell<bool>,
    pub index: OnceCell<Option<Index>>,
    pub split: Split,
}

impl DebugInfo {
    /// Lines and functions by address. Building this table begins to read all units, so the first request builds it.
    pub fn lines(&self) -> Option<&addr2line::Context<Slice>> {
        let lines = self.lines.get_or_init(|| {
            let work = Work::through(self.size);
            let lines = addr2line::Context::from_arc_dwarf(self.dwarf.clone()).ok();
            self.lines_cut.set(work.is_over());
            lines
        });
        lines.as_ref()
    }

    /// Whether reading was ended by a limit.
    pub fn is_cut(&self) -> bool {
        let index = self.index.get().and_then(Option::as_ref);
        self.lines_cut.get() || index.is_some_and(Index::is_cut)
    }
}

impl Debug {
    /// Searches the object at `path`, then separate files, and finally servers.
    pub fn find(own: &Elf, source: &Source, path: &Path) -> Debug {
        if has_dwarf(own) {
            return Debug {
                file: None,
                file_elf: None,
                info: load_dwarf(own, source, path),
            };
        }
        let fetched = std::iter::once_with(|| fetched(own)).flatten();
        for candidate in candidates(own, path).into_iter().chain(fetched) {
            let opened = match candidate.proof {
                Proof::BuildId => source.open_installed(&candidate.path),
                Proof::Crc(_) => source.open(&candidate.path),
                Proof::Fetched => files::ours(&candidate.path),
            };
            // Most candidates do not exist; an existing one that cannot be read is worth a message.
            let trouble = |why: String| {
                let path = candidate.path.display();
                own.data().note(|| format!("{path}: {why}"));
            };
            let file = match opened {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => {
                    trouble(error.to_string());
                    continue;
                }
            };
            let elf = match parse_elf(Image::of_file(file)) {
                Ok(elf) => elf,
                Err(why) => {
                    trouble(why);
                    continue;
                }
            };
            let belongs = match candidate.proof {
                Proof::Crc(crc) => elf.data().crc() == Some(crc),
                Proof::BuildId | Proof::Fetched => {
                    elf.build_id().ok().flatten() == own.build_id().ok().flatten()
                }
            };
            if !belongs {
                elf.data().trouble().map(trouble);
                continue;
            }
            let info = match has_dwarf(&elf) {
                true => load_dwarf(&elf, source, &candidate.path),
                false => None,
            };
            return Debug {
                file: Some(candidate.path),
                file_elf: Some(elf),
                info,
            };
        }
        Debug {
            file: None,
            file_elf: None,
            info: None,
        }
    }
}

struct Candidate {
    path: PathBuf,
    proof: Proof,
}

/// How a file proves that it belongs to the object.
enum Proof {
    Crc(u32),
    /// An installed file with the object's build ID.
    BuildId,
    /// A file of our own, from a server, with the object's build ID.
    Fetched,
}

/// The server's file for the object.
fn fetched(own: &Elf) -> Option<Candidate> {
    let id = own.build_id().ok().flatten()?;
    match fetch::debug_file(id) {
        Ok(path) => path.map(|path| Candidate {
            path,
            proof: Proof::Fetched,
        }),
        Err(why) => {
            own.data().note(|| why);
            None
        }
    }
}

/// Candidates for the separate file of an object at `real`.
fn candidates(elf: &Elf, real: &Path) -> Vec<Candidate> {
    let mut found = Vec::new();
    if let Ok(Some(id)) = elf.build_id()
        && let Some(path) = build_id_path(id)
    {
        found.push(Candidate {
            path,
            proof: Proof::BuildId,
        });
    }
    if let Ok(Some((name, crc))) = elf.gnu_debuglink() {
        let name = Path::new(std::str::from_utf8(name).unwrap_or(""));
        // Only a plain file name is accepted. The folders to search are fixed, so the object cannot choose one.
        if !files::is_plain_name(name) {
            return found;
        }
        let dir = real.parent().unwrap_or(Path::new("/"));
        let mut push = |path: PathBuf| {
            if path != real {
                found.push(Candidate {
                    path,
                    proof: Proof::Crc(crc),
                });
            }
        };
        push(dir.join(name));
        push(dir.join(".debug").join(name));
        push(
            Path::new(DEBUG_ROOT)
                .join(dir.strip_prefix("/").unwrap_or(dir))
                .join(name),
        );
    }
    found
}

/// Loads the debug information. `path` is its file.
fn load_dwarf(elf: &Elf, source: &Source, path: &Path) -> Option<DebugInfo> {
    let size = Cell::new(0u64);
    let load = |elf: &Elf, id: gimli::SectionId| {
        let data = section(elf, id.name());
        size.set(size.get() + data.len() as u64);
        Ok::<_, gimli::Error>(data)
    };
    let mut dwarf = Dwarf::load(|id| load(elf, id)).ok()?;
    // dwz moves debug information that is common to several files of a package to a supplementary file.
    if let Ok(Some((name, id))) = elf.gnu_debugaltlink() {
        let name = Path::new(std::str::from_utf8(name).unwrap_or(""));
        let beside = path.parent().map(|dir| dir.join(name));
        let installed = beside.iter().filter_map(|file| installed_name(file));
        let installed = installed.chain(build_id_path(id));
        // Open the file by the given name with the program's rights, or among the installed files of this kind.
        let opened = beside.iter().map(|file| source.open(file));
        let opened = opened.chain(installed.map(|file| source.open_installed(&file)));
        let fetched = std::iter::once_with(|| fetch::debug_file(id).ok().flatten()).flatten();
        let opened = opened.chain(fetched.map(|file| files::ours(&file)));
        for file in opened.flatten() {
            let sup = parse_elf(Image::of_file(file)).ok();
            if let Some(sup) = sup.filter(|s| s.build_id().ok().flatten() == Some(id)) {
                let _ = dwarf.load_sup(|id| load(&sup, id));
                break;
            }
        }
    }
    let size = size.get();
    let work = Work::through(size);
    let traits = traits(&dwarf);
    if traits.too_many {
        elf.data()
            .note(|| "its entries have too many attributes".into());
        return None;
    }
    dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
    if work.is_over() {
        elf.data()
            .note(|| "its debug information takes too long to read".into());
    }
    Some(DebugInfo {
        dwarf: shared(dwarf),
        size,
        traits,
        lines: OnceCell::new(),
        lines_cut: Cell::new(false),
        index: OnceCell::new(),
        split: Split::of(source, path),
    })
}
