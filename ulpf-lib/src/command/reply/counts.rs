//! Counters of watches: the answer to `ulpf stats`.

use alloc::vec::Vec;
use core::fmt;

use crate::watch::WatchKind;

/// The answer to `ulpf stats`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Statistics {
    /// All watches together.
    pub totals: Totals,
    /// Each by itself.
    pub watches: Vec<Counted>,
}

impl Statistics {
    /// The answer, without the end of the line; watches are written as they come.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(
        out: &mut dyn fmt::Write,
        totals: &Totals,
        watches: impl IntoIterator<Item = Counted>,
    ) -> fmt::Result {
        write!(out, "{totals}")?;
        for (n, counted) in watches.into_iter().enumerate() {
            let comma = if n > 0 { "," } else { "" };
            write!(out, "{comma}{counted}")?;
        }
        out.write_str("]}")
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        Statistics::write(f, &self.totals, self.watches.iter().copied())
    }
}

/// Of all watches together.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Faults on guarded pages, all causes.
    pub faults: u64,
    /// Accesses to guarded pages that overlap no watch.
    pub false_positives: u64,
    /// Accesses that needed the slow path.
    pub slow: u64,
    /// System calls of the program that went through the stub.
    pub syscalls: u64,
    /// System-call instructions that are patched.
    pub sites: u64,
    /// System-call instructions that cannot be patched.
    pub sites_refused: u64,
    /// Pages that have been moved.
    pub moved_pages: u64,
    /// Memory of the watchlist.
    pub watch_bytes: u64,
    /// The number that the next watch gets.
    pub next: u32,
    /// Lost hits, which can no longer be reported; only the bridge's front end sends this.
    pub lost: Option<u64>,
}

/// The beginning of the answer.
impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "{{\"faults\":{},\"false_positives\":{},\"slow\":{},\"syscalls\":{},\"sites\":{},\"sites_refused\":{},\"moved_pages\":{},\"watch_bytes\":{},\"next\":{}",
            self.faults,
            self.false_positives,
            self.slow,
            self.syscalls,
            self.sites,
            self.sites_refused,
            self.moved_pages,
            self.watch_bytes,
            self.next,
        )?;
        if let Some(lost) = self.lost {
            write!(f, ",\"lost\":{lost}")?;
        }
        f.write_str(",\"watches\":[")
    }
}

/// One watch in the answer to `ulpf stats`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted {
    /// The number of the watch.
    pub id: u32,
    /// What is watched.
    pub of: CountedBytes,
    /// Which accesses.
    pub kind: WatchKind,
    /// All hits.
    pub hits: u64,
    /// Hits that left the value unchanged.
    pub silent: u64,
    /// Hits that the filter has rejected.
    pub filtered: u64,
    /// Accesses to its pages that met no watch.
    pub false_positives: u64,
    /// Number of stops of the program.
    pub stops: u64,
    /// It lives in a debug register.
    pub register: bool,
    /// Number of traps of the debug register.
    pub traps: u64,
    /// Whether it is in force.
    pub state: WatchState,
}

/// The bytes of a watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountedBytes {
    /// These bytes.
    Range {
        /// The first one.
        start: u64,
        /// Number of bytes.
        len: u64,
    },
    /// The bytes at the end of a path, for now.
    Along {
        /// First byte, or 0 if the path leads nowhere.
        start: u64,
        /// Number of bytes.
        len: u64,
        /// Number of times that the path has moved since the watch was set.
        moved: u64,
    },
    /// All of the heap: its size in bytes.
    Heap(u64),
}

/// Whether a watch is in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchState {
    /// It is in force.
    On,
    /// It was switched off.
    Off,
    /// Its memory was unmapped.
    Gone,
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{{\"id\":{},", self.id)?;
        match self.of {
            CountedBytes::Range { start, len } => write!(f, "\"start\":{start},\"len\":{len}")?,
            CountedBytes::Along { start, len, moved } => {
                write!(f, "\"start\":{start},\"len\":{len},\"moved\":{moved}")?;
            }
            CountedBytes::Heap(bytes) => write!(f, "\"heap\":{bytes}")?,
        }
        write!(
            f,
            ",\"kind\":\"{}\",\"hits\":{},\"silent\":{},\"filtered\":{},\"false_positives\":{},\"stops\":{},\"placement\":\"{}\",\"traps\":{}{}}}",
            self.kind.word(),
            self.hits,
            self.silent,
            self.filtered,
            self.false_positives,
            self.stops,
            match self.register {
                true => "debug-register",
                false => "guard",
            },
            self.traps,
            match self.state {
                WatchState::On => "",
                WatchState::Off => ",\"off\":true",
                WatchState::Gone => ",\"gone\":true",
            },
        )
    }
}
