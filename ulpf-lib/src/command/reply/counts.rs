//! What watches have counted: the answer to `ulpf stats`.

use alloc::vec::Vec;
use core::fmt;

use crate::watch::WatchKind;

/// What `ulpf stats` answers.
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
    /// Those that cannot be.
    pub sites_refused: u64,
    /// Pages that have been moved.
    pub moved_pages: u64,
    /// Memory of the watchlist.
    pub watch_bytes: u64,
    /// The number that the next watch gets.
    pub next: u32,
    /// Hits that nobody can tell any more; only the bridge's front end says so.
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

/// One watch in what `ulpf stats` answers.
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
    /// Those that left the value as it was.
    pub silent: u64,
    /// Those that the filter has rejected.
    pub filtered: u64,
    /// Accesses to its pages that met no watch.
    pub false_positives: u64,
    /// How often it has stopped the program.
    pub stops: u64,
    /// It lives in a debug register.
    pub register: bool,
    /// How often the debug register has trapped.
    pub traps: u64,
    /// Is it in force?
    pub state: WatchState,
}

/// Which bytes a watch has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountedBytes {
    /// These bytes.
    Range {
        /// The first one.
        start: u64,
        /// How many.
        len: u64,
    },
    /// These at the end of a path, for now.
    Along {
        /// The first one; 0: the path leads nowhere.
        start: u64,
        /// How many.
        len: u64,
        /// How often the path has led elsewhere since the watch was set.
        moved: u64,
    },
    /// All of the heap: so many bytes.
    Heap(u64),
}

/// Is a watch in force?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WatchState {
    /// It is.
    On,
    /// It was switched off.
    Off,
    /// Its memory is.
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
