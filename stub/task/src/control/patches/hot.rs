//! Accesses that were hot in earlier runs. They are kept by build ID in the user's cache folder. So the next run does
//! not have to learn each by several faults. (The format of a file is in `ulpf_lib::hot`.)
//!
//! An entry is a hint, and may be wrong. It is used only where the access would be patched anyway after some more
//! faults, and under two conditions:
//! - Its page of code has exactly the bytes that it had. A build ID is only the file's own claim.
//! - An instruction begins there, as all instructions since the beginning of its function show ([`Proof`]).
//!
//! The first fault in a page of code serves all entries of that page, since the world stops once for all of them.
//!
//! The stub reads and writes the files itself, by the names that the program sees: it has the program's rights and no
//! others. Without a folder that belongs to the user alone there are no hints, which is not an error.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::*;

use linux_raw_sys::errno::{EACCES, EFBIG, EIO};
use linux_raw_sys::general as k;
use ulpf_engine::access::layout::Layout;
use ulpf_engine::patch::{Part, What};
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::guard::maps::Snapshot;
use ulpf_lib::hot::{ENTRY, Entry, MAGIC, MOST, PAGE, Page, code_hash, pages};
use ulpf_lib::sys;
use ulpf_lib::sys::Errno;
use ulpf_stub_handlers::global::boot_block;
use ulpf_stub_handlers::{engine, hot_sites, patches};
use ulpf_stub_tables::edit::Edit;
use ulpf_stub_tables::patches::Patch;

use crate::control::functions::{self, Object};
use crate::control::text;

/// A file is written for more new entries than this, plus one for this many known entries.
const WORTH: usize = 16;

/// The files of the program that are known.
#[derive(Default)]
pub(super) struct Hot {
    files: Vec<File>,
}

/// A file with code that has met watched pages.
struct File {
    object: Object,
    /// `None`: it has no build ID.
    name: Option<String>,
    /// Hot accesses that have no patch yet, by address.
    hints: BTreeMap<u64, Entry>,
    /// A hash of the code in each of their pages.
    pages: BTreeMap<u64, u64>,
    /// Number of entries that were read.
    had: usize,
}

impl Hot {
    /// The folder, or `None` if hot accesses are not kept.
    fn folder() -> Option<&'static [u8]> {
        // SAFETY: written before the stub ran, and never changed.
        let cache = unsafe { &(*boot_block()).cache };
        let len = cache.iter().position(|byte| *byte == 0)?;
        cache.get(..=len).filter(|_| len > 0)
    }

    /// Remembers the file of the code at `pc`.
    pub(super) fn look(&mut self, pc: u64, maps: &Snapshot) {
        let known = |f: &File| f.holds(pc);
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
        let read = bytes.map(|bytes| read(&bytes, &object));
        let (hints, pages) = read.unwrap_or_default();
        for at in hints.keys() {
            hot_sites::hint(*at, true);
        }
        self.files.push(File {
            object,
            name,
            had: hints.len(),
            hints,
            pages,
        });
        hot_sites::KEPT.store(true, Relaxed);
    }

    /// Accesses in this page of code that were hot in an earlier run and whose code (from its beginning on) is the
    /// same: only stores, or all. The instruction at `pc`, in this page, has been executed. Removes the accesses from
    /// the hints.
    pub(super) fn take(&mut self, page: u64, pc: u64, code: &[u8], loads: bool) -> Vec<u64> {
        hot_sites::hint(page, false);
        let Some(file) = self.files.iter_mut().find(|f| f.holds(page)) else {
            return Vec::new();
        };
        let hints = file.hints.range(page..page + PAGE_SIZE);
        let wanted = hints.filter(|(_, hint)| loads || hint.stores());
        let wanted: Vec<(u64, Entry)> = wanted.map(|(at, hint)| (*at, *hint)).collect();
        for (at, _) in &wanted {
            file.hints.remove(at);
        }
        if file.pages.get(&page) != Some(&hash(code)) {
            return Vec::new();
        }
        let mut proof = Proof::new(&file.object, pc, page + PAGE_SIZE);
        let same =
            |at: u64, hint: Entry| code.get((at - page) as usize..).is_some_and(|c| hint.is(c));
        let same = wanted.into_iter().filter(|(at, hint)| same(*at, *hint));
        let begins = same.filter(|(at, _)| proof.begins(*at));
        begins.map(|(at, _)| at).collect()
    }

    /// Forgets code that will be replaced.
    pub(super) fn forget(&mut self, start: u64, end: u64) {
        self.files
            .retain(|f| f.object.end <= start || end <= f.object.start);
    }

    /// The program ends, or executes another one: writes down which accesses are hot. (The next run learns the rest
    /// again.)
    pub(super) fn keep(&self) {
        let folder = Hot::folder().filter(|_| !self.files.is_empty());
        let Some(folder) = folder.and_then(|path| Folder::open(path).ok()) else {
            return;
        };
        for file in &self.files {
            let Some(name) = &file.name else { continue };
            let (now, had) = (file.count(), file.had);
            if now > had + WORTH + had / 16 || now + WORTH + had / 4 < had {
                let _ = folder.put(name, &file.to_bytes());
            }
        }
    }
}

