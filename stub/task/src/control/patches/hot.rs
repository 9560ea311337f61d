//! Which accesses were hot in earlier runs: kept by build ID in the user's cache folder, so that the next run need not learn
//! it by some faults of each (`ulpf_lib::hot`: what stands in a file).
//!
//! An entry is a hint. It counts where an access would be patched anyway some faults later, and the code has the bytes that it
//! had: those of an instruction that has been there, in a file of that build ID. What is served with the first fault in a
//! page of code are all of that page, for the world rests once for them.
//!
//! The stub reads and writes the files itself, by the names that the program sees: it has the program's rights and no others.
//! Without a folder that is the user's alone there are no hints, and nobody misses them.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::errno::{EACCES, EFBIG, EIO};
use linux_raw_sys::general as k;
use ulpf_engine::patch::{Part, What};
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::guard::maps::Snapshot;
use ulpf_lib::hot::{ENTRY, Entry, MAGIC, MOST};
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;
use ulpf_stub_handlers::global::boot_block;
use ulpf_stub_handlers::{patches, warm};
use ulpf_stub_tables::patches::Patch;

use crate::control::functions::Object;
use crate::control::text;

/// So many new ones are worth a file, or so many for each that was known.
const WORTH: usize = 16;

/// What is known of the files that the program consists of.
#[derive(Default)]
pub(super) struct Hot {
    files: Vec<File>,
}

/// A file with code that has met watched pages.
struct File {
    start: u64,
    end: u64,
    bias: u64,
    /// `None`: it has no build ID.
    name: Option<String>,
    /// Where accesses were hot that have no patch yet.
    hints: BTreeMap<u64, Entry>,
    /// How many were read.
    had: usize,
}

impl Hot {
    /// Is it kept at all?
    fn folder() -> Option<&'static [u8]> {
        // SAFETY: written before the stub ran, and never changed.
        let cache = unsafe { &(*boot_block()).cache };
        let len = cache.iter().position(|byte| *byte == 0)?;
        cache.get(..=len).filter(|_| len > 0)
    }

    /// The file that the code at `pc` is of is known from now on.
    pub(super) fn look(&mut self, pc: u64, maps: &Snapshot) {
        let known = |f: &File| (f.start..f.end).contains(&pc);
        if self.files.iter().any(known) {
            return;
        }
        let Some(folder) = Hot::folder() else {
            return;
        };
        if !maps.at(pc).is_some_and(text::may_patch) {
            return;
        }
        let Some(object) = Object::at(maps.index(pc), maps) else {
            return;
        };
        let name = object.build_id().map(|id| {
            let mut name = String::new();
            for byte in id {
                let _ = write!(name, "{byte:02x}");
            }
            name + ".hot\0"
        });
        let bytes = name.as_ref().and_then(|name| {
            let folder = Folder::open(folder).ok()?;
            folder.get(name.as_bytes()).ok()
        });
        let hints = bytes.map(|bytes| read(&bytes, &object)).unwrap_or_default();
        for at in hints.keys() {
            warm::hint(*at, true);
        }
        self.files.push(File {
            start: object.start,
            end: object.end,
            bias: object.bias,
            name,
            had: hints.len(),
            hints,
        });
        warm::KEPT.store(true, Relaxed);
    }

    /// Accesses in this page of code that were hot in an earlier run and whose code (from its beginning on) is the same; only
    /// those that store, or all. They are hints no more.
    pub(super) fn take(&mut self, page: u64, code: &[u8], loads: bool) -> Vec<u64> {
        warm::hint(page, false);
        let within = |f: &&mut File| (f.start..f.end).contains(&page);
        let Some(file) = self.files.iter_mut().find(within) else {
            return Vec::new();
        };
        let hints = file.hints.range(page..page + PAGE_SIZE);
        let wanted = hints.filter(|(_, hint)| loads || hint.stores());
        let wanted: Vec<(u64, Entry)> = wanted.map(|(at, hint)| (*at, *hint)).collect();
        for (at, _) in &wanted {
            file.hints.remove(at);
        }
        let same =
            |at: u64, hint: Entry| code.get((at - page) as usize..).is_some_and(|c| hint.is(c));
        let same = wanted.into_iter().filter(|(at, hint)| same(*at, *hint));
        same.map(|(at, _)| at).collect()
    }

    /// Other code will lie there.
    pub(super) fn forget(&mut self, start: u64, end: u64) {
        self.files.retain(|f| f.end <= start || end <= f.start);
    }

    /// The program ends, or executes another one: writes down which accesses are hot. (What cannot be kept is learned again.)
    pub(super) fn keep(&self) {
        let folder = Hot::folder().filter(|_| !self.files.is_empty());
        let Some(folder) = folder.and_then(|path| Folder::open(path).ok()) else {
            return;
        };
        for file in &self.files {
            let Some(name) = &file.name else { continue };
            let (now, had) = (file.count(), file.had);
            if now > had + WORTH + had / 16 || now + WORTH + had / 4 < had {
                let _ = folder.put(name, &file.entries());
            }
        }
    }
}

impl File {
    /// Its accesses that are hot.
    fn hot(&self) -> impl Iterator<Item = (&'static Patch, &'static Part)> {
        let patches = patches::table().within(self.start..self.end);
        let there = patches.filter(|p| p.is_in_place());
        there
            .flat_map(|p| p.group.parts.iter().map(move |part| (p, part)))
            .filter(|(_, part)| part.is_looked_at())
    }

    /// How many entries it should have.
    fn count(&self) -> usize {
        let others = self
            .hot()
            .filter(|(_, part)| !self.hints.contains_key(&part.at));
        (self.hints.len() + others.count()).min(MOST)
    }

