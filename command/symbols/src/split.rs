//! Split debug information (`-gsplit-dwarf`): `.dwo` files, one for each unit, or one package of them (`PROGRAM.dwp`).
//!
//! ```text
//!   PROGRAM  .debug_info     skeleton unit: dwo_id, dwo_name, comp_dir, addr_base ── names ──▶ FILE.dwo
//!            .debug_addr  ◀── indices ────────────────────────────────────────────────────── .debug_info.dwo
//!   PROGRAM.dwp  .debug_cu_index: dwo_id ──▶ its part of each section
//! ```
//! The id proves that a file belongs to the unit (DWARF 5, 7.3.2), so the file's location does not matter.

use crate::dwarf::{Dwarf, shared, traits};
use crate::elf::{Elf, joined_contents, parse_elf};
use crate::image::Image;
use crate::slice::Slice;
use crate::source::Source;
use gimli::{AbbreviationsCacheStrategy, DwoId};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Limit of `.dwo` files of one object; a browser has about thirty thousand.
const MOST_FILES: usize = 1 << 17;

/// Finds and keeps the split units of one object.
pub struct Split {
    source: Source,
    /// The file with the skeleton units.
    path: PathBuf,
    package: OnceCell<Option<gimli::DwarfPackage<Slice>>>,
    known: RefCell<HashMap<u64, Option<Arc<Dwarf>>>>,
    /// Number of bytes read.
    size: Cell<u64>,
    /// Why the first missing file could not be read.
    trouble: RefCell<Option<String>>,
}

impl Split {
    pub fn of(source: &Source, path: &Path) -> Split {
        Split {
            source: source.clone(),
            path: path.into(),
            package: OnceCell::new(),
            known: RefCell::default(),
            size: Cell::new(0),
            trouble: RefCell::default(),
        }
    }

    /// Number of bytes read so far.
    pub fn size(&self) -> u64 {
        self.size.get()
    }

    pub fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    /// The split unit of a skeleton unit in `parent`.
    pub fn of_unit(&self, parent: &Dwarf, skeleton: &gimli::Unit<Slice>) -> Option<Arc<Dwarf>> {
        let id = skeleton.dwo_id?;
        let name = skeleton.dwo_name().ok().flatten();
        let name = name.and_then(|name| parent.attr_string(skeleton, name).ok());
        self.find(parent, id, skeleton.comp_dir, name)
    }

    /// The split unit with this id. The compiler has written it to `name` in the folder `dir`.
    pub fn find(
        &self,
        parent: &Dwarf,
        id: DwoId,
        dir: Option<Slice>,
        name: Option<Slice>,
    ) -> Option<Arc<Dwarf>> {
        if let Some(known) = self.known.borrow().get(&id.0) {
            return known.clone();
        }
        if self.known.borrow().len() >= MOST_FILES {
            self.note(|| format!("there are more than {MOST_FILES} of them"));
            return None;
        }
        let found = self
            .in_package(parent, id)
            .or_else(|| self.in_file(parent, id, dir, name));
        let found = found.map(shared);
        self.known.borrow_mut().insert(id.0, found.clone());
        found
    }

    /// Type units of the package; each has sections of its own.
    pub fn types(&self, parent: &Dwarf) -> Vec<Arc<Dwarf>> {
        let Some(package) = self.package() else {
            return Vec::new();
        };
        let count = package.tu_index.unit_count().min(MOST_FILES as u32);
        let unit = |n| self.checked(package.tu_sections(n, parent).ok()?);
        (1..=count).filter_map(unit).map(shared).collect()
    }

    fn in_package(&self, parent: &Dwarf, id: DwoId) -> Option<Dwarf> {
        let found = self.package()?.find_cu(id, parent).ok()??;
        self.checked(found)
    }

    fn package(&self) -> Option<&gimli::DwarfPackage<Slice>> {
        self.package.get_or_init(|| self.open_package()).as_ref()
    }

    /// `PROGRAM.dwp`, beside the program or its debug file.
    fn open_package(&self) -> Option<gimli::DwarfPackage<Slice>> {
        let mut name = self.path.clone().into_os_string();
        name.push(".dwp");
        let mut names = vec![PathBuf::from(name)];
        // (`x.debug` has `x.dwp`.)
        if self.path.extension().is_some_and(|e| e == "debug") {
            names.push(self.path.with_extension("dwp"));
        }
        let elf = names.iter().find_map(|name| self.open(name))?;
        let load = |id| Ok::<_, gimli::Error>(self.section(&elf, id));
        match gimli::DwarfPackage::load(load, Slice::new(&[])) {
            Ok(package) => Some(package),
            Err(error) => {
                self.note(|| format!("{}: {error}", names[0].display()));
                None
            }
        }
    }

    fn in_file(
        &self,
        parent: &Dwarf,
        id: DwoId,
        dir: Option<Slice>,
        name: Option<Slice>,
    ) -> Option<Dwarf> {
        let text = |slice: Slice| std::str::from_utf8(slice.bytes()).ok();
        let name = Path::new(name.and_then(text)?);
        let dir = dir.and_then(text).map_or(Path::new(""), Path::new);
        let beside = self.path.parent().unwrap_or(Path::new("/"));
        let mut names = vec![dir.join(name)];
        // If the program was built elsewhere, its files may be beside it now.
        if name.is_relative() {
            names.push(beside.join(name));
        }
        names.extend(name.file_name().map(|file| beside.join(file)));
        for name in &names {
            if !name.is_absolute() {
                continue;
            }
            let Some(elf) = self.open(name) else { continue };
            let load = |id: gimli::SectionId| Ok::<_, gimli::Error>(self.section(&elf, id));
            let Ok(mut dwarf) = Dwarf::load(load) else {
                continue;
            };
            dwarf.make_dwo(parent);
            let Some(dwarf) = self.checked(dwarf) else {
                continue;
            };
            let mut units = dwarf.units();
            while let Ok(Some(header)) = units.next() {
                let unit = dwarf.unit(header);
                if unit.is_ok_and(|unit| unit.dwo_id == Some(id)) {
                    return Some(dwarf);
                }
            }
            self.note(|| format!("{} is of another build", name.display()));
        }
        self.note(|| format!("there is no {}", names[0].display()));
        None
    }

    fn open(&self, name: &Path) -> Option<Elf> {
        let file = match self.source.open(name) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => {
                self.note(|| format!("{}: {error}", name.display()));
                return None;
            }
        };
        match parse_elf(Image::of_file(file)) {
            Ok(elf) => Some(elf),
            Err(why) => {
                self.note(|| format!("{}: {why}", name.display()));
                None
            }
        }
    }

    fn section(&self, elf: &Elf, id: gimli::SectionId) -> Slice {
        let name = id.dwo_name();
        let data = name.and_then(|name| joined_contents(elf, name));
        let data = data.unwrap_or(&[]);
        self.size.set(self.size.get() + data.len() as u64);
        Slice::new(data)
    }

    fn checked(&self, mut dwarf: Dwarf) -> Option<Dwarf> {
        if traits(&dwarf).too_many {
            self.note(|| "its entries have too many attributes".into());
            return None;
        }
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
        Some(dwarf)
    }

    fn note(&self, why: impl FnOnce() -> String) {
        self.trouble.borrow_mut().get_or_insert_with(why);
    }
}
