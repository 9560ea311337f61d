// SPDX-License-Identifier: GPL-2.0-or-later
//! How a machine is to be.

use crate::costs::Costs;
use crate::write_once::Rule;

/// Instructions in one handler of faults; the default.
pub const HANDLER_LIMIT: u64 = 10_000_000;

#[derive(Clone)]
pub struct Config {
    /// Nothing is counted, and no access is looked at before the user's tables exist.
    pub functional: bool,
    pub tlb: usize,
    pub rule: Rule,
    pub costs: Costs,
    /// The run ends after so many instructions.
    pub limit: Option<u64>,
    /// And after so many in a handler of faults that does not return.
    pub handler_limit: u64,
    /// The program may fork, and get signals from outside: this process is the program's, alone.
    pub processes: bool,
    /// Options for the simulator of the program that execve starts; none: there is no execve.
    pub options: Option<Vec<String>>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            functional: false,
            tlb: 64,
            rule: Rule::Corrected,
            costs: Costs::default(),
            limit: None,
            handler_limit: HANDLER_LIMIT,
            processes: false,
            options: None,
        }
    }
}