    /// What it should be known for in the next run.
    fn entries(&self) -> Vec<Entry> {
        let mut all = self.hints.clone();
        let hot = self.hot();
        all.extend(hot.filter_map(|(p, part)| Some((part.at, self.entry(p, part)?))));
        all.into_values().take(MOST).collect()
    }

    /// What is to be known of a part of this patch.
    fn entry(&self, p: &Patch, part: &Part) -> Option<Entry> {
        let offset = u32::try_from(part.at.wrapping_sub(self.bias)).ok()?;
        let code = p.group.bytes.get((part.at - p.start()) as usize..)?;
        let stores = match part.what {
            What::Repeated(_) => true,
            _ => part.access()?.mem().kind.writes(),
        };
        Some(Entry::new(offset, code.get(..part.len.into())?, stores))
    }
}

/// The hints in a file's bytes. Whatever these are, no hint lies elsewhere than in that object.
fn read(bytes: &[u8], object: &Object) -> BTreeMap<u64, Entry> {
    let entries = bytes.strip_prefix(MAGIC).unwrap_or(&[]);
    let entries = entries.chunks_exact(ENTRY).take(MOST);
    let entries = entries.filter_map(|entry| {
        let entry = Entry(u64::from_le_bytes(entry.try_into().ok()?));
        let at = object.bias.checked_add(entry.offset().into())?;
        let within = (object.start..object.end).contains(&at);
        within.then_some((at, entry))
    });
    entries.collect()
}

/// A folder that belongs to the user alone.
struct Folder(u64);

impl Drop for Folder {
    fn drop(&mut self) {
        close(self.0);
    }
}

fn close(fd: u64) {
    // SAFETY: a descriptor of our own.
    let _ = unsafe { sys!(k::__NR_close, fd) };
}

/// What this is, if it is the user's, and nobody else may write to it.
fn own(fd: u64) -> Result<k::stat, Errno> {
    let mut stat = MaybeUninit::<k::stat>::uninit();
    // SAFETY: fills all of `stat`, of which any pattern is valid.
    let (stat, user) = unsafe {
        sys!(k::__NR_fstat, fd, stat.as_mut_ptr())?;
        (stat.assume_init(), sys!(k::__NR_geteuid)?)
    };
    let own = u64::from(stat.st_uid) == user && stat.st_mode & 0o022 == 0;
    own.then_some(stat).ok_or(Errno(EACCES as i32))
}

impl Folder {
    /// `path` ends with a NUL.
    fn open(path: &[u8]) -> Result<Folder, Errno> {
        let flags = k::O_RDONLY | k::O_DIRECTORY | k::O_NOFOLLOW | k::O_CLOEXEC;
        // SAFETY: a NUL-terminated path; a descriptor of the stub's own table.
        let fd = unsafe { sys!(k::__NR_openat, k::AT_FDCWD, path.as_ptr(), flags, 0) }?;
        let folder = Folder(fd);
        own(fd)?;
        Ok(folder)
    }

    /// The bytes of a file. `name` ends with a NUL.
    fn get(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let flags = k::O_RDONLY | k::O_NOFOLLOW | k::O_NONBLOCK | k::O_CLOEXEC;
        // SAFETY: as above.
        let fd = unsafe { sys!(k::__NR_openat, self.0, name.as_ptr(), flags, 0) }?;
        let bytes = contents(fd);
        close(fd);
        bytes
    }

    /// Whoever reads it meanwhile sees all of it or what was there before; of several who write it, one wins.
    fn put(&self, name: &str, entries: &[Entry]) -> Result<(), Errno> {
        // SAFETY: asks for the number of this process.
        let pid = unsafe { sys!(k::__NR_getpid) }?;
        let new = format!(".{}.{pid}.new\0", name.trim_end_matches('\0'));
        let flags = k::O_WRONLY | k::O_CREAT | k::O_EXCL | k::O_NOFOLLOW | k::O_CLOEXEC;
        let mut bytes = MAGIC.to_vec();
        for entry in entries {
            bytes.extend_from_slice(&entry.0.to_le_bytes());
        }
        // SAFETY: NUL-terminated names; descriptors of the stub's own table; reads `bytes`.
        unsafe {
            // What an earlier process of that number has left.
            let _ = sys!(k::__NR_unlinkat, self.0, new.as_ptr(), 0);
            let fd = sys!(k::__NR_openat, self.0, new.as_ptr(), flags, 0o600)?;
            let written = sys!(k::__NR_write, fd, bytes.as_ptr(), bytes.len());
            close(fd);
            let done = match written {
                Ok(n) if n as usize == bytes.len() => sys!(
                    k::__NR_renameat,
                    self.0,
                    new.as_ptr(),
                    self.0,
                    name.as_ptr()
                ),
                Ok(_) => Err(Errno(EIO as i32)),
                Err(e) => Err(e),
            };
            if done.is_err() {
                let _ = sys!(k::__NR_unlinkat, self.0, new.as_ptr(), 0);
            }
            done.map(drop)
        }
    }
}

fn contents(fd: u64) -> Result<Vec<u8>, Errno> {
    let stat = own(fd)?;
    let is_file = stat.st_mode & k::S_IFMT == k::S_IFREG;
    let len = stat.st_size as usize;
    if !is_file || len > MAGIC.len() + MOST * ENTRY {
        return Err(Errno(EFBIG as i32));
    }
    let mut bytes = alloc::vec![0; len];
    // SAFETY: fills `bytes` at most.
    let read = unsafe { sys!(k::__NR_read, fd, bytes.as_mut_ptr(), len) }?;
    bytes.truncate(read as usize);
    Ok(bytes)
}
