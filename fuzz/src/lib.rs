//! What all targets have in common. A target is a file in `src/bin`; README.md says how they are run.
//!
//! ```text
//!   corpus/TARGET ─▶ libFuzzer ─ bytes ─▶ target! ─▶ memory::bounded ─▶ the code in question
//!                        ▲                                                     │
//!                        └───────────────── coverage, comparisons ◀────────────┘
//! ```
//! An input fails if the code panics, runs for longer than `-timeout`, overflows a stack of 2 MiB (what a
//! thread of the command has), or takes more memory than [`memory::MOST`].

pub mod memory;
mod stack;

pub use stack::catch_overflow;

/// Defines a target: `target!(|data| …)`.
#[macro_export]
macro_rules! target {
    (|$data:ident| $body:expr) => {
        libfuzzer_sys::fuzz_target!(init: $crate::catch_overflow(), |bytes: &[u8]| {
            $crate::memory::bounded(|| {
                let $data = bytes;
                $body
            })
        });
    };
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
