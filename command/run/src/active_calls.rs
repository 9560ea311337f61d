//! Calls of functions with watched locals (`function::local`) that have not returned. [`super::calls`] maintains them.

use std::collections::{BTreeMap, BTreeSet};
use ulpf_lib::command::Command;

/// How frames may end without a return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NonLocalExit {
    /// An argument of the function there gives the place where an exception, a panic or a cancelled thread continues
    /// (Itanium C++ ABI: Exception Handling, 1.5).
    Argument,
    /// Execution continues there.
    Here,
    /// The function there continues where its first argument, a `jmp_buf` of glibc, says.
    Jump,
    /// The function there ends the thread.
    Leave,
}

/// Functions that end frames in these ways.
pub const NON_LOCAL_EXITS: [(&str, NonLocalExit); 6] = [
    ("_Unwind_SetIP", NonLocalExit::Argument),
    ("longjmp", NonLocalExit::Jump),
    ("_longjmp", NonLocalExit::Jump),
    ("siglongjmp", NonLocalExit::Jump),
    ("__longjmp_chk", NonLocalExit::Jump),
    ("pthread_exit", NonLocalExit::Leave),
];

#[derive(Default)]
pub struct Frames {
    /// Starts of functions, each with its watches on locals.
    pub functions: BTreeMap<u64, BTreeSet<u32>>,
    pub exits: BTreeMap<u64, NonLocalExit>,
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
            || self.exits.contains_key(&pc)
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
