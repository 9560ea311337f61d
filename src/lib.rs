//! The `ulpf` command as a library.
#![deny(unsafe_code)]

pub mod symbols;
