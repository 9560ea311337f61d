//! Searches a process's memory. A helper process reads it (`ulpf_host::apart`): a file system of the target's may never
//! answer, and a process that waits for it cannot be killed.

use crate::find::value::{Type, Wanted};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use ulpf_host::apart::Apart;
use ulpf_host::process;
use ulpf_lib::PAGE_SIZE;
use ulpf_lib::guard::{PROT_READ, PROT_WRITE};
use ulpf_lib::mapping::mappings;

/// Kinds of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Memory that the program allocates, and other anonymous memory
    Heap,
    /// Variables of the executable and of libraries, and files that are mapped to be written to
    Data,
    /// Where threads keep their locals
    Stack,
}

/// A writable mapping, which can be watched.
#[derive(Clone, Debug)]
pub struct Region {
    pub start: u64,
    pub end: u64,
    pub kind: Kind,
    /// The file's name, `[heap]`, `[stack]`, or empty.
    pub name: String,
}

/// Limit of the places: more are of no use, and would fill our memory.
pub const MOST_PLACES: usize = 1 << 24;
/// Bytes of one read.
const PIECE: usize = 1 << 20;

/// Limit of the regions that do not answer; beyond it the search ends.
const MOST_SILENT: usize = 4;

/// A process's memory.
pub struct Memory {
    file: File,
    reader: RefCell<Option<Apart>>,
    pub regions: Vec<Region>,
    /// Starts of the regions whose file system has not answered.
    silent: RefCell<Vec<u64>>,
}

impl Memory {
    /// # Errors
    /// We may not read the memory, or it has no such regions.
    pub fn of(pid: i32, kinds: &[Kind]) -> Result<Memory> {
        let ours = process::mapping(pid, "/memfd:ulpf-");
        if ours
            .with_context(|| format!("process {pid} cannot be looked at"))?
            .is_some()
        {
            bail!(
                "process {pid} is being watched, and its watched pages are not where they were: search before you watch"
            );
        }
        let file = File::open(format!("/proc/{pid}/mem")).with_context(|| {
            format!("the memory of process {pid} cannot be read (this needs the rights that `ulpf attach` needs)")
        })?;
        let text = std::fs::read(format!("/proc/{pid}/maps"))
            .with_context(|| format!("cannot read what process {pid} has mapped"))?;
        let stacks = stack_pointers(pid);
        let mut regions: Vec<Region> = Vec::new();
        // End of a file's last mapping: anonymous memory after it is its uninitialised data.
        let mut data_ends = None;
        for m in mappings(&text) {
            let path = String::from_utf8_lossy(m.path()).into_owned();
            let (name, is_file) = match path.rsplit_once('/') {
                Some((_, name)) => (name.to_string(), true),
                None => (path, false),
            };
            let is_data = is_file
                || name.is_empty() && data_ends.as_ref().is_some_and(|(end, _)| *end == m.start);
            let behind = data_ends.take().filter(|_| is_data && !is_file);
            let name = behind.map_or(name, |(_, name): (u64, String)| name);
            if is_data {
                data_ends = Some((m.end, name.clone()));
            }
            let usable = PROT_READ | PROT_WRITE;
            if m.prot & usable != usable || m.path().starts_with(b"/dev/") {
                continue;
            }
            let kind = match () {
                _ if name == "[stack]" => Kind::Stack,
                _ if is_data => Kind::Data,
                _ if stacks.iter().any(|sp| (m.start..m.end).contains(sp)) => Kind::Stack,
                _ => Kind::Heap,
            };
            if kinds.is_empty() || kinds.contains(&kind) {
                let (start, end) = (m.start, m.end);
                regions.push(Region {
                    start,
                    end,
                    kind,
                    name,
                });
            }
        }
        Ok(Memory {
            file,
            reader: RefCell::default(),
            regions,
            silent: RefCell::default(),
        })
    }

    /// Regions that could not be searched, because a file system does not answer.
    pub fn silent(&self) -> impl Iterator<Item = &Region> {
        let silent = self.silent.borrow().clone();
        let regions = self.regions.iter();
        regions.filter(move |r| silent.contains(&r.start))
    }

    /// Bytes to search.
    pub fn len(&self) -> u64 {
        self.regions.iter().map(|r| r.end - r.start).sum()
    }

