//! The `ulpf` command as a library: starting programs with the stub inside ([`inferior`]), serving
//! debuggers ([`server`]), and the subcommands.
#![deny(unsafe_code)]

#[macro_use]
mod say;

pub mod backend;
mod bench;
pub mod cli;
pub mod coverage;
pub mod dap;
mod doctor;
mod export;
pub mod follow;
pub mod foreign;
mod gdb;
pub mod inferior;
pub mod inject;
mod last;
pub mod listen;
mod offer;
pub mod placement;
pub mod plugin;
mod programs;
pub mod rsp;
pub mod run;
pub mod server;
pub mod session;
pub mod settings;
pub mod signals;
pub mod sim;
mod socket_dir;
pub mod symbols;
pub mod top;

/// The C library's text for an errno, without the "(os error N)" that Rust appends.
pub fn errno_text(errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    match text.rfind(" (os error") {
        Some(at) => text[..at].to_string(),
        None => text,
    }
}
