//! Where a watch that follows finds its bytes.
//!
//! ```text
//! PATH := ADDR ('>' OFFSET)+
//! 0x4040>16      p->x: the pointer at 0x4040, and 16 bytes behind what it points to
//! 0x4040>8>-4    p->q->y: the pointer at 0x4040; 8 bytes behind, another; 4 bytes before what that points to
//! ```

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::addr::{TargetAddr, USER_END};
use crate::number::number;
use crate::watch::WatchRange;

/// Pointers on the way of one watch, at most.
pub const MOST_POINTERS: usize = 16;
/// Watches of one program that follow, at most: each change of a pointer looks at all of them.
pub const MOST_PATHS: usize = 4096;

/// No program has anything below: a pointer that is so small points to nothing.
const LOWEST: u64 = 0x1000;
const POINTER: u64 = 8;

/// An address, and what to add to each pointer on the way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Path {
    base: u64,
    offsets: Vec<u64>,
}

/// Where a path leads at one moment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Trace {
    /// The pointers that were met, in this order.
    pub pointers: Vec<WatchRange>,
    /// The bytes at its end; `None`: a pointer on the way is NULL, or there is no memory.
    pub end: Option<WatchRange>,
}

impl Path {
    /// The first pointer is at `base`; each offset is added, and may wrap, to the next pointer's value.
    ///
    /// # Errors
    /// Why this is no path that can be followed.
    pub fn new(base: u64, offsets: Vec<u64>) -> Result<Path, String> {
        match offsets.len() {
            0 => Err("a path has an offset behind each pointer".into()),
            1..=MOST_POINTERS => Ok(Path { base, offsets }),
            n => Err(alloc::format!(
                "{n} pointers are on the way, and {MOST_POINTERS} at most are followed"
            )),
        }
    }

    /// Where the first pointer is.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Goes its way to `len` bytes at its end; `read` gives the pointer there, if there is memory.
    pub fn trace(&self, len: u64, read: impl Fn(u64) -> Option<u64>) -> Trace {
        let mut trace = Trace::default();
        let range = |at: u64, len: u64| {
            let range = WatchRange::new(TargetAddr(at), len)?;
            (range.end().0 <= USER_END).then_some(range)
        };
        let mut at = self.base;
        for offset in &self.offsets {
            let Some(pointer) = range(at, POINTER) else {
                return trace;
            };
            trace.pointers.push(pointer);
            match read(at) {
                Some(value) if value >= LOWEST => at = value.wrapping_add(*offset),
                _ => return trace,
            }
        }
        trace.end = range(at, len);
        trace
    }

    /// `None`: the word is no path.
    pub fn parse(word: &str) -> Option<Result<Path, String>> {
        let (base, rest) = word.split_once('>')?;
        let offset = |word: &str| match word.strip_prefix('-') {
            Some(word) => number(Some(word)).map(u64::wrapping_neg),
            None => number(Some(word)),
        };
        let base = number(Some(base))?;
        let offsets: Option<Vec<u64>> = rest.split('>').map(offset).collect();
        Some(Path::new(base, offsets?))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:#x}", self.base)?;
        self.offsets
            .iter()
            .try_for_each(|offset| write!(f, ">{}", *offset as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    fn path(word: &str) -> Path {
        Path::parse(word).unwrap().unwrap()
    }

    #[test]
    fn as_it_is_written() {
        for word in ["0x4040>16", "0x4040>8>-4", "0x0>0>0"] {
            assert_eq!(path(word).to_string(), word);
        }
        for word in [
            "0x4040",
            "0x4040>",
            ">8",
            "0x4040>x",
            "0x4040>8>",
            "0x4040>--8",
        ] {
            assert_eq!(Path::parse(word), None, "{word}");
        }
        let long = |n: usize| Path::parse(&("0x4040".to_string() + &">0".repeat(n))).unwrap();
        assert!(long(MOST_POINTERS).is_ok() && long(MOST_POINTERS + 1).is_err());
    }

    #[test]
    fn where_it_leads() {
        let memory = |at| match at {
            0x4040 => Some(0x8000),
            0x8008 => Some(0x9004),
            0x5000 => Some(0),
            0x6000 => Some(u64::MAX),
            _ => None,
        };
        let at = |word: &str| {
            let trace = path(word).trace(4, memory);
            let pointers: Vec<u64> = trace.pointers.iter().map(|p| p.start.0).collect();
            (pointers, trace.end.map(|end| (end.start.0, end.len)))
        };
        assert_eq!(at("0x4040>16"), (alloc::vec![0x4040], Some((0x8010, 4))));
        let both = alloc::vec![0x4040, 0x8008];
        assert_eq!(at("0x4040>8>-4"), (both, Some((0x9000, 4))));
        // NULL, no memory, an address that no program has: it ends there, and is looked at again when that changes.
        assert_eq!(at("0x5000>16"), (alloc::vec![0x5000], None));
        assert_eq!(at("0x4040>0x10>1"), (alloc::vec![0x4040, 0x8010], None));
        assert_eq!(at("0x6000>-16"), (alloc::vec![0x6000], None));
        assert_eq!(at("0x6000>-16>0"), (alloc::vec![0x6000], None));
    }
}
