//! The bridge: the protocol between the debugger's side (the front end) and the program's side (the back
//! end). docs/bridge.md is the specification. This crate has its types and its framing, without any I/O, so
//! that a back end may be a process with its own licence.
//!
//! ```text
//!   gdb ⇄ ulpf server: front end ⇄ (JSON lines: a socket) ⇄ back end: ulpf-sim · a guest · gem5's proxy
//! ```
//! A line is one message. The front end asks, with a number; the back end answers each request with that
//! number, in any order, and reports events without a request.
#![forbid(unsafe_code)]

mod bytes;
pub mod fake;
pub mod greeting;
mod hit;
mod line;
mod message;
mod refusal;

pub use bytes::Bytes;
pub use greeting::is_front_end;
pub use hit::Hit;
pub use line::{Bad, Lines, MAX_LINE, line};
pub use message::*;
pub use refusal::Refusal;
pub use ulpf_lib::filter::{self, Filter};

/// The newest version of the protocol that this code speaks, and the oldest. In version 2 a hit says that a
/// write has read, too.
pub const VERSION: u32 = 2;
pub const OLDEST: u32 = 1;

/// The newest version that both sides support, or `None`.
pub fn agree(theirs: [u32; 2]) -> Option<u32> {
    let [from, to] = theirs;
    let best = to.min(VERSION);
    (from <= to && best >= from.max(OLDEST)).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(agree([1, 1]), Some(1));
        assert_eq!(agree([1, 9]), Some(VERSION));
        assert_eq!(agree([VERSION + 1, 9]), None);
        assert_eq!(agree([0, 0]), None);
        assert_eq!(agree([2, 1]), None);
    }
}
