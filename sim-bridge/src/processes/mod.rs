// SPDX-License-Identifier: GPL-2.0-or-later
//! Processes: a forked program is a forked simulator. Each has a machine of its own, whose memory the
//! kernel below copies when it is written to, and what the program shares with its child (shared
//! mappings, descriptors, the device's store) the two simulators share. So process numbers, exit
//! statuses, process groups and signals are this kernel's. Only `ulpf-sim` does that (`Config::processes`):
//! a program that has more threads than the machine's cannot fork.

pub mod calls;

use std::collections::HashMap;
use std::fs::File;

/// The first process, as the program knows it: the same in every run.
pub const FIRST: u32 = 1000;

/// Number of this process for the program, and the simulator's own.
#[derive(Default)]
pub struct Family {
    /// The simulator that was started.
    root: i32,
    /// Children that have not been waited for.
    children: Vec<i32>,
    loan: Option<Loan>,
}

impl Family {
    pub fn root(&self) -> i32 {
        self.root
    }

    /// After an exec.
    pub fn resumed(root: i32) -> Family {
        Family {
            root,
            ..Family::default()
        }
    }

    /// What the program calls a process.
    fn outside(&self, pid: i32) -> i64 {
        match pid {
            p if p == self.root => FIRST.into(),
            p => p.into(),
        }
    }
}

/// What a new process has of its parent's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Copies,
    /// A copy, and the parent waits until it has ended, or has another program.
    Waits,
    /// The same; then what the child has changed in its copy is brought back to the parent.
    Shares,
}

/// What a child owes to a parent that waits for it (vfork).
pub struct Loan {
    to: File,
    /// Pages, and what they held.
    pages: HashMap<u64, u64>,
}
