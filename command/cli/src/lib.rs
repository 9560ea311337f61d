//! The command line of `ulpf`, and the small subcommands. The others are crates beside this one.
//!
#![doc = include_str!("../../README.md")]
#![forbid(unsafe_code)]

mod cli;
mod doctor;
mod gdb;
mod last;
mod pages;
mod sim;

pub use cli::main;
