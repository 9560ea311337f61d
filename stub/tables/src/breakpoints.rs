//! Breakpoints: int3 in the program's code.
//!
//! The memory under one may be replaced without the debugger's knowledge: a library is unloaded, and another one is
//! mapped in its place. The byte found there then is not our int3, so it is neither hidden nor restored.

use alloc::vec::Vec;

use ulpf_engine::agent::{self, AgentContext};

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
    /// Returns whether it has no conditions, or one of them is nonzero or cannot be evaluated.
    pub fn holds(&self, context: &mut impl AgentContext) -> bool {
        let mut all = self.conditions.iter();
        self.conditions.is_empty() || all.any(|c| agent::eval(c, context) != Ok(0))
    }
}

/// Ordered by address.
#[derive(Default)]
pub struct List(Vec<Breakpoint>);

impl List {
    pub const fn new() -> List {
        List(Vec::new())
    }

    pub fn as_slice(&self) -> &[Breakpoint] {
        &self.0
    }

    /// The breakpoint at exactly `addr`.
    pub fn at(&self, addr: u64) -> Option<&Breakpoint> {
        self.0.get(self.find(addr).ok()?)
    }

    pub fn at_mut(&mut self, addr: u64) -> Option<&mut Breakpoint> {
        let at = self.find(addr).ok()?;
        self.0.get_mut(at)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Breakpoint> {
        self.0.iter_mut()
    }

    /// The breakpoints in `[start, end)`.
    pub fn within_mut(&mut self, start: u64, end: u64) -> impl Iterator<Item = &mut Breakpoint> {
        let inside = move |b: &&mut Breakpoint| b.addr >= start && b.addr < end;
        self.0.iter_mut().filter(inside)
    }

    /// Inserts a breakpoint; there must be none at its address.
    pub fn insert(&mut self, b: Breakpoint) {
        let at = self.0.partition_point(|other| other.addr < b.addr);
        self.0.insert(at, b);
    }

    pub fn remove(&mut self, addr: u64) -> Option<Breakpoint> {
        let at = self.find(addr).ok()?;
        Some(self.0.remove(at))
    }

    pub fn drain(&mut self) -> impl Iterator<Item = Breakpoint> {
        self.0.drain(..)
    }

    fn find(&self, addr: u64) -> Result<usize, usize> {
        self.0.binary_search_by_key(&addr, |b| b.addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_ordered_whatever_comes_first() {
        let mut list = List::new();
        for addr in [0x30, 0x10, 0x20] {
            list.insert(Breakpoint {
                addr,
                original: addr as u8,
                there: true,
                hardware: false,
                conditions: Vec::new(),
                debuggers: true,
                collector: None,
            });
        }
        let all: Vec<u64> = list.as_slice().iter().map(|b| b.addr).collect();
        assert_eq!(all, [0x10, 0x20, 0x30]);
        assert_eq!(list.at(0x20).map(|b| b.original), Some(0x20));
        assert!(list.at(0x21).is_none());
        assert_eq!(list.within_mut(0x10, 0x30).count(), 2);
        assert_eq!(list.remove(0x20).map(|b| b.addr), Some(0x20));
        assert!(list.at(0x20).is_none());
    }
}
