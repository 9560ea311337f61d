//! What is wrong with a program's heap, in words. The stub finds it (`stub/handlers/src/check`) and notes it in the shared
//! area, which is the program's to write: nothing there is more than a claim. `ulpf check` tells it, and the server,
//! whose debugger the program stops for.
#![forbid(unsafe_code)]

pub mod before;
pub mod blocks;
mod element;
pub mod error;
pub mod functions;
pub mod options;
pub mod pattern;
pub mod pointers;
pub mod sums;
pub mod suppress;
