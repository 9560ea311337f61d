//! Ended sessions: their areas, saved in files for `ulpf last`.
//!
//! ```text
//! ~/.cache/ulpf/PID.session:   "ULPFKEPT" | length of the head | head, JSON | (offset, length, bytes)…
//! ```
//! A file holds only the used parts of an area, and no page that was never touched. The newest few files are kept, for
//! this user alone, until the machine restarts: their times are those of this boot's clock. [`ulpf_host::cache`] checks
//! the owner of the folder.

use crate::shared::{NAME, SharedArea};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::SystemTime;
use ulpf_host::cache::{Folder, folder};
use ulpf_host::sys;
use ulpf_lib::ring::{
    AREAS_OFFSET, Area, HEADS_OFFSET, Listed, RingHead, Rings, SHARED_LEN, SLOT_WORDS,
    WATCH_TABLE_OFFSET, ring_place,
};

const MAGIC: &[u8; 8] = b"ULPFKEPT";
/// Number of sessions that are kept.
const NEWEST: usize = 8;
/// Larger areas are not kept.
const LARGEST: u64 = 256 << 20;
/// Sessions with longer heads are not kept.
const HEAD: u64 = 16 << 20;

/// A session that has ended.
pub struct Kept {
    /// Description of the session by the ulpf that owned it.
    pub head: Vec<u8>,
    pub shared: SharedArea,
    pub ended: SystemTime,
}

/// Saves an area of ours; `head` describes the session. `false` if the area is too large.
pub fn keep(area: &SharedArea, pid: i32, head: &[u8]) -> io::Result<bool> {
    let (Some(folder), Some(file)) = (folder(), area.file()) else {
        return Ok(false);
    };
    let mut pieces = Vec::new();
    for (start, len) in used(area) {
        sys::data_within(file, start..start + len, &mut pieces)?;
    }
    if pieces.iter().map(|p| p.end - p.start).sum::<u64>() > LARGEST || head.len() as u64 > HEAD {
        return Ok(false);
    }
    let opened = Folder::make(&folder)?;
    let folder = opened.path();
    opened.put(&format!("{pid}.session"), |to| {
        write(BufWriter::new(to), file, head, &pieces)
    })?;
    for (_, old) in sessions(&folder).into_iter().skip(NEWEST) {
        let _ = fs::remove_file(old);
    }
    Ok(true)
}

fn write(mut to: impl Write, area: &File, head: &[u8], pieces: &[Range<u64>]) -> io::Result<()> {
    to.write_all(MAGIC)?;
    to.write_all(&(head.len() as u64).to_le_bytes())?;
    to.write_all(head)?;
    let mut buffer = vec![0; 1 << 20];
    for piece in pieces {
        let (start, len) = (piece.start, piece.end - piece.start);
        to.write_all(&start.to_le_bytes())?;
        to.write_all(&len.to_le_bytes())?;
        let mut at = 0;
        while at < len {
            let n = (len - at).min(buffer.len() as u64) as usize;
            let part = &mut buffer[..n];
            area.read_exact_at(part, start + at)?;
            to.write_all(part)?;
            at += n as u64;
        }
    }
    to.flush()
}

/// The used parts of an area: (offset, length). The program may have written any number there.
fn used(area: &SharedArea) -> Vec<(u64, u64)> {
    let size = |n: usize, of: usize| (n * of) as u64;
    let (watches, rings) = (area.watch_table().len(), area.rings());
    let areas = area.header().areas.load(Ordering::Acquire) as usize;
    let areas = areas.min(area.areas().len());
    let mut used = vec![
        (0, WATCH_TABLE_OFFSET + size(watches, size_of::<Listed>())),
        (AREAS_OFFSET, size(areas, size_of::<Area>())),
        (HEADS_OFFSET, size(rings, size_of::<RingHead>())),
    ];
    for ring in 0..rings {
        let (at, slots) = ring_place(ring as u64);
        let taken = area.head(ring).0.min(slots);
        used.push((at, size(taken as usize, SLOT_WORDS * 8)));
    }
    used.retain(|p| p.1 > 0);
    used
}

/// Kept sessions, newest first.
fn sessions(folder: &Path) -> Vec<(SystemTime, PathBuf)> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<(SystemTime, PathBuf)> = all
        .filter(|e| e.path().extension().is_some_and(|end| end == "session"))
        .filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path())))
        .collect();
    all.sort();
    all.reverse();
    all
}

