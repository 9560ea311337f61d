//! Debug information of an object: where it is, and reading it.

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

/// Debug information of an object, its own or from a separate file.
pub struct Debug {
    /// Separate file that was found, if one was needed.
    pub file: Option<PathBuf>,
    pub file_elf: Option<Elf>,
    pub info: Option<DebugInfo>,
}

pub struct DebugInfo {
    pub dwarf: Arc<Dwarf>,
    /// All sections together, in bytes.
    pub size: u64,
    pub traits: Traits,
    lines: OnceCell<Option<addr2line::Context<Slice>>>,
    /// A limit was reached when these were made.
    lines_cut: Cell<bool>,
    pub index: OnceCell<Option<Index>>,
    pub split: Split,
}

impl DebugInfo {
    /// Lines and functions by address. All units are begun to be read for it, so it is made when the first address is
    /// asked for.
    pub fn lines(&self) -> Option<&addr2line::Context<Slice>> {
        let lines = self.lines.get_or_init(|| {
            let work = Work::through(self.size);
            let lines = addr2line::Context::from_arc_dwarf(self.dwarf.clone()).ok();
            self.lines_cut.set(work.is_over());
            lines
        });
        lines.as_ref()
    }

    /// Did it take too long to read?
    pub fn is_cut(&self) -> bool {
        let index = self.index.get().and_then(Option::as_ref);
        self.lines_cut.get() || index.is_some_and(Index::is_cut)
    }
}

impl Debug {
    /// Looks for it: in the object at `path` itself, then in separate files, at last in what servers have.
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
            // Most of them are not there; why another one is not read is worth to be told.
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

/// What shows that a file belongs to the object.
enum Proof {
    Crc(u32),
    /// It is installed here, and has the object's build ID.
    BuildId,
    /// It is ours, from a server, and has the object's build ID.
    Fetched,
}

/// What a server has for the object.
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

/// Where the separate file of an object at `real` may be.
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
        // The name of a file, in folders that are known: it does not say where to look.
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

/// `path` is where the file with the debug information is.
fn load_dwarf(elf: &Elf, source: &Source, path: &Path) -> Option<DebugInfo> {
    let size = Cell::new(0u64);
    let load = |elf: &Elf, id: gimli::SectionId| {
        let data = section(elf, id.name());
        size.set(size.get() + data.len() as u64);
        Ok::<_, gimli::Error>(data)
    };
    let mut dwarf = Dwarf::load(|id| load(elf, id)).ok()?;
    // What several packages' debug files share was moved to a supplementary file by dwz.
    if let Ok(Some((name, id))) = elf.gnu_debugaltlink() {
        let name = Path::new(std::str::from_utf8(name).unwrap_or(""));
        let beside = path.parent().map(|dir| dir.join(name));
        let installed = beside.iter().filter_map(|file| installed_name(file));
        let installed = installed.chain(build_id_path(id));
        // By the name that it is given, with the rights of whoever gives it; or where such files are installed.
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
