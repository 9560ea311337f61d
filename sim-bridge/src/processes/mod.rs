// SPDX-License-Identifier: GPL-2.0-or-later
//! Processes: a forked program is a forked simulator. Each has its own machine, whose memory the host
//! kernel copies on write. The two simulators share all that the program shares with its child: shared
//! mappings, descriptors, the device's store. So process numbers, exit statuses, process groups and signals
//! are the host kernel's. Only `ulpf-sim` does that (`Config::processes`): a process with threads besides
//! the machine's cannot fork.

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

    /// The program's number of a process.
    fn outside(&self, pid: i32) -> i64 {
        match pid {
            p if p == self.root => FIRST.into(),
            p => p.into(),
        }
    }
}

/// How a new process gets its parent's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Copies,
    /// A copy, and the parent waits until it has ended, or has another program.
    Waits,
    /// The same; then what the child has changed in its copy is brought back to the parent.
    Shares,
}

/// Memory that a child returns to a parent that waits for it (vfork).
pub struct Loan {
    to: File,
    /// Pages, and digests of their old contents.
    pages: HashMap<u64, u64>,
}
