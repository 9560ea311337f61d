//! What a session keeps between requests: tables without I/O, each with its own numbers. The requests themselves
//! are beside them, as methods of `Session`.
#![forbid(unsafe_code)]

pub mod breakpoints;
pub mod data;
pub mod feed;
pub mod frames;
pub mod sources;
pub mod variables;
