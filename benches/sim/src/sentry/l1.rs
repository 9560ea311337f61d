// SPDX-License-Identifier: GPL-2.0-or-later
//! A level-one cache: which lines it has, in which coherence state, and whether the present thread's
//! first access to one has been verified (the C bit). Contents are not modelled.

use super::lines::LINE;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum State {
    #[default]
    Invalid,
    Shared,
    Exclusive,
    Modified,
}

#[derive(Clone, Copy, Default)]
struct Way {
    line: u64,
    state: State,
    checked: bool,
    used: u64,
}

pub struct L1 {
    ways: Vec<Way>,
    associativity: usize,
    clock: u64,
}

impl L1 {
    pub fn new(bytes: usize, associativity: usize) -> L1 {
        L1 {
            ways: vec![Way::default(); bytes / LINE as usize],
            associativity,
            clock: 0,
        }
    }

    fn set_of(&mut self, line: u64) -> &mut [Way] {
        let sets = self.ways.len() / self.associativity;
        let first = (line as usize % sets) * self.associativity;
        &mut self.ways[first..first + self.associativity]
    }

    /// The state of a line, and its C bit.
    pub fn find(&mut self, line: u64) -> (State, bool) {
        let found = self
            .set_of(line)
            .iter()
            .find(|w| w.line == line && w.state != State::Invalid);
        found.map_or((State::Invalid, false), |w| (w.state, w.checked))
    }

    /// Puts the line here in this state, for the least recently used; `Invalid` takes it away.
    pub fn set(&mut self, line: u64, state: State, checked: bool) {
        self.clock += 1;
        let used = self.clock;
        let set = self.set_of(line);
        let own = |w: &Way| w.line == line && w.state != State::Invalid;
        let at = set.iter().position(own);
        if state == State::Invalid && at.is_none() {
            return;
        }
        let oldest = |w: &Way| match w.state {
            State::Invalid => 0,
            _ => w.used,
        };
        let at = at.or_else(|| (0..set.len()).min_by_key(|&n| oldest(&set[n])));
        if let Some(at) = at {
            set[at] = Way {
                line,
                state,
                checked,
                used,
            };
        }
    }

    /// At a context switch.
    pub fn clear_checked(&mut self) {
        for w in &mut self.ways {
            w.checked = false;
        }
    }
}