/// Hash of a page of code, or of the part of it that exists.
fn hash(code: &[u8]) -> u64 {
    code_hash(code.get(..PAGE_SIZE as usize).unwrap_or(code))
}

impl File {
    fn holds(&self, at: u64) -> bool {
        (self.object.start..self.object.end).contains(&at)
    }

    /// Its accesses that are hot.
    fn hot(&self) -> impl Iterator<Item = (&'static Patch, &'static Part)> {
        let patches = patches::list().within(self.object.start..self.object.end);
        let there = patches.filter(|p| p.is_in_place());
        there
            .flat_map(|p| p.group.parts.iter().map(move |part| (p, part)))
            .filter(|(_, part)| part.is_looked_at())
    }

    /// Number of entries that its file should have.
    fn count(&self) -> usize {
        let others = self
            .hot()
            .filter(|(_, part)| !self.hints.contains_key(&part.at));
        (self.hints.len() + others.count()).min(MOST)
    }

    /// Contents of its file for the next run.
    fn to_bytes(&self) -> Vec<u8> {
        let mut all = self.hints.clone();
        let hot = self.hot();
        all.extend(hot.filter_map(|(p, part)| Some((part.at, self.entry(p, part)?))));
        let mut by_page: BTreeMap<u64, Vec<Entry>> = BTreeMap::new();
        for (at, entry) in all.into_iter().take(MOST) {
            let page = at & !(PAGE_SIZE - 1);
            by_page.entry(page).or_default().push(entry);
        }
        let mut bytes = MAGIC.to_vec();
        for (page, mut entries) in by_page {
            let code = hash(&functions::block(page, PAGE_SIZE as usize));
            if self.pages.get(&page).is_some_and(|kept| *kept != code) {
                // Of replaced code, only patched accesses are known.
                entries.retain(|e| !self.hints.values().any(|hint| hint == e));
            }
            let Ok(offset) = u32::try_from(page.wrapping_sub(self.object.bias)) else {
                continue;
            };
            let head = Page {
                offset,
                entries: entries.len() as u32,
                code,
            };
            bytes.extend_from_slice(&head.to_bytes());
            for entry in entries {
                bytes.extend_from_slice(&entry.0.to_le_bytes());
            }
        }
        bytes
    }

    /// The entry for a part of this patch.
    fn entry(&self, p: &Patch, part: &Part) -> Option<Entry> {
        let offset = u32::try_from(part.at.wrapping_sub(self.object.bias)).ok()?;
        let code = p.group.bytes.get((part.at - p.start()) as usize..)?;
        let stores = match part.what {
            What::Repeated(_) => true,
            _ => part.access()?.mem().kind.writes(),
        };
        Some(Entry::new(offset, code.get(..part.len.into())?, stores))
    }
}

