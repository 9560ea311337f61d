//! Finds the user at the other end of a TCP connection, if it is on this machine. Every user of a machine can reach its
//! loopback ports, so a listener checks this before it answers.
//!
//! The command and the simulator use this crate, so it depends on neither.
#![forbid(unsafe_code)]

mod diag;
mod owner;
mod table;

pub use owner::Owner;
pub use table::address;

use std::net::SocketAddr;

/// The owner of the other end of a connection; `ours` and `theirs` are the addresses as our end has them. `None` if the
/// other end is on another machine (or in another network namespace). It may also be missed, because the kernel's list
/// changes while it is read page by page.
pub fn owner(ours: SocketAddr, theirs: SocketAddr) -> Option<Owner> {
    if let Some(owner) = diag::owner(theirs, ours) {
        return Some(owner);
    }
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    tables.iter().find_map(|table| {
        let text = std::fs::read_to_string(table).ok()?;
        table::owner(&text, ours, theirs)
    })
}
