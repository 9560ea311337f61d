//! Edits of code: the one table of the places where the code in memory is not the program's own.
//!
//! ```text
//!     breakpoint           int3: a thread there stops
//!     patched access       a near jump to a trampoline
//!     patched system call  a near jump to a slot of the stub's image
//!     replaced function    a far jump from an allocator's function to the checked heap
//!     client request       a far jump: the program describes memory to the checked heap
//! ```
//!
//! The stub's task changes the table with the world stopped; handlers read it without locks. An exception is the jump
//! of an access, which the program's only thread writes and removes itself ([`Patch::in_place`]).
//!
//! Edits of one kind do not overlap. Of different kinds, only a breakpoint may lie in the jump of a function or request.
//! On the jump's first byte the int3 is in place. Behind it, the breakpoint is met elsewhere (`check/hooks.rs` of the
//! handlers).

use crate::breakpoints::Breakpoint;
use crate::calls::Call;
use crate::edit::{Detour, Edit, FUNCTION_JUMP, List, REQUEST_JUMP};
use crate::patches::Patch;

pub struct Edits {
    pub breakpoints: List<Breakpoint>,
    pub accesses: List<Patch>,
    pub calls: List<Call>,
    /// They stay for good, so a debugger sees the jumps.
    pub functions: List<Detour<FUNCTION_JUMP>>,
    pub requests: List<Detour<REQUEST_JUMP>>,
}

impl Default for Edits {
    fn default() -> Edits {
        Edits::new()
    }
}

impl Edits {
    pub const fn new() -> Edits {
        Edits {
            breakpoints: List::new(),
            accesses: List::new(),
            calls: List::new(),
            functions: List::new(),
            requests: List::new(),
        }
    }

    /// Returns whether an edit other than a patched access needs a byte of `[start, end)`.
    pub fn others_touch(&self, start: u64, end: u64) -> bool {
        self.breakpoints.touches(start, end)
            || self.calls.touches(start, end)
            || self.functions.touches(start, end)
            || self.requests.touches(start, end)
    }

    /// Returns whether any edit needs a byte of `[start, end)`.
    pub fn touch(&self, start: u64, end: u64) -> bool {
        self.accesses.touches(start, end) || self.others_touch(start, end)
    }

    /// Restores the program's bytes in code that was read from `from` on. The memory under an edit may have been
    /// replaced, by a library that is mapped in its place: bytes that are not ours stay.
    pub fn hide(&self, from: u64, code: &mut [u8]) {
        // Breakpoints lie on other edits.
        uncover(&self.breakpoints, from, code);
        uncover(&self.accesses, from, code);
        uncover(&self.calls, from, code);
        uncover(&self.requests, from, code);
    }

    /// Calls `f` with the start and the original bytes of each edit in place that a forked child does not keep.
    pub fn each_of_child<'a>(&'a self, mut f: impl FnMut(&'a dyn Edit)) {
        let calls = self.calls.iter().map(|edit| edit as &dyn Edit);
        let accesses = self.accesses.iter().map(|edit| edit as &dyn Edit);
        let breakpoints = self.breakpoints.iter().map(|edit| edit as &dyn Edit);
        let all = calls.chain(accesses).chain(breakpoints);
        all.filter(|edit| edit.is_in_place()).for_each(&mut f);
    }
}

fn uncover<T: Edit>(list: &List<T>, from: u64, code: &mut [u8]) {
    let end = from.saturating_add(code.len() as u64);
    for edit in list.meeting(from, end).filter(|edit| edit.is_in_place()) {
        let changed = edit.original().iter().zip(edit.ours());
        for (at, (original, ours)) in (edit.start()..).zip(changed) {
            let byte = at.checked_sub(from).and_then(|n| code.get_mut(n as usize));
            if let Some(byte) = byte.filter(|byte| **byte == *ours) {
                *byte = *original;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::breakpoints::INT3;
    use std::vec::Vec;

    fn breakpoint(addr: u64, original: u8, there: bool) -> Breakpoint {
        Breakpoint {
            original,
            there,
            ..Breakpoint::new(addr)
        }
    }

    #[test]
    fn edits_are_found_by_what_they_need() {
        let mut edits = Edits::new();
        for at in [0x40, 0x10] {
            edits.requests.insert(Detour {
                at,
                number: 0,
                original: [1; REQUEST_JUMP],
                jump: [2; REQUEST_JUMP],
            });
        }
        let starts = |start, end| {
            let meeting = edits.requests.meeting(start, end);
            meeting.map(|edit| edit.start()).collect::<Vec<u64>>()
        };
        assert_eq!(starts(0, 0x100), [0x40, 0x10]);
        assert_eq!(starts(0x1d, 0x40), [0x10]);
        assert_eq!(starts(0x1d, 0x41), [0x40, 0x10]);
        assert_eq!(starts(0x1e, 0x40), [] as [u64; 0]);
        assert_eq!(starts(0x50, 0x20), [] as [u64; 0]);
        assert!(edits.others_touch(0x1d, 0x1e) && !edits.others_touch(0x1e, 0x40));
        assert!(edits.requests.at(0x10).is_some() && edits.requests.at(0x11).is_none());
    }

    #[test]
    fn a_breakpoint_on_a_request_shows_the_request() {
        let mut edits = Edits::new();
        let request: Vec<u8> = (0..REQUEST_JUMP as u8).collect();
        edits.requests.insert(Detour {
            at: 0x10,
            number: 0,
            original: request.clone().try_into().unwrap(),
            jump: [0xff; REQUEST_JUMP],
        });
        edits.breakpoints.insert(breakpoint(0x10, 0xff, true));
        // Met elsewhere.
        edits.breakpoints.insert(breakpoint(0x12, 0, false));
        let mut memory = [0xff; REQUEST_JUMP + 1];
        memory[0] = INT3;
        edits.hide(0x10, &mut memory);
        assert_eq!(memory[..REQUEST_JUMP], request);
        assert_eq!(memory[REQUEST_JUMP], 0xff);
        // A part of it.
        let mut memory = [0xff, 0xff, INT3, 0xff];
        edits.hide(0xe, &mut memory);
        assert_eq!(memory, [0xff, 0xff, 0, 1]);
    }

    #[test]
    fn replaced_memory_is_shown() {
        let mut edits = Edits::new();
        edits.breakpoints.insert(breakpoint(0x10, 0x55, true));
        let mut memory = [0x90];
        edits.hide(0x10, &mut memory);
        assert_eq!(memory, [0x90]);
        let mut memory = [INT3];
        edits.hide(0x10, &mut memory);
        assert_eq!(memory, [0x55]);
    }
}