/// Saves a small file beside the sessions and replaces one of that name.
///
/// # Errors
/// It cannot be written, or no folder is known for it.
pub fn save(name: &str, bytes: &[u8]) -> io::Result<()> {
    let folder = folder().ok_or_else(|| {
        io::Error::new(
            ErrorKind::NotFound,
            "neither HOME nor XDG_CACHE_HOME names a folder",
        )
    })?;
    let opened = Folder::make(&folder)?;
    let folder = opened.path();
    opened.put(name, |mut to| to.write_all(bytes))?;
    // Removes files of processes that have ended; those of running processes stay.
    let end = Path::new(name).extension();
    let others = fs::read_dir(&folder).into_iter().flatten().flatten();
    for other in others.filter(|e| e.path().extension() == end) {
        let pid = other
            .path()
            .file_stem()
            .and_then(|s| s.to_str()?.parse().ok());
        if pid.is_some_and(|pid: i32| !ulpf_host::process::is_alive(pid)) {
            let _ = fs::remove_file(other.path());
        }
    }
    Ok(())
}

/// A file that [`save`] has written, or `None` if it does not exist.
///
/// # Errors
/// It cannot be read, or belongs to another user.
pub fn load(name: &str) -> io::Result<Option<Vec<u8>>> {
    let Some(folder) = folder().filter(|folder| folder.exists()) else {
        return Ok(None);
    };
    let opened = Folder::open(&folder)?;
    match opened.get(name, 2 * LARGEST) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// The newest session, or that of process `pid`, if it is of this boot.
pub fn find(pid: Option<i32>) -> io::Result<Option<Kept>> {
    let Some(folder) = folder().filter(|folder| folder.exists()) else {
        return Ok(None);
    };
    let opened = Folder::open(&folder)?;
    let folder = opened.path();
    let wanted = pid.map(|pid| folder.join(format!("{pid}.session")));
    let mut all = sessions(&folder).into_iter();
    let Some((ended, path)) = all.find(|s| wanted.as_ref().is_none_or(|w| *w == s.1)) else {
        return Ok(None);
    };
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(&path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::from(ErrorKind::InvalidData));
    }
    let (head, shared) = read(file)?;
    let Some(shared) = shared else {
        return Ok(None);
    };
    Ok(Some(Kept {
        head,
        shared,
        ended,
    }))
}

/// The area is `None` if it is of another version of ulpf.
fn read(file: File) -> io::Result<(Vec<u8>, Option<SharedArea>)> {
    let bad = || {
        io::Error::new(
            ErrorKind::InvalidData,
            "it is no session that ulpf has kept",
        )
    };
    let mut from = BufReader::new(file);
    let mut magic = [0; 8];
    from.read_exact(&mut magic)?;
    if magic != *MAGIC {
        return Err(bad());
    }
    let len = number(&mut from)?.filter(|n| *n <= HEAD).ok_or_else(bad)?;
    let mut head = vec![0; len as usize];
    from.read_exact(&mut head)?;
    let area = sys::memfd(NAME)?;
    SharedArea::size(&area)?;
    let (mut buffer, mut whole) = (vec![0; 1 << 20], 0);
    while let Some(start) = number(&mut from)? {
        let len = number(&mut from)?.ok_or_else(bad)?;
        let end = start.checked_add(len).filter(|end| *end <= SHARED_LEN);
        whole += len.min(LARGEST + 1);
        if end.is_none() || whole > LARGEST {
            return Err(bad());
        }
        let mut at = 0;
        while at < len {
            let n = (len - at).min(buffer.len() as u64) as usize;
            let part = &mut buffer[..n];
            from.read_exact(part)?;
            area.write_all_at(part, start + at)?;
            at += n as u64;
        }
    }
    Ok((head, SharedArea::look(&area)?))
}

/// `None` at the end of the file.
fn number(from: &mut impl Read) -> io::Result<Option<u64>> {
    let mut bytes = [0; 8];
    match from.read_exact(&mut bytes) {
        Ok(()) => Ok(Some(u64::from_le_bytes(bytes))),
        Err(e) if e.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e),
    }
}
