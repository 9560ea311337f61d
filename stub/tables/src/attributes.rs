//! Attributes of each watch: the actions at a hit. Most of a million watches have the same attributes. Equal attributes
//! are therefore stored once, and a watch stores a number of four bytes.
//!
//! The stub's task writes this table while the world is stopped; handlers read it without locks.

use alloc::sync::Arc;
use alloc::vec::Vec;

use ulpf_lib::WatchId;

use crate::filter::CountedFilter;

#[derive(Clone, Default)]
pub struct Attributes {
    /// The debugger set it: stop.
    pub stop: bool,
    /// Not in the debugger's own table (`control/out_of_band.rs`).
    pub out_of_band: bool,
    /// Writes a record to the ring.
    pub log: bool,
    /// Records the last writer of each byte, and nothing else.
    pub writers: bool,
    pub backtrace: u8,
    pub placement: Placement,
    /// Hits are counted and reported as hits of this watch.
    pub group: Option<WatchId>,
    pub part: Part,
    /// Selects the hits that matter; `None`: all.
    pub filter: Option<Arc<CountedFilter>>,
    /// Value that its bytes keep: a store that changes them is undone.
    pub frozen: Option<Arc<[u8]>>,
}

/// Role of this range in a watch that follows pointers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Part {
    /// It is a watch by itself.
    #[default]
    Whole,
    /// A pointer on the path. A store to it is not reported, but makes the watch resolve its path again.
    Pointer,
    /// The bytes at the end of the path.
    End,
    /// Memory of a checked heap, whose bits decide what is a hit.
    Checked,
}

/// The placement that the user wants.
use ulpf_lib::command::Placement;

impl Attributes {
    pub const NONE: &'static Attributes = &Attributes {
        stop: false,
        out_of_band: false,
        log: false,
        writers: false,
        backtrace: 0,
        placement: Placement::Auto,
        group: None,
        part: Part::Whole,
        filter: None,
        frozen: None,
    };

    /// Returns whether equal attributes may be stored once: a filter counts for itself, and frozen bytes belong to one
    /// watch.
    fn may_be_shared(&self) -> bool {
        self.filter.is_none() && self.frozen.is_none()
    }

    /// All attributes of an entry that may be shared.
    fn plain(&self) -> (bool, bool, bool, bool, u8, Placement, Option<WatchId>, Part) {
        (
            self.stop,
            self.out_of_band,
            self.log,
            self.writers,
            self.backtrace,
            self.placement,
            self.group,
            self.part,
        )
    }
}

struct Shared {
    attributes: Attributes,
    watches: u32,
}

pub struct Table {
    kept: Vec<Shared>,
    /// Indices into `kept` of entries without a filter, and of unused entries.
    plain: Vec<u32>,
    free: Vec<u32>,
    /// By watch number: index into `kept` plus one; zero: no attributes set.
    of: Vec<u32>,
}

impl Default for Table {
    fn default() -> Table {
        Table::new()
    }
}

impl Table {
    pub const fn new() -> Table {
        Table {
            kept: Vec::new(),
            plain: Vec::new(),
            free: Vec::new(),
            of: Vec::new(),
        }
    }

    #[inline]
    pub fn get(&self, id: WatchId) -> &Attributes {
        let place = self.of.get(id.0 as usize).copied().unwrap_or(0);
        match self.kept.get((place as usize).wrapping_sub(1)) {
            Some(shared) => &shared.attributes,
            None => Attributes::NONE,
        }
    }

    pub fn set(&mut self, id: WatchId, a: Attributes) {
        let at = id.0 as usize;
        let before = self.of.get(at).copied().unwrap_or(0);
        let place = self.place(a);
        if self.of.len() <= at {
            self.of.resize(at + 1, 0);
        }
        if let Some(of) = self.of.get_mut(at) {
            *of = place;
        }
        self.leave(before);
    }

    /// Returns the index in `kept`, plus one, of an entry equal to `a`, and counts one more watch there.
    fn place(&mut self, a: Attributes) -> u32 {
        let same = |at: &u32| {
            let kept = self.kept.get(*at as usize);
            kept.is_some_and(|s| s.attributes.plain() == a.plain())
        };
        let found = match a.may_be_shared() {
            true => self.plain.iter().copied().find(same),
            false => None,
        };
        if let Some(at) = found {
            if let Some(shared) = self.kept.get_mut(at as usize) {
                shared.watches += 1;
            }
            return at + 1;
        }
        let at = self.free.pop().unwrap_or(self.kept.len() as u32);
        if a.may_be_shared() {
            self.plain.push(at);
        }
        let shared = Shared {
            attributes: a,
            watches: 1,
        };
        match self.kept.get_mut(at as usize) {
            Some(slot) => *slot = shared,
            None => self.kept.push(shared),
        }
        at + 1
    }

    fn leave(&mut self, place: u32) {
        let Some(at) = place.checked_sub(1) else {
            return;
        };
        if let Some(shared) = self.kept.get_mut(at as usize) {
            shared.watches -= 1;
            if shared.watches == 0 {
                shared.attributes = Attributes::default();
                self.plain.retain(|p| *p != at);
                self.free.push(at);
            }
        }
    }

    /// Each entry once, however many watches use it.
    pub fn all(&self) -> impl Iterator<Item = &Attributes> {
        let used = self.kept.iter().filter(|s| s.watches > 0);
        used.map(|s| &s.attributes)
    }

    /// Attributes of every watch that ever had some, ended ones included.
    pub fn iter(&self) -> impl Iterator<Item = (WatchId, &Attributes)> {
        let ids = (0..self.of.len() as u32).map(WatchId);
        ids.map(|id| (id, self.get(id)))
    }
}
