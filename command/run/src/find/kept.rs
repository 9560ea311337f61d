//! Result of a search, kept until the next one.

use crate::find::scan::MOST_PLACES;
use crate::find::value::Type;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use ulpf_area::kept;
use ulpf_host::process;

/// Places of one process.
pub struct Found {
    pid: i32,
    /// Start of the process in the kernel's ticks, which tells it from a later process of that number.
    started: u64,
    pub ty: Type,
    /// Bytes of each place.
    pub len: usize,
    /// In ascending order, each with its value.
    pub places: Vec<(u64, u64)>,
}

/// The first line of the file. A line with an address and a value for each place follows.
#[derive(Serialize, Deserialize)]
struct Head {
    pid: i32,
    started: u64,
    ty: Type,
    len: usize,
}

fn started(pid: i32) -> Result<u64> {
    process::started(pid).with_context(|| format!("there is no process {pid}"))
}

fn name(pid: i32) -> String {
    format!("{pid}.found")
}

impl Found {
    pub fn new(pid: i32, ty: Type, len: usize, places: Vec<(u64, u64)>) -> Result<Found> {
        Ok(Found {
            pid,
            started: started(pid)?,
            ty,
            len,
            places,
        })
    }

    /// The result of the last search in this process.
    pub fn of(pid: i32) -> Result<Found> {
        let none = || {
            format!(
                "nothing has been searched for in process {pid}: begin with `ulpf find {pid} VALUE`"
            )
        };
        let started = started(pid)?;
        let Some(bytes) = kept::load(&name(pid)).with_context(none)? else {
            bail!(none());
        };
        let found = Found::read(&bytes).with_context(|| {
            format!(
                "what was found in process {pid} is kept in a file that is damaged; search again"
            )
        })?;
        if (found.pid, found.started) != (pid, started) {
            bail!(
                "{} (what is kept is of another process with that number)",
                none()
            );
        }
        Ok(found)
    }

    fn read(bytes: &[u8]) -> Option<Found> {
        let end = bytes.iter().position(|b| *b == b'\n')?;
        let head: Head = serde_json::from_slice(&bytes[..end]).ok()?;
        let rest = &bytes[end + 1..];
        let number = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
        if !rest.len().is_multiple_of(16) || rest.len() / 16 > MOST_PLACES {
            return None;
        }
        let place = |place: &[u8]| Some((number(&place[..8])?, number(&place[8..])?));
        let places: Option<Vec<(u64, u64)>> = rest.chunks_exact(16).map(place).collect();
        let places = places.filter(|p| p.is_sorted_by_key(|(at, _)| *at))?;
        Some(Found {
            pid: head.pid,
            started: head.started,
            ty: head.ty,
            len: head.len.clamp(1, 1 << 20),
            places,
        })
    }

    pub fn keep(&self) -> Result<()> {
        let head = Head {
            pid: self.pid,
            started: self.started,
            ty: self.ty,
            len: self.len,
        };
        let mut bytes = serde_json::to_vec(&head)?;
        bytes.push(b'\n');
        for (at, bits) in &self.places {
            bytes.extend(at.to_le_bytes());
            bytes.extend(bits.to_le_bytes());
        }
        kept::save(&name(self.pid), &bytes)
            .context("what was found cannot be kept, and so neither be narrowed nor watched")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strange_files_are_refused() {
        let head = br#"{"pid":1,"started":2,"ty":"i32","len":4}"#;
        let whole = [&head[..], b"\n", &[0; 32]].concat();
        let found = Found::read(&whole).unwrap();
        assert_eq!((found.ty, found.places.len()), (Type::I32, 2));
        for bad in [&head[..], &whole[..whole.len() - 1], b"{}\n", b""] {
            assert!(Found::read(bad).is_none());
        }
        let mut disordered = whole.clone();
        disordered[head.len() + 1] = 9;
        assert!(Found::read(&disordered).is_none());
    }
}
