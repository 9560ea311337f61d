//! Hints: where earlier runs found names. They are kept by build ID in the user's cache folder, so that the second run
//! of a large program need not search again.
//!
//! ```text
//!     ~/.cache/ulpf/BUILD-ID.names, JSON:
//!       file      version of ulpf; build ID; device, inode, length, times of the file: if one differs, all are ignored
//!       names     each: name, path; where the units begin that mention it; where it stands in .debug_str
//! ```
//! A hint only says where to look. The variables are read from the debug information by name, as after a search. If a
//! hint does not lead to a variable of the path, everything is searched. So a hint may contain anything.
//!
//! A name's second variable could be missing in a hint only if the file had changed while its inode, length and times
//! had not. Only the kernel sets the last of these times, and hints for a file that has changed within the last seconds
//! are not kept.

#[cfg(test)]
use self::tests::folder;
use crate::elf::Elf;
use crate::source::MOST_BUILD_ID;
use object::Object;
use serde::{Deserialize, Serialize};
use std::cell::{OnceCell, RefCell};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
#[cfg(not(test))]
use ulpf_host::cache::folder;
use ulpf_host::cache::{Folder, is_on};
use ulpf_host::foreign::files::State;

/// With the value `off`, hints are neither written nor read.
const SWITCH: &str = "ULPF_SYMBOL_CACHE";
const SUFFIX: &str = ".names";
/// Limit of a file's length in bytes; `MOST_NAMES` names fit into it.
const MOST_BYTES: u64 = 1 << 20;
/// Limit of names in one file.
const MOST_NAMES: usize = 64;
/// Limit of units, and of places, of one name.
const MOST_OF_ONE: usize = 1 << 13;
/// Limit of files; the newest remain.
const MOST_FILES: usize = 32;
/// A faster search is not worth a hint.
pub const LONG: Duration = Duration::from_millis(if cfg!(test) { 0 } else { 500 });
/// A file that has changed since then may change again without a new timestamp.
const SETTLED: Duration = Duration::from_secs(if cfg!(test) { 0 } else { 2 });

/// Hints for one object file.
pub struct Hints {
    place: Option<Place>,
    known: OnceCell<RefCell<Vec<Hint>>>,
}

/// The location of the hints.
struct Place {
    folder: PathBuf,
    name: String,
    file: Key,
    elf: &'static crate::image::Image,
}

/// The object file and its state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Key {
    version: String,
    build_id: String,
    device: u64,
    inode: u64,
    len: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

/// Where one name was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hint {
    pub name: String,
    pub path: String,
    /// For each unit: whether it is in .debug_types, and its offset in the section.
    pub units: Vec<(bool, u64)>,
    /// Offsets in .debug_str.
    pub places: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    file: Key,
    names: Vec<Hint>,
}

/// The folder for hints, unless the user has switched them off.
fn place() -> Option<PathBuf> {
    folder().filter(|_| is_on(SWITCH))
}

impl Hints {
    /// The hints for an ELF file's debug information. A file without a build ID has no hints.
    pub fn of(elf: &Elf) -> Hints {
        let place = || {
            let id = elf.build_id().ok().flatten()?;
            let state = elf.data().file()?.state;
            let usual = (1..=MOST_BUILD_ID).contains(&id.len());
            Some(Place {
                folder: place().filter(|_| usual)?,
                name: hex(id) + SUFFIX,
                file: Key::of(id, state),
                elf: elf.data(),
            })
        };
        Hints {
            place: place(),
            known: OnceCell::new(),
        }
    }

    fn known(&self) -> &RefCell<Vec<Hint>> {
        self.known.get_or_init(|| {
            let known = self.place.as_ref().and_then(Place::read);
            RefCell::new(known.unwrap_or_default())
        })
    }

    /// The hint for a name.
    pub fn get(&self, path: &str, name: &str) -> Option<Hint> {
        let known = self.known().borrow();
        let mut known = known.iter();
        let hint = known.find(|hint| hint.path == path && hint.name == name);
        hint.cloned()
    }

    /// Keeps a hint for a name whose search took long. Errors are ignored.
    pub fn keep(&self, hint: Hint) {
        let count = hint.units.len().max(hint.places.len());
        if let Some(place) = &self.place
            && count <= MOST_OF_ONE
        {
            let _ = place.keep(hint);
        }
    }
}

impl Key {
    fn of(id: &[u8], state: State) -> Key {
        Key {
            version: env!("CARGO_PKG_VERSION").into(),
            build_id: hex(id),
            device: state.device,
            inode: state.inode,
            len: state.len,
            written: state.written,
            changed: state.changed,
        }
    }

    /// Whether the file has been unchanged for a while.
    fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let changed = u64::try_from(self.changed.0).map(Duration::from_secs);
        let since = now
            .ok()
            .zip(changed.ok())
            .and_then(|(now, then)| now.checked_sub(then));
        since.is_some_and(|since| since >= SETTLED)
    }
}

/// Parses a hint file. Returns `None` if it is damaged or belongs to another object file.
fn parse(bytes: &[u8], file: &Key) -> Option<Vec<Hint>> {
    let kept: Kept = serde_json::from_slice(bytes).ok()?;
    let few = kept.names.len() <= MOST_NAMES;
    let short = |hint: &Hint| hint.units.len().max(hint.places.len()) <= MOST_OF_ONE;
    (kept.file == *file && few && kept.names.iter().all(short)).then_some(kept.names)
}

impl Place {
    fn read(&self) -> Option<Vec<Hint>> {
        let folder = Folder::open(&self.folder).ok()?;
        parse(&folder.get(&self.name, MOST_BYTES).ok()?, &self.file)
    }

    fn keep(&self, hint: Hint) -> std::io::Result<()> {
        let file = self.elf.file();
        let is_the_same = file.is_some_and(|file| file.is_unchanged());
        if !is_the_same || !self.file.is_settled() || self.elf.trouble().is_some() {
            return Ok(());
        }
        let folder = Folder::make(&self.folder)?;
        // (Other processes may have added to it.)
        let mut names = self.read().unwrap_or_default();
        names.retain(|known| known.path != hint.path || known.name != hint.name);
        names.insert(0, hint);
        names.truncate(MOST_NAMES);
        let mut kept = Kept {
            file: self.file.clone(),
            names,
        };
        let bytes = loop {
            let bytes = serde_json::to_vec(&kept)?;
            if bytes.len() as u64 <= MOST_BYTES {
                break bytes;
            }
            kept.names.pop();
        };
        folder.put(&self.name, |mut to| to.write_all(&bytes))?;
        folder.clear(SUFFIX, MOST_FILES);
        Ok(())
    }
}

fn hex(id: &[u8]) -> String {
    let mut text = String::new();
    for byte in id {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests;
