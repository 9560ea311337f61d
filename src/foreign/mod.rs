//! What somebody else sent, wrote or named. `ulpf` often has more rights than the program that it watches
//! and than its neighbours, so nothing of theirs is used before one of these three modules has looked at it:
//!
//! ```text
//! files.rs     a file that somebody else named      regular, not blocking, of limited size, no more rights than theirs
//! numbers.rs   a number that somebody else sent     bounded; a process number is a task or a child of the target
//! text.rs      a text that somebody else wrote      no control character reaches a terminal
//! ```
//!
//! docs/threat-model.md says who "somebody else" is.
#![forbid(unsafe_code)]

pub mod files;
pub mod numbers;
pub mod text;
