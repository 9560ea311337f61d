// SPDX-License-Identifier: GPL-2.0-or-later
//! System calls that a static C program needs, performed by this process or emulated. An unknown call ends the
//! run, with its name if it has one; no call is silently wrong.
//!
//! This file has the program's descriptors. The calls are in the modules below, dispatched by `calls.rs`.

// System calls have the names that Linux gives them.
#![allow(non_upper_case_globals)]

pub mod calls;
pub mod exec;
mod files;
mod memory;
pub mod numbers;
pub mod stack;
mod sync;
mod time;
mod unknown;

use std::collections::{HashMap, HashSet};

/// The thesis's system calls (Listing 3.3), where Linux has none.
pub const REGISTER_ULI: u64 = 0x1000;
pub const SET_RO: u64 = 0x1001;
/// A cache line is to be watched, or not any more: for a model that observes the machine.
pub const WATCH_LINE: u64 = 0x1002;
pub const OPEN_LINE: u64 = 0x1003;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum File {
    Host(i32),
    /// A space of the device.
    Ulpf(u32),
    /// Written text is kept; nothing is there to be read.
    Kept,
}

/// The program's descriptors.
pub struct Os {
    pub files: HashMap<u64, File>,
    /// Descriptors that are closed at an exec.
    pub closing: HashSet<u64>,
    pub kept: Vec<u8>,
    /// The file that it runs.
    pub program: String,
    random: u64,
}

impl Default for Os {
    fn default() -> Os {
        Os {
            files: (0..3).map(|n| (n, File::Host(n as i32))).collect(),
            closing: HashSet::new(),
            kept: vec![],
            program: String::new(),
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }
}

impl Os {
    /// The same bytes in every run.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    pub fn add(&mut self, file: File) -> u64 {
        self.add_from(file, 0)
    }

    /// With the lowest number that is free, from this one on.
    pub fn add_from(&mut self, file: File, first: u64) -> u64 {
        let n = (first..)
            .find(|n| !self.files.contains_key(n))
            .unwrap_or(u64::MAX);
        self.files.insert(n, file);
        self.closing.remove(&n);
        n
    }
}
