//! The `ulpf` command: its command line, and the subcommands that are small. The others are crates in `command/`.
//!
#![doc = include_str!("../command/README.md")]
#![forbid(unsafe_code)]

mod bridge;
mod cli;
mod doctor;
mod gdb;
mod last;
mod pages;
mod sim;

fn main() {
    std::process::exit(cli::main());
}
