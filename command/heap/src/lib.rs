//! Descriptions of heap errors. The stub finds them (`stub/handlers/src/check`) and records them in the shared area,
//! which the program can write to, so the records are not trusted. `ulpf check` prints them, and so does the server,
//! for a debugger that stops at an error.
#![forbid(unsafe_code)]

pub mod before;
pub mod blocks;
mod element;
pub mod error;
pub mod functions;
pub mod kind;
pub mod options;
pub mod pattern;
pub mod pointers;
pub mod sums;
pub mod suppress;