    /// Fills the buffer as far as memory is readable, and returns the number of bytes. Regions that have not answered
    /// once are not read again.
    fn read(&self, at: u64, to: &mut [u8]) -> Result<usize> {
        let region = self.regions.iter().find(|r| (r.start..r.end).contains(&at));
        let region = region.map_or(0, |r| r.start);
        if self.silent.borrow().contains(&region) {
            return Ok(0);
        }
        let mut reader = self.reader.borrow_mut();
        let new = || Apart::new(&self.file).context("cannot start a process that reads the memory");
        let mut apart = match reader.take() {
            Some(apart) => apart,
            None => new()?,
        };
        let read = apart.read_at(at, to);
        match read {
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                self.silent.borrow_mut().push(region);
                if self.silent.borrow().len() > MOST_SILENT {
                    bail!("the file systems of too many mapped files do not answer");
                }
                Ok(0)
            }
            read => {
                *reader = Some(apart);
                Ok(read?)
            }
        }
    }

    /// Calls `f` with pieces of all memory; each piece overlaps the one before by `overlap` bytes.
    fn pieces(&self, overlap: usize, mut f: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let mut buffer = vec![0; PIECE];
        for region in &self.regions {
            let mut at = region.start;
            while at < region.end && !self.silent.borrow().contains(&region.start) {
                let n = (region.end - at).min(PIECE as u64) as usize;
                let read = self.read(at, &mut buffer[..n])?;
                f(at, &buffer[..read])?;
                at = match read {
                    // An absent page (the file has become shorter).
                    0 => at + PAGE_SIZE,
                    _ if read < n || at + n as u64 == region.end => at + read as u64,
                    _ => at + (n - overlap) as u64,
                };
            }
        }
        Ok(())
    }

    /// All places with a wanted value, each with the value.
    pub fn search(&self, wanted: &Wanted, ty: Type, step: usize) -> Result<Vec<(u64, u64)>> {
        let mut places = Vec::new();
        let mut add = |at: u64, bits: u64| {
            if places.len() >= MOST_PLACES {
                bail!(
                    "more than {MOST_PLACES} places hold that: search for fewer values, or in one kind of memory (--in)"
                );
            }
            places.push((at, bits));
            Ok(())
        };
        let size = match wanted {
            Wanted::Text(text) => text.len(),
            _ => ty.size(),
        };
        if size > PIECE / 2 {
            bail!("a text of {size} bytes is too long to be searched for");
        }
        self.pieces(size - 1, |at, bytes| {
            if let Wanted::Text(text) = wanted {
                let found = bytes.windows(size).enumerate();
                let mut found = found.filter(|(_, window)| window == text);
                return found.try_for_each(|(n, _)| add(at + n as u64, 0));
            }
            // Mappings start at pages; later pieces start a few bytes before the next possible place.
            let mut n = (at.next_multiple_of(step as u64) - at) as usize;
            while let Some(value) = bytes.get(n..n + size) {
                let bits = bits(value);
                if wanted.accepts(ty, None, bits) {
                    add(at + n as u64, bits)?;
                }
                n += step;
            }
            Ok(())
        })?;
        // Pieces overlap.
        places.dedup();
        Ok(places)
    }

    /// The places that hold a wanted value now.
    pub fn narrow(
        &self,
        places: &[(u64, u64)],
        wanted: &Wanted,
        ty: Type,
        text: usize,
    ) -> Result<Vec<(u64, u64)>> {
        let size = if ty == Type::Str {
            text.max(1)
        } else {
            ty.size()
        };
        let mut left = Vec::new();
        let mut buffer = vec![0; PIECE + size];
        let mut from = 0;
        while let Some((first, _)) = places.get(from) {
            // Places that are close together are read at once.
            let near = |(at, _): &&(u64, u64)| at - first < PAGE_SIZE;
            let n = places[from..].iter().take_while(near).count();
            let last = places[from + n - 1].0;
            let len = (last - first) as usize + size;
            let read = self.read(*first, &mut buffer[..len])?;
            for (at, before) in &places[from..from + n] {
                let offset = (at - first) as usize;
                let Some(now) = buffer[..read].get(offset..offset + size) else {
                    continue;
                };
                let (is, now) = match (wanted, ty) {
                    (Wanted::Text(text), _) => (now == text, 0),
                    (_, Type::Str) => (false, 0),
                    _ => (wanted.accepts(ty, Some(*before), bits(now)), bits(now)),
                };
                if is {
                    left.push((*at, now));
                }
            }
            from += n;
        }
        Ok(left)
    }

    /// Name of an address: `prog+0x40a0`, `[heap]+0x2a0`.
    pub fn name(&self, at: u64) -> String {
        let region = self.regions.iter().find(|r| (r.start..r.end).contains(&at));
        match region {
            None => "no longer mapped".into(),
            Some(r) if r.name.is_empty() => format!("{:?}", r.kind).to_lowercase(),
            Some(r) => format!("{}+{:#x}", r.name, at - r.start),
        }
    }
}

fn bits(value: &[u8]) -> u64 {
    value.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// Stack pointers of the threads that wait in the kernel (the file says `running` for the others).
fn stack_pointers(pid: i32) -> Vec<u64> {
    let of = |tid: &i32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
        let sp = text.split_ascii_whitespace().rev().nth(1)?;
        u64::from_str_radix(sp.strip_prefix("0x")?, 16).ok()
    };
    let threads = process::threads(pid).unwrap_or_default();
    threads.iter().filter_map(of).collect()
}
