//! Breakpoints: int3 in the program's code.

use alloc::vec::Vec;

use ulpf_engine::agent::{self, AgentContext};

use crate::edit::Edit;

/// GDB agent expression (bytecode), see "Agent Expressions" in the GDB manual.
pub type AgentExpr = Vec<u8>;

pub const INT3: u8 = 0xcc;

pub struct Breakpoint {
    pub addr: u64,
    /// The byte that the program sees there.
    pub original: u8,
    /// The int3 is in memory. A hardware breakpoint where no memory is mapped has none and waits for code.
    pub there: bool,
    /// A hardware breakpoint to the debugger, which may be anywhere.
    pub hardware: bool,
    pub conditions: Vec<AgentExpr>,
    /// The debugger has set it.
    pub debuggers: bool,
    /// Set (also) by ulpf: a collector that moves generated code begins here, or has ended.
    pub collector: Option<Collector>,
}

/// Phase of a collector that moves generated code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Collector {
    Begins,
    Ends,
}

impl Breakpoint {
    /// A breakpoint at `addr` that is not in place, and that nothing wants yet.
    pub fn new(addr: u64) -> Breakpoint {
        Breakpoint {
            addr,
            original: 0,
            there: false,
            hardware: false,
            conditions: Vec::new(),
            debuggers: false,
            collector: None,
        }
    }

    /// Returns whether it has no conditions, or one of them is nonzero or cannot be evaluated.
    pub fn holds(&self, context: &mut impl AgentContext) -> bool {
        let mut all = self.conditions.iter();
        self.conditions.is_empty() || all.any(|c| agent::eval(c, context) != Ok(0))
    }
}

impl Edit for Breakpoint {
    fn start(&self) -> u64 {
        self.addr
    }
    fn end(&self) -> u64 {
        self.addr.saturating_add(1)
    }
    fn original(&self) -> &[u8] {
        core::slice::from_ref(&self.original)
    }
    fn ours(&self) -> &[u8] {
        &[INT3]
    }
    fn is_in_place(&self) -> bool {
        self.there
    }
}
