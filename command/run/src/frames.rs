//! Calls of the functions whose locals are watched (`function::local`), that have not returned. [`super::calls`] keeps them.

use std::collections::{BTreeMap, BTreeSet};
use ulpf_lib::command::Command;

/// How frames may end without a return.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Landing {
    /// The function there is told where an exception, a panic or a cancelled thread goes on (Itanium C++ ABI: Exception
    /// Handling, 1.5).
    Told,
    /// It goes on there.
    Here,
    /// The function there goes on where its first argument, a `jmp_buf` of glibc's, says.
    Jump,
    /// The function there ends the thread.
    Leave,
}

/// What ends frames so, by the name of the function that is met.
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
    /// Where functions begin, and the watches on locals of each.
    pub functions: BTreeMap<u64, BTreeSet<u32>>,
    pub landings: BTreeMap<u64, Landing>,
    pub active: Vec<Active>,
    /// Breakpoints at return addresses: of so many calls.
    pub returns: BTreeMap<u64, usize>,
    /// Where there has been one: another thread's stop there may be told of when it is gone.
    pub past: BTreeSet<u64>,
}

/// A call of such a function that has not returned.
pub struct Active {
    /// As the protocol writes it.
    pub thread: String,
    pub function: u64,
    pub cfa: u64,
    pub back: u64,
}

impl Frames {
    /// Is there, or was there, a breakpoint of ours?
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
