//! Conditions of watches as C expressions over the hit, registers and the program's variables. They are evaluated on
//! the program's threads.
//!
//! ```text
//!     COND   := unary and binary operators of C, its precedence; not: assignment, ?:, calls, sizeof
//!     UNARY  := ('!' | '~' | '-' | '+' | '*' | '&' | '(' TYPE ')')* FIRST STEP*
//!     STEP   := '.' FIELD | '->' FIELD | '[' COND ']'
//!     FIRST  := NUMBER | 'c' | NAME | OBJECT '`' NAME | '$' WORD | '(' COND ')' | true | false
//!     WORD   := new, old      the value, with its type; of a larger watch: of the element that was accessed
//!             | addr, len     where it is; how many watched bytes were accessed
//!             | tid, pid      Linux thread and process
//!             | hits          hits of the watch so far, with this one
//!             | kind          1 read, 2 write, 3 both
//!             | reads, writes is it a read, a write (an update is both)
//!             | pc            the instruction
//!             | rax … r15, rip, eflags, sp, fp   after the instruction
//!     TYPE   := an integer type of C or Rust, float and double not; NAME '*'…
//! ```
//!
//! Values are 64-bit integers with the types of C: smaller types are promoted to int, and unsigned wins.
//! Floating-point values can be compared with each other and with numbers, nothing else.

mod arithmetic;
mod bits;
mod code;
mod compile;
mod float;
mod kind;
mod parse;
mod tree;

pub use bits::bits_changed;
pub use compile::{Found, Names, Value, compile};
pub use kind::Kind;
pub use parse::Parser;
pub use tree::{Node, Wrong};

#[cfg(test)]
mod tests;
