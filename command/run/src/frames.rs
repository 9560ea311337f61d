//! Calls of functions with watched locals (`function::local`) that have not returned. [`super::calls`] maintains them.

use std::collections::{BTreeMap, BTreeSet};
use ulpf_lib::command::Command;

/// How frames may end without a return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Landing {
    /// An argument of the function there gives the place where an exception, a panic or a cancelled thread continues
    /// (Itanium C++ ABI: Exception Handling, 1.5).
    Told,
    /// Execution continues there.
    Here,
    /// The function there continues where its first argument, a `jmp_buf` of glibc, says.
    Jump,
    /// The function there ends the thread.
    Leave,
}

/// Functions that end frames in these ways.
pub const LANDINGS: [(&str, Landing); 6] = [
    ("_Unwind_SetIP", Landing::Told),
    ("longjmp", Landing::Jump),
    ("_longjmp", Landing::Jump),
    ("siglongjmp", Landing::Jump),
    ("__longjmp_chk", Landing::Jump),
    ("pthread_exit", Landing::Leave),
];

#[derive(Default)]
pub struct Frames {
    /// Starts of functions, each with its watches on locals.
    pub functions: BTreeMap<u64, BTreeSet<u32>>,
    pub landings: BTreeMap<u64, Landing>,
    pub active: Vec<Active>,
    /// Breakpoints at return addresses, each with its number of calls.
    pub returns: BTreeMap<u64, usize>,
    /// Former breakpoints: another thread's stop there may be reported after the removal.
    pub past: BTreeSet<u64>,
}

/// A call of such a function that has not returned.
pub struct Active {
    /// In the notation of the protocol.
    pub thread: String,
    pub function: u64,
    pub cfa: u64,
    pub back: u64,
}

impl Frames {
    /// Whether a breakpoint of ours is or was there.
    pub fn knows(&self, pc: u64) -> bool {
        self.is_set(pc) || self.past.contains(&pc)
    }

    pub fn is_set(&self, pc: u64) -> bool {
        self.functions.contains_key(&pc)
            || self.landings.contains_key(&pc)
            || self.returns.contains_key(&pc)
    }

    pub fn commands(&self, function: u64, at: u64, begins: bool) -> Vec<Command> {
        let ids = self.functions.get(&function).into_iter().flatten();
        ids.map(|id| Command::Frame {
            id: *id,
            at,
            begins,
        })
        .collect()
    }
}
