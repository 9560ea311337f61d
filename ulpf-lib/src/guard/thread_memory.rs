//! Memory of threads. It is not the program's heap, but the kernel may have merged the two.

use crate::addr::PAGE_SIZE;

/// Memory that the C library has mapped for a thread.
#[derive(Clone, Copy, Debug)]
pub struct ThreadMemory {
    /// The first thread: its stack is the kernel's.
    pub is_first: bool,
    /// Address, or 0.
    pub stack_pointer: u64,
    /// Its thread-local variables and its descriptor.
    pub data: (u64, u64),
    /// Lowest address of its stack, which ends with the descriptor; 0 if that is not known.
    pub stack: u64,
}

impl ThreadMemory {
    /// Its part of a mapping. Below the stack of another thread is mostly an inaccessible page.
    pub(super) fn of(&self, mapping: (u64, u64)) -> Option<(u64, u64)> {
        let (start, end) = mapping;
        if self.data.0 >= end || self.data.1 <= start {
            return None;
        }
        let has_stack = !self.is_first || (start..self.data.1).contains(&self.stack_pointer);
        let from = if has_stack {
            start.max(self.stack)
        } else {
            self.data.0 & !(PAGE_SIZE - 1)
        };
        Some((from, self.data.1.next_multiple_of(PAGE_SIZE)))
    }
}
