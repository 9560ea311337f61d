//! Tables that the stub's task writes while all threads of the program are stopped, and that their handlers read
//! without locks.
//!
//! The task makes these tables, so they allocate. Handlers have them as `&Tables` only. Each function that changes a
//! table takes `&mut`, which the task alone can get (`ulpf_stub_handlers::stopped`). The functions that handlers call
//! allocate nothing.
#![cfg_attr(not(test), no_std)]
extern crate alloc;

pub mod attributes;
pub mod back_off;
pub mod backtrace_cache;
pub mod breakpoints;
pub mod calls;
pub mod caves;
pub mod cells;
pub mod code;
pub mod edit;
pub mod edits;
pub mod filter;
pub mod patches;
pub mod rows;

use alloc::boxed::Box;
use alloc::vec::Vec;

use ulpf_lib::WatchId;
use ulpf_lib::guard::Guards;
use ulpf_lib::watchlist::Watchlist;

pub struct Tables {
    pub edits: edits::Edits,
    pub caves: caves::Caves,
    /// `None` until the stub's task is set up.
    pub guards: Option<Box<Guards>>,
    pub watches: Watches,
    pub patches: patches::Table,
    /// `None` until callers are first needed.
    pub code: Option<Box<code::Code>>,
}

pub struct Watches {
    /// The list in force; owned by the stub's task, which keeps it for as long as it lives.
    pub list: *const Watchlist,
    pub attributes: attributes::Table,
    /// By watch number, for parts of watches that follow pointers: offset of the part in its watch, in bytes.
    before: Vec<u64>,
}

impl Watches {
    /// Offset of this part in the watch that follows pointers, in bytes.
    pub fn before(&self, part: WatchId) -> u64 {
        self.before.get(part.0 as usize).copied().unwrap_or(0)
    }

    pub fn set_before(&mut self, part: WatchId, bytes: u64) {
        let at = part.0 as usize;
        if self.before.len() <= at && bytes != 0 {
            self.before.resize(at + 1, 0);
        }
        if let Some(before) = self.before.get_mut(at) {
            *before = bytes;
        }
    }
}

static EMPTY: Watchlist = Watchlist::new();

impl Tables {
    pub const fn new() -> Tables {
        Tables {
            edits: edits::Edits::new(),
            caves: caves::Caves::new(),
            guards: None,
            watches: Watches {
                list: &raw const EMPTY,
                attributes: attributes::Table::new(),
                before: Vec::new(),
            },
            patches: patches::Table::new(),
            code: None,
        }
    }
}

impl Default for Tables {
    fn default() -> Tables {
        Tables::new()
    }
}