/// The hints in a file's bytes, and the hashes of their pages. Whatever the bytes are, each hint is inside that object.
fn read(bytes: &[u8], object: &Object) -> (BTreeMap<u64, Entry>, BTreeMap<u64, u64>) {
    let (mut hints, mut hashes) = (BTreeMap::new(), BTreeMap::new());
    let place = |offset: u32| {
        let at = object.bias.checked_add(offset.into())?;
        (object.start..object.end).contains(&at).then_some(at)
    };
    for (page, entries) in pages(bytes) {
        let Some(start) = place(page.offset).filter(|at| at % PAGE_SIZE == 0) else {
            continue;
        };
        hashes.insert(start, page.code);
        let within = start..start + PAGE_SIZE;
        let entries = entries.filter_map(|e| Some((place(e.offset())?, e)));
        hints.extend(entries.filter(|(at, _)| within.contains(at)));
    }
    (hints, hashes)
}

/// Shows where instructions begin: each begins where the one before it ends, from the beginning of their function on,
/// which unwind tables know. Without tables, the first is an instruction that was executed, and the last is one behind
/// which execution does not continue.
struct Proof<'a> {
    object: &'a Object,
    /// Where an instruction has been executed.
    executed: u64,
    /// Instructions from here on are not needed.
    end: u64,
    /// Range of the function that was examined last.
    function: (u64, u64),
    /// Its code, and the address where that begins.
    code: Vec<u8>,
    start: u64,
    /// The next instruction to be examined, whose beginning is known. `None`: there is nothing more to examine.
    next: Option<u64>,
    /// The beginning of its function is known from unwind tables.
    whole: bool,
}

impl<'a> Proof<'a> {
    fn new(object: &'a Object, executed: u64, end: u64) -> Proof<'a> {
        Proof {
            object,
            executed,
            end,
            function: (0, 0),
            code: Vec::new(),
            start: 0,
            next: None,
            whole: false,
        }
    }

    /// Asked with ascending addresses.
    fn begins(&mut self, at: u64) -> bool {
        if !(self.function.0..self.function.1).contains(&at) {
            self.enter(at);
        }
        while let Some(next) = self.next.filter(|next| *next < at) {
            self.next = self.behind(next);
        }
        self.next == Some(at)
    }

    /// Reads the function that holds `at`.
    fn enter(&mut self, at: u64) {
        let function = self.object.function(at);
        self.whole = function.is_some();
        self.function = function.unwrap_or((self.executed, self.end));
        self.start = self.function.0;
        let len = self.end.min(self.function.1).saturating_sub(self.start);
        self.code = functions::block(self.start, len as usize);
        self.next = (self.start <= at).then_some(self.start);
    }

    /// The end of the instruction at `at`, if another one begins there.
    fn behind(&self, at: u64) -> Option<u64> {
        let code = self.code.get((at - self.start) as usize..)?;
        let code = code.get(..code.len().min(15))?;
        let layout = Layout::parse(code)?;
        let length = layout.length().or_else(|| {
            let decoded = engine::decode(at, code)?;
            Some(usize::from(decoded.len))
        })?;
        (self.whole || layout.goes_on()).then_some(at + length as u64)
    }
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

/// Status of the file or folder, if the user owns it and no other user may write to it.
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

    /// Replaces the file. A concurrent reader sees the whole new contents or the old ones; of several writers, one
    /// wins.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), Errno> {
        // SAFETY: asks for the number of this process.
        let pid = unsafe { sys!(k::__NR_getpid) }?;
        let new = format!(".{}.{pid}.new\0", name.trim_end_matches('\0'));
        let flags = k::O_WRONLY | k::O_CREAT | k::O_EXCL | k::O_NOFOLLOW | k::O_CLOEXEC;
        // SAFETY: NUL-terminated names; descriptors of the stub's own table; reads `bytes`.
        unsafe {
            // An earlier process with this number may have left it.
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
    if !is_file || len > MAGIC.len() + MOST * (ENTRY + PAGE) {
        return Err(Errno(EFBIG as i32));
    }
    let mut bytes = alloc::vec![0; len];
    // SAFETY: fills `bytes` at most.
    let read = unsafe { sys!(k::__NR_read, fd, bytes.as_mut_ptr(), len) }?;
    bytes.truncate(read as usize);
    Ok(bytes)
}
