//! State that a session keeps between requests: tables without I/O, each with its own numbers. The methods of `Session`
//! beside it serve the requests.
#![forbid(unsafe_code)]

pub mod breakpoints;
pub mod data;
pub mod feed;
pub mod frames;
pub mod sources;
pub mod variables;
