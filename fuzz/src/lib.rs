//! Fuzz targets, and what drives them. README.md says how they are run.
//!
//! ```text
//!   corpus/TARGET ─▶ slice (changes from a fixed seed)  ─ bytes ─▶ memory::bounded ─▶ targets/TARGET.rs
//!         └────────▶ libFuzzer (only with coverage)     ─ bytes ─▶        ▲                  │
//!                        ▲                                                                   │
//!                        └───────────────── coverage, comparisons ◀──────────────────────────┘
//! ```
//! An input fails if the code panics, runs for too long, overflows a stack of 2 MiB (what a thread of the
//! command has), or takes more memory than [`memory::MOST`].
#![allow(clippy::print_stderr, clippy::print_stdout)]

pub mod changes;
pub mod corpus;
pub mod memory;
pub mod slice;
#[cfg(feature = "coverage")]
pub mod stack;
pub mod targets;

/// A function that reads outside bytes and asserts what must hold.
pub struct Target {
    pub name: &'static str,
    /// Number of changed inputs in a plain test: a third of a second in a release build. By night there are more, with coverage.
    pub inputs: u64,
    pub run: fn(&[u8]),
}

include!(concat!(env!("OUT_DIR"), "/table.rs"));

/// The target of this name.
///
/// # Panics
/// No target has this name.
pub const fn target(name: &str) -> &'static Target {
    let mut n = 0;
    while n < TARGETS.len() {
        if same(TARGETS[n].name.as_bytes(), name.as_bytes()) {
            return &TARGETS[n];
        }
        n += 1;
    }
    panic!("no fuzz target has this name")
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut n = 0;
    while n < a.len() && n < b.len() && a[n] == b[n] {
        n += 1;
    }
    n == a.len() && n == b.len()
}

/// The lines of an input, for what has several parts.
pub fn lines(data: &[u8]) -> Vec<&[u8]> {
    data.split(|b| *b == b'\n').collect()
}

/// Numbers that an input decides on.
pub struct Numbers<'a>(pub &'a [u8]);

impl Numbers<'_> {
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    pub fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, n| word | u64::from(self.byte()) << (8 * n))
    }

    /// Small ones are as likely as large ones, and so are those near the end of the range.
    pub fn number(&mut self) -> u64 {
        let form = self.byte();
        match form % 4 {
            0 => u64::from(self.byte()),
            1 => u64::from(self.byte()) << (form / 4),
            2 => u64::MAX - u64::from(self.byte()),
            _ => self.word(),
        }
    }
}
